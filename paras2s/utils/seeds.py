"""Seeds: the random streams of a run's seed, and seeds derived from values, so that the same inputs give the same draws.

A purpose draws from `default_rng([seed, Stream.X, ...])`. Answers are drawn by `answer_seeds(seed, step, ...)`; answers that
are sampled outside of a step of training count their steps from one of `FirstStep`. The numbers must never change: a run that
is resumed or repeated draws from them again.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum


class Stream(IntEnum):
    """The second number of a generator's seed, by purpose.

    Three purposes have 9: further numbers or another kind of draw set them apart.
    """

    WARMUP_ORDER = 1
    WARMUP_AUGMENT = 2
    ALIGN_ORDER = 3
    ALIGN_AUGMENT = 5
    REWARD_ORDER = 7
    REWARD_DISORDER = 8
    REWARD_NOISE = 9
    # Followed by the step and the round of resampling.
    REPLACEMENTS = 9
    REFRESH_KEPT_OUT = 9
    REFRESH_NEWEST = 10
    OMNI_ORDER = 11
    ANCHOR_ORDER = 12
    ANCHOR_AUGMENT = 13
    WARMUP_STYLE = 14
    CURRICULUM = 15


class FirstStep(IntEnum):
    """The number of the first step of answers that no step of training samples; no run makes a million updates."""

    PREFERENCES = 1_000_000
    PREFERENCES_HELD_OUT = 2_000_000
    EVALUATION = 3_000_000
    # Round n of resampling in step s counts as step s + n * 4_000_000.
    RESAMPLING = 4_000_000
    # The same number, for answers that no run learns from.
    BENCHMARK = 4_000_000


def seed_of(*parts: object) -> int:
    """Return a seed of 32 bits from the values' text form."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")
