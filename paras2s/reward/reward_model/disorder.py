"""Answers out of order: the same codes as a good answer, or nearly, and no answer. A mean over codes cannot tell them apart.

Some kinds are taught to a reward model as worth 1; the others are kept out of its training, and only asked about.
"""

from __future__ import annotations

import numpy as np

TAUGHT = ("shuffled", "twice")
KEPT_OUT = ("reversed", "slow", "stutter", "half", "halves_swapped")


def disordered(kind: str, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the codes [T, K] of an answer out of order; T is at least 2.

    `shuffled` in pieces of one to three steps (too short for a word); said `twice`; `reversed` step by step; `slow` says
    each step twice. These may well be answers still: `stutter` repeats two to six steps twice to four times; `half` is the
    first half alone; `halves_swapped` begins with the second.
    """
    steps = len(codes)
    if kind == "shuffled":
        pieces = np.array_split(np.arange(steps), max(2, steps // int(rng.integers(1, 4))))
        order = rng.permutation(len(pieces))
        while (np.diff(order) == 1).all():
            order = rng.permutation(len(pieces))
        return codes[np.concatenate([pieces[index] for index in order])]
    if kind == "twice":
        return np.concatenate([codes, codes])
    if kind == "stutter":
        size = min(int(rng.integers(2, 7)), steps)
        start = int(rng.integers(0, steps - size + 1))
        repeated = [codes[start : start + size]] * int(rng.integers(2, 5))
        return np.concatenate([codes[:start], *repeated, codes[start + size :]])
    if kind == "reversed":
        return codes[::-1].copy()
    if kind == "slow":
        return np.repeat(codes, 2, axis=0)
    if kind == "half":
        return codes[: steps // 2]
    if kind == "halves_swapped":
        return np.concatenate([codes[steps // 2 :], codes[: steps // 2]])
    raise ValueError(f"unknown kind {kind!r}; there are {', '.join((*TAUGHT, *KEPT_OUT))}")
