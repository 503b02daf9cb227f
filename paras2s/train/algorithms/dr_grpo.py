"""Dr. GRPO (Liu et al., 2025): GRPO's clipped ratio, divided by the longest length allowed, so that length has no bias."""

from __future__ import annotations

from paras2s.train.algorithm import Algorithm
from paras2s.train.algorithms.grpo import clipped

ALGORITHM = Algorithm(clipped, average="length")
