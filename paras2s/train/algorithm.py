"""RL algorithms by name: a file of `train/algorithms` each, with its loss, its rule of advantages, and the settings it needs.

A new algorithm is a new file with an `ALGORITHM`; its name is a value of `align.objective.loss_type`. These files import no
torch at their top, so that a config is checked without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from paras2s.configs.schema.align import AlignConfig, ObjectiveConfig
from paras2s.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

# Rules that mark answers with 1 or -1, whatever their rewards are.
MARKS = ("best", "pair")
# The loss of a unit of tokens from its ratio, advantage and log-prob, all [N, U].
Term = Callable[["Tensor", "Tensor", "Tensor", ObjectiveConfig], "Tensor"]
# The loss of a pair of answers from its margin: the log-ratio of the preferred answer less that of the other, [pairs].
PairTerm = Callable[["Tensor", ObjectiveConfig], "Tensor"]
# Return what is wrong with the settings, None if nothing is.
Check = Callable[[AlignConfig], str | None]


@dataclass(frozen=True)
class Algorithm:
    """An RL algorithm; it has a `term` or a `pair_term`.

    `average`: over what the terms are averaged: the tokens of a sequence and then sequences, all tokens of the batch, or
    `max_steps` for each sequence; pairs are averaged over pairs. `rule`: a key of `train.advantages.ADVANTAGES`, None: that of
    `align.objective.scale_rewards`.
    """

    term: Term | None = None
    pair_term: PairTerm | None = None
    average: Literal["sequence", "batch", "length", "pair"] = "sequence"
    rule: str | None = None
    check: Check = lambda _: None


def load_algorithm(name: str) -> Algorithm:
    """Return the algorithm of a name, which the config has checked."""
    algorithm: Algorithm = import_module(f"paras2s.train.algorithms.{name}").ALGORITHM
    return algorithm


def rule_of(objective: ObjectiveConfig) -> str:
    """Return the key of `ADVANTAGES`: an algorithm that learns from chosen answers has nothing to scale."""
    return load_algorithm(objective.loss_type).rule or objective.scale_rewards


def check_algorithm(config: AlignConfig) -> None:
    """Check that the settings fit the algorithm. Raises ConfigError: they do not; names the setting."""
    name = config.objective.loss_type
    if load_algorithm(name).pair_term is not None and config.distilled is not None:
        raise ConfigError(f"align.self_distill: {name} learns from pairs and not from tokens; leave one of them out")
    if config.sampling.entropy_weight and load_algorithm(name).rule in MARKS:
        raise ConfigError(
            f"align.sampling.entropy_weight: {name} learns from chosen answers, which tell nothing of the entropy; leave it out"
        )
    if complaint := load_algorithm(name).check(config):
        raise ConfigError(f"align.objective: loss_type {name}: {complaint}")


def no_policy_gradient(config: AlignConfig) -> str | None:
    """Return what is wrong with the settings of an algorithm without a policy gradient, None if nothing is."""
    if config.objective.tis_cap is not None:
        return "tis_cap corrects policy gradients, which this is not; leave it out"
    return None
