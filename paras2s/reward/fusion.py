"""Typed-tie labels and their fusion: three dimensions of a comparison to one overall label (TRACE, 3.2 and appendix E).

A label says of a pair of answers which one is better, or that both are good, or both bad. Rules are data
(`fusion.yaml`); a user adds one in a YAML file of the same form.
"""

from __future__ import annotations

from collections import Counter
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paras2s.errors import ConfigError, DataError, message_of
from paras2s.types import LABELS, Dimension, Label
from paras2s.utils.io import read_yaml

WINNERS: tuple[Label, Label] = ("1", "2")
DEFAULT_RULE = "speakbench"

# Whether the first and the second answer are acceptable: what RatingMin compares (TRACE, Alg. 3).
_ACCEPTABLE: dict[Label, tuple[int, int]] = {"1": (1, 0), "2": (0, 1), "both_good": (1, 1), "both_bad": (0, 0)}
_LABEL_OF: dict[tuple[int, int], Label] = {pair: label for label, pair in _ACCEPTABLE.items()}


def as_label(value: object, where: str = "label") -> Label:
    """`value` as a label; the authors' release reads unknown ones as both bad. Raises DataError: it is none."""
    for label in LABELS:
        if value == label:
            return label
    raise DataError(f"{where}: {value!r} is not a label; there are {', '.join(LABELS)}")


def rating_min(first: Label, second: Label) -> Label:
    """Return the label whose acceptable answers are acceptable in both (TRACE, Alg. 3)."""
    own, other = _ACCEPTABLE[first], _ACCEPTABLE[second]
    return _LABEL_OF[min(own[0], other[0]), min(own[1], other[1])]


def swap(label: Label) -> Label:
    """Return the same judgement with the two answers in the other order."""
    return {"1": "2", "2": "1"}.get(label, label)  # type: ignore[return-value]


def symmetric(first: Label, swapped: Label) -> Label:
    """Return one label from both orders; `swapped` was given with the answers exchanged and is turned back here.

    Orders that agree keep their label. A winner that the other order does not find is none: a win and a tie are that
    tie; two opposite wins are "both good", since each answer was called good enough to win; two different ties are the
    worse tie.
    """
    back = swap(swapped)
    if first == back:
        return first
    if first in WINNERS and back in WINNERS:
        return "both_good"
    if first in WINNERS or back in WINNERS:
        return back if first in WINNERS else first
    return rating_min(first, back)


class RuleCase(BaseModel):
    """Labels that end a rule at once."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    if_: dict[Dimension, Label] = Field(alias="if", min_length=1)
    then: Label


class FusionRule(BaseModel):
    """One rule; its keys are explained at the head of `fusion.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str
    when: tuple[RuleCase, ...] = ()
    decide: Literal["first_winner", "majority"]
    order: tuple[Dimension, ...] = Field(min_length=1)
    otherwise: Dimension
    cap: tuple[Dimension, ...] = ()

    def fuse(self, labels: dict[Dimension, Label]) -> Label:
        """Return the overall label."""
        return self.steps(labels)[-1][1]

    def steps(self, labels: dict[Dimension, Label]) -> list[tuple[str, Label]]:
        """Return each step of the rule in words, with the label after it; the last label is the overall one."""
        for case in self.when:
            if all(labels[dimension] == label for dimension, label in case.if_.items()):
                met = " and ".join(f"{dimension} is {label}" for dimension, label in case.if_.items())
                return [(f"{met}, which ends the rule", case.then)]
        steps = [self._decide(labels)]
        for dimension in self.cap:
            why = f"no better than {dimension} allows, which is {labels[dimension]}"
            steps.append((why, rating_min(steps[-1][1], labels[dimension])))
        return steps

    def _decide(self, labels: dict[Dimension, Label]) -> tuple[str, Label]:
        if self.decide == "first_winner":
            for dimension in self.order:
                if labels[dimension] in WINNERS:
                    return f"{dimension} is the first of {', '.join(self.order)} that names a winner", labels[dimension]
            return f"none of {', '.join(self.order)} names a winner, so {self.otherwise} decides", labels[self.otherwise]
        label, votes = Counter(labels[dimension] for dimension in self.order).most_common(1)[0]
        if 2 * votes > len(self.order):
            return f"{votes} of {len(self.order)} dimensions say {label}", label
        return f"no label has a majority, so {self.otherwise} decides", labels[self.otherwise]


def load_rules(path: Path | None = None) -> dict[str, FusionRule]:
    """Return the shipped rules with those of a user's file over them. Raises ConfigError: names rule and key."""
    return read_rules(FusionRule, "fusion.yaml", path)


Rule = TypeVar("Rule", bound=BaseModel)


def read_rules(kind: type[Rule], shipped: str, path: Path | None = None) -> dict[str, Rule]:
    """Return rules of a kind by name: shipped ones, and a user's over them. Raises ConfigError: names rule and key."""
    rules = _parse(kind, resources.files("paras2s.reward").joinpath(shipped), shipped)
    return rules if path is None else rules | _parse(kind, path, str(path))


def _parse(kind: type[Rule], source: Path | Traversable, name: str) -> dict[str, Rule]:
    values = read_yaml(source)
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected a mapping of rule names to rules")
    rules = {}
    for rule, body in values.items():
        try:
            rules[str(rule)] = kind.model_validate(body)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ConfigError(f"{name}: {'.'.join(map(str, (rule, *wrong['loc'])))}: {message_of(wrong)}") from error
    return rules


def find_rule(name: str, path: Path | None = None) -> FusionRule:
    """Return a rule by name. Raises ConfigError: there is none of that name."""
    rules = load_rules(path)
    if name not in rules:
        raise ConfigError(f"unknown fusion rule {name!r}; there are {', '.join(rules)}")
    return rules[name]


def fuse(content: object, voice_quality: object, paralinguistics: object, policy: str = DEFAULT_RULE) -> Label:
    """Return the overall label of three dimension labels under a shipped rule (TRACE, appendix E).

    Raises:
        ConfigError: no rule of that name. DataError: an unknown label; names the dimension and the label.
    """
    labels: dict[Dimension, Label] = {
        "content": as_label(content, "content"),
        "voice_quality": as_label(voice_quality, "voice_quality"),
        "paralinguistics": as_label(paralinguistics, "paralinguistics"),
    }
    return find_rule(policy).fuse(labels)
