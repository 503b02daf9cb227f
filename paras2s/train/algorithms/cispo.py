"""CISPO (MiniMax-M1, 2025): the likelihood, weighed by a ratio that is clipped from above and has no gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.train.algorithm import Algorithm

if TYPE_CHECKING:
    from torch import Tensor


def weighted_likelihood(ratio: Tensor, advantages: Tensor, logp: Tensor, objective: ObjectiveConfig) -> Tensor:
    """Return the log-prob by the advantage and the constant ratio, negative."""
    return -ratio.clamp(max=objective.clip_high).detach() * advantages * logp


ALGORITHM = Algorithm(weighted_likelihood, average="batch")
