"""Rules that make one preference from the aspects' labels of a pair (AudioJudge, 3.4); pure functions of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paras2s.errors import ConfigError, DataError
from paras2s.reward.fusion import read_rules
from paras2s.reward.judges.votes import POINTS, label_of
from paras2s.types import PairLabel

ENSEMBLE, DEFAULT_ENSEMBLE = "ensemble", "majority"


class EnsembleRule(BaseModel):
    """One rule. The head of `ensemble.yaml` explains its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str
    aspects: tuple[str, ...] = Field(min_length=1)
    decide: Literal["vote", "count", "first_winner"]
    weights: dict[str, float] = {}
    margin: float = Field(0.0, ge=0, lt=0.5)

    @model_validator(mode="after")
    def _check(self) -> EnsembleRule:
        if len(set(self.aspects)) < len(self.aspects):
            raise ValueError("aspects: one occurs twice")
        if strange := sorted(set(self.weights) - set(self.aspects)):
            raise ValueError(f"weights: {strange[0]!r} is not among the aspects")
        if any(weight <= 0 for weight in self.weights.values()):
            raise ValueError("weights: must be above 0")
        if self.decide != "vote" and (self.weights or self.margin):
            raise ValueError("weights and margin are of a vote")
        return self

    def points(self, labels: Mapping[str, PairLabel]) -> float:
        """Return the points of the first answer, 0 to 1, by the aspects that have a label, as the paper's authors count.

        Raises:
            DataError: no aspect has a label.
        """
        present = [aspect for aspect in self.aspects if aspect in labels]
        if not present:
            raise DataError(f"no label of {', '.join(self.aspects)}")
        if self.decide == "count":
            label, votes = Counter(labels[aspect] for aspect in present).most_common(1)[0]
            return POINTS[label] if 2 * votes > len(present) else 0.5
        if self.decide == "first_winner":
            return next((POINTS[labels[aspect]] for aspect in present if labels[aspect] != "tie"), 0.5)
        weights = [self.weights.get(aspect, 1.0) for aspect in present]
        return fmean([POINTS[labels[aspect]] for aspect in present], weights)

    def fuse(self, labels: Mapping[str, PairLabel]) -> PairLabel:
        """Return the overall label of one order of the pair. Raises DataError: no aspect has a label."""
        return label_of(self.points(labels), self.margin)

    def steps(self, labels: Mapping[str, PairLabel]) -> list[tuple[str, PairLabel]]:
        """Return each aspect's part in words with its label, last the decision. Raises DataError: no aspect has a label."""
        points, present = self.points(labels), [aspect for aspect in self.aspects if aspect in labels]
        decided = {
            "vote": f"the weighted mean is {points:.3g} points of the first answer; a tie within {self.margin:g} of 0.5",
            "count": f"the label that more than half of {len(present)} aspects give, else a tie",
            "first_winner": f"the first of {', '.join(present)} that names a winner, else a tie",
        }
        weighs = {name: f", weight {self.weights.get(name, 1.0):g}" if self.decide == "vote" else "" for name in present}
        parts = [(f"{name}: {POINTS[labels[name]]:g} points{weighs[name]}", labels[name]) for name in present]
        return [*parts, (decided[self.decide], self.fuse(labels))]


def find_ensemble(name: str = DEFAULT_ENSEMBLE, path: Path | None = None) -> EnsembleRule:
    """Find a rule by name, shipped or in a user's file. Raises ConfigError: a wrong file, or none of that name."""
    rules = read_rules(EnsembleRule, "ensemble.yaml", path)
    if name not in rules:
        raise ConfigError(f"unknown ensemble rule {name!r}; there are {', '.join(rules)}")
    return rules[name]
