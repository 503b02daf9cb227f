"""Answers that have ended while others of their share are still sampled, in the batches that a speak worker gets.

Numbers count a share's N answers, those of a query side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from paras2s.policy.base import Policy
from paras2s.policy.speaking import complete_batches
from paras2s.policy.types import AnswersSoFar
from paras2s.rollout.timeline import Span
from paras2s.types import Rollout


@dataclass(frozen=True)
class EndedAnswers:
    """One batch: which answers of the share, their codes [T, K] each, and their seeds."""

    numbers: tuple[int, ...]
    codes: tuple[np.ndarray, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class SampledShare:
    """All rollouts of a share, without their sound, and the worker's spans; behind it no more batches come."""

    rollouts: list[Rollout]
    spans: list[Span]


class EndedBatches:
    """Cuts a share's answers into batches as they end: the same batches as for a policy that has all of them at once."""

    def __init__(self, policy: Policy, seeds: Sequence[int]) -> None:
        self._policy, self._seeds = policy, seeds
        self._given: set[tuple[int, ...]] = set()

    def as_they_end(
        self, reports: Generator[AnswersSoFar, None, list[Rollout]]
    ) -> Generator[EndedAnswers, None, list[Rollout]]:
        """Yield every batch once, as soon as it is certain; return the rollouts."""
        while True:
            try:
                report = next(reports)
            except StopIteration as done:
                rollouts: list[Rollout] = done.value
                codes = [answer for rollout in rollouts for answer in rollout.codes]
                yield from self._batches(codes, [True] * len(codes))
                return rollouts
            codes = [self._policy.decode_codes(report.blocks, number) for number in range(len(report.ended))]
            yield from self._batches(codes, report.ended.tolist())

    def _batches(self, codes: Sequence[np.ndarray], ended: Sequence[bool]) -> Generator[EndedAnswers, None, None]:
        for batch in complete_batches([len(answer) for answer in codes], ended, self._policy.spoken_at_once):
            if batch not in self._given:
                self._given.add(batch)
                yield EndedAnswers(batch, tuple(codes[n] for n in batch), tuple(self._seeds[n] for n in batch))


def waves_of(
    rollouts: Sequence[Rollout], numbers: Sequence[tuple[int, ...]], spoken: Sequence[Sequence[np.ndarray]]
) -> list[tuple[np.ndarray, ...]]:
    """Return the sound of each rollout's answers from batches of it; those in no batch are silent."""
    edges = list(itertools.accumulate((rollout.size for rollout in rollouts), initial=0))
    waves = [np.zeros(0, dtype=np.float32)] * edges[-1]
    for batch, sounds in zip(numbers, spoken, strict=True):
        for number, wave in zip(batch, sounds, strict=True):
            waves[number] = wave
    return [tuple(waves[start:stop]) for start, stop in itertools.pairwise(edges)]
