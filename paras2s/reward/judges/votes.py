"""Votes on a pair and what they come to: orders, samples and aspects of a judge as one label (AudioJudge, 3.4; StyleSet, 4.1).

Everything here is a pure function of labels; a label that is missing is never filled in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paras2s.errors import ConfigError, DataError
from paras2s.reward.fusion import read_rules
from paras2s.types import Label, MatchLabel, PairLabel

# Of the first answer, a tie of any kind half a win; of a match: that it is one.
POINTS: dict[PairLabel | MatchLabel | Label, float] = {"1": 1.0, "tie": 0.5, "2": 0.0, "same": 1.0, "different": 0.0}
POINTS |= {"both_good": 0.5, "both_bad": 0.5}
ENSEMBLE, DEFAULT_ENSEMBLE = "ensemble", "majority"
# Means of thirds and fifths are not exact, and an even vote is a tie.
NEAR = 1e-9


def turned(label: PairLabel | MatchLabel) -> PairLabel | MatchLabel:
    """The same judgement with the two clips in the other order."""
    swapped: dict[str, PairLabel] = {"1": "2", "2": "1"}
    return swapped.get(label, label)


def label_of(points: float, margin: float = 0.0) -> PairLabel:
    """The label that a mean of points comes to: a tie within `margin` of 0.5."""
    if abs(points - 0.5) <= margin + NEAR:
        return "tie"
    return "1" if points > 0.5 else "2"


def match_of(points: float) -> MatchLabel:
    """Whether most votes say that two clips match.

    Raises:
        DataError: they are even.
    """
    if abs(points - 0.5) <= NEAR:
        raise DataError("as many votes say that the clips match as that they do not")
    return "same" if points > 0.5 else "different"


def spread_of(votes: Sequence[float]) -> float | None:
    """Standard deviation of votes; None of one."""
    return stdev(votes) if len(votes) > 1 else None


def prefer(first_score: float, second_score: float) -> PairLabel:
    """Two scores as a preference: the higher one wins, equal ones tie (AudioJudge, E.1)."""
    if first_score == second_score:
        return "tie"
    return "1" if first_score > second_score else "2"


class EnsembleRule(BaseModel):
    """One rule; its keys are explained at the head of `ensemble.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str
    aspects: tuple[str, ...] = Field(min_length=1)
    decide: Literal["vote", "count", "first_winner"]
    weights: dict[str, float] = {}
    margin: float = Field(0.0, ge=0, lt=0.5)

    @model_validator(mode="after")
    def _check(self) -> EnsembleRule:
        if len(set(self.aspects)) < len(self.aspects):
            raise ValueError("aspects: one stands twice")
        if strange := sorted(set(self.weights) - set(self.aspects)):
            raise ValueError(f"weights: {strange[0]!r} is not among the aspects")
        if any(weight <= 0 for weight in self.weights.values()):
            raise ValueError("weights: must be above 0")
        if self.decide != "vote" and (self.weights or self.margin):
            raise ValueError("weights and margin are of a vote")
        return self

    def points(self, labels: Mapping[str, PairLabel]) -> float:
        """Points of the first answer, 0 to 1.

        Raises:
            DataError: an aspect has no label.
        """
        if missing := [aspect for aspect in self.aspects if aspect not in labels]:
            raise DataError(f"no label of {', '.join(missing)}")
        if self.decide == "count":
            label, votes = Counter(labels[aspect] for aspect in self.aspects).most_common(1)[0]
            return POINTS[label] if 2 * votes > len(self.aspects) else 0.5
        if self.decide == "first_winner":
            return next((POINTS[labels[one]] for one in self.aspects if labels[one] != "tie"), 0.5)
        weights = [self.weights.get(aspect, 1.0) for aspect in self.aspects]
        return fmean([POINTS[labels[aspect]] for aspect in self.aspects], weights)

    def fuse(self, labels: Mapping[str, PairLabel]) -> PairLabel:
        """The label of the whole, of one order of the pair.

        Raises:
            DataError: an aspect has no label.
        """
        return label_of(self.points(labels), self.margin)


def find_ensemble(name: str = DEFAULT_ENSEMBLE, path: Path | None = None) -> EnsembleRule:
    """A rule by name, shipped or of a user's file.

    Raises:
        ConfigError: the file holds no such rules, or there is none of that name.
    """
    rules = read_rules(EnsembleRule, "ensemble.yaml", path)
    if name not in rules:
        raise ConfigError(f"unknown ensemble rule {name!r}; there are {', '.join(rules)}")
    return rules[name]
