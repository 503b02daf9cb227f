"""GRPO (Shao et al., 2024; ParaS2S, equation 3): the clipped ratio, averaged over each answer and then over answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.train.algorithm import Algorithm

if TYPE_CHECKING:
    from torch import Tensor


def clipped(ratio: Tensor, advantages: Tensor, logp: Tensor, objective: ObjectiveConfig) -> Tensor:
    """Return the smaller of the advantage by the ratio and by the clipped ratio, negative."""
    unclipped = ratio if objective.ratio_cap is None else ratio.clamp(max=objective.ratio_cap)
    inside = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    return -(unclipped * advantages).minimum(inside * advantages)


ALGORITHM = Algorithm(clipped)
