"""When the last piece of work is done that waits for one of several places: calls of a judge, answers to be spoken."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from paras2s.policy.speaking import ANSWERS_AT_ONCE


def calls_seconds(arrive_s: Sequence[float], concurrency: int, latency_s: float) -> float:
    """Return when the last call is answered, each made once its answer exists and a slot is free."""
    slots = [0.0] * min(concurrency, max(1, len(arrive_s)))
    last = 0.0
    for arrived in sorted(arrive_s):
        ends = max(heapq.heappop(slots), arrived) + latency_s
        heapq.heappush(slots, ends)
        last = max(last, ends)
    return last


@dataclass(frozen=True)
class SpeechBatch:
    """Answers that a device speaks together: when they have been sampled, and the seconds that it takes."""

    ready_s: float
    seconds: float

    def times(self, ready: float, seconds: float) -> SpeechBatch:
        """Return the batch with both multiplied."""
        return SpeechBatch(ready * self.ready_s, seconds * self.seconds)


def batches_as_they_end(ends_s: Sequence[float], sound_s: Sequence[float], each_s: float) -> list[SpeechBatch]:
    """Return batches of answers that end at `ends_s`, with sound of `sound_s`, at `each_s` a second of sound."""
    ordered = sorted(zip(ends_s, sound_s, strict=True))
    batches = [ordered[first : first + ANSWERS_AT_ONCE] for first in range(0, len(ordered), ANSWERS_AT_ONCE)]
    return [SpeechBatch(batch[-1][0], each_s * sum(sound for _, sound in batch)) for batch in batches]


def speak(batches: Sequence[SpeechBatch], free: list[float], since_s: float = 0.0) -> list[tuple[float, float]]:
    """Return when each batch begins and ends, spoken by the first free device of the heap `free`, which is updated."""
    turns = []
    for batch in batches:
        began = max(free[0], since_s + batch.ready_s)
        heapq.heapreplace(free, began + batch.seconds)
        turns.append((began, began + batch.seconds))
    return turns


def spoken_seconds(batches: Sequence[SpeechBatch], devices: int) -> float:
    """Return when the last batch has been spoken by devices that do nothing else."""
    return max((ends for _, ends in speak(batches, [0.0] * devices)), default=0.0)
