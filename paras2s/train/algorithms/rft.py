"""Rejection-sampling fine-tuning: the likelihood of each group's best answer, the only answer with an advantage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.train.algorithm import Algorithm, no_policy_gradient

if TYPE_CHECKING:
    from torch import Tensor


def likelihood(ratio: Tensor, advantages: Tensor, logp: Tensor, objective: ObjectiveConfig) -> Tensor:
    """Return the log-prob by the advantage, negative."""
    return -advantages * logp


ALGORITHM = Algorithm(likelihood, average="batch", rule="best", check=no_policy_gradient)
