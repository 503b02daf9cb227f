"""Which answers are spoken in one batch, whoever speaks them: the sound of a batch rounds by its company.

So a run whose sound is made by workers of its own, in pieces, makes the same batches as a run that speaks all answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# At Kimi-Audio's released sizes the prefixes of 16 answers take 2.0 GiB in half precision (benchmarks/speaking.py).
ANSWERS_AT_ONCE = 16
# To report how far all answers are takes a few milliseconds of the sampler.
MOST_REPORTS = 32


def batches_by_length(lengths: Sequence[int], at_once: int) -> list[tuple[int, ...]]:
    """Group answers by number, those of like length together and the longest first; those of no code are in no batch."""
    spoken = sorted((n for n, length in enumerate(lengths) if length), key=lambda n: (-lengths[n], n))
    return [tuple(spoken[start : start + at_once]) for start in range(0, len(spoken), at_once)]


def complete_batches(lengths: Sequence[int], ended: Sequence[bool], at_once: int) -> list[tuple[int, ...]]:
    """Return the batches of `batches_by_length` that are certain while some answers go on, the shortest answers first.

    `lengths` are codes so far. An answer's place is certain once it has ended below all that go on, which only get longer.
    """
    going_on = [length for length, over in zip(lengths, ended, strict=True) if not over]
    least = min(going_on, default=np.inf)
    if at_once > 1 and not least:
        # An answer that goes on may end without a code, and then counts in no batch.
        return []
    certain = {n for n, over in enumerate(ended) if over and (at_once == 1 or lengths[n] < least)}
    # However long the other answers become, they come before the certain ones.
    return [batch for batch in reversed(batches_by_length(lengths, at_once)) if certain.issuperset(batch)]


def report_every(answers: int, at_once: int) -> int:
    """Return after how many more ended answers a sampler reports progress: often enough for batches to be early."""
    return max(1, at_once // 4, answers // MOST_REPORTS)
