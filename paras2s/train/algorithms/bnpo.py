"""BNPO, the loss of DAPO (Yu et al., 2025): GRPO's clipped ratio, averaged over all tokens of the batch."""

from __future__ import annotations

from paras2s.train.algorithm import Algorithm
from paras2s.train.algorithms.grpo import clipped

ALGORITHM = Algorithm(clipped, average="batch")
