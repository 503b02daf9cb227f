"""SAPO (Gao et al., 2025): a sigmoid of the ratio in place of the clip, a little steeper where the advantage is negative."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.train.algorithm import Algorithm

if TYPE_CHECKING:
    from torch import Tensor


def soft_gate(ratio: Tensor, advantages: Tensor, logp: Tensor, objective: ObjectiveConfig) -> Tensor:
    """Return the advantage by the gated ratio, negative."""
    softness = ratio.new_ones(ratio.shape).where(advantages > 0, 1.05)
    return -(4 / softness) * (softness * (ratio - 1)).sigmoid() * advantages


ALGORITHM = Algorithm(soft_gate)
