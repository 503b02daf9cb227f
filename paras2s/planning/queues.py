"""When the last piece of work is done that waits for one of several places: calls of a judge, answers to be spoken."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from paras2s.policy.speaking import ANSWERS_AT_ONCE


def calls_seconds(arrive_s: Sequence[float], concurrency: int, latency_s: float) -> float:
    """When the last of the calls is answered, each made when its answer is there and one of the slots is free."""
    slots = [0.0] * min(concurrency, max(1, len(arrive_s)))
    last = 0.0
    for arrived in sorted(arrive_s):
        ends = max(heapq.heappop(slots), arrived) + latency_s
        heapq.heappush(slots, ends)
        last = max(last, ends)
    return last


def spoken_seconds(ends_s: Sequence[float], sound_s: Sequence[float], devices: int, each_s: float) -> float:
    """When the last answer has been spoken by devices of their own, in batches of answers that ended one after the other.

    `ends_s` is when each was sampled, `sound_s` how long it is, and `each_s` what a second of sound takes.
    """
    ordered = sorted(zip(ends_s, sound_s, strict=True))
    free, last = [0.0] * devices, 0.0
    for first in range(0, len(ordered), ANSWERS_AT_ONCE):
        batch = ordered[first : first + ANSWERS_AT_ONCE]
        ends = max(heapq.heappop(free), batch[-1][0]) + each_s * sum(sound for _, sound in batch)
        heapq.heappush(free, ends)
        last = max(last, ends)
    return last
