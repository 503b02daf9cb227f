"""The order in which training takes its rows: all of them once an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np


def rows_of_step(step: int, per_step: int, available: int, seed: Sequence[int]) -> list[int]:
    """Return the rows of a step, each once an epoch; they depend on seed and step alone, so that a run can be resumed."""
    start, stop = step * per_step, (step + 1) * per_step
    rows: list[int] = []
    for epoch in range(start // available, (stop - 1) // available + 1):
        first = epoch * available
        rows += _order(tuple(seed), epoch, available)[max(start - first, 0) : stop - first].tolist()
    return rows


# A step may cross from one epoch into the next.
@lru_cache(maxsize=4)
def _order(seed: tuple[int, ...], epoch: int, available: int) -> np.ndarray:
    return np.random.default_rng([*seed, epoch]).permutation(available)
