"""Shares of a step whose answers are spoken by workers of their own, while others of the share are still sampled.

    rollout worker --batches of ended answers--> here --> speak workers --sound--> reward worker

Codes come here, since they are small, and go on to the speak worker with the least to do; sound goes straight to its judge.
So a lost speak worker's batches are spoken again, and a lost rollout worker's share is sampled again. Nothing is forwarded
by itself: whoever waits here, for answers or for an update, forwards meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray

from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout.ended_answers import EndedAnswers, SampledShare, waves_of
from paras2s.rollout.timeline import Span
from paras2s.rollout.worker_group import LOST, Call, Worker, WorkerGroup, check_tries, results
from paras2s.types import Rollout

# Batches at a speak worker: it speaks the first while the second waits, so that it is never idle. Others wait in the driver,
# for the speak worker that is free first.
BATCHES_AT_ONCE = 2


def least_busy(batches: Sequence[int], at_once: int = BATCHES_AT_ONCE) -> int | None:
    """Return the number of the speak worker that gets the next batch, from how many each has; None: it waits here."""
    least = min(range(len(batches)), key=lambda n: batches[n], default=None)
    return None if least is None or batches[least] >= at_once else least


class SpokenShare:
    """One share: sampled by one worker, spoken by any, scored in parts."""

    def __init__(
        self,
        samplers: WorkerGroup,
        judges: WorkerGroup,
        sample: Callable[[Any], Any],
        parts: Sequence[tuple[slice, Sequence[RewardQuestion]]],
    ) -> None:
        self._samplers, self._judges, self._sample, self._parts = samplers, judges, sample, parts
        self._tries = 0
        self.scored: list[Call] | None = None
        self._start()

    def _start(self) -> None:
        """Sample from the beginning; what a lost worker gave before may be of other codes than what comes now."""
        self._worker = self._samplers.next()
        self._tries += 1
        self._stream = self._sample(self._worker.actor)
        self.sampled: SampledShare | None = None
        self.waiting: deque[EndedAnswers] = deque()
        self.spoken: list[tuple[EndedAnswers, Call]] = []
        self._settled: dict[Call, list[Span]] = {}

    def receive(self) -> None:
        """Take the batches that have come."""
        while self.sampled is None and ray.wait([self._stream], timeout=0)[0]:
            try:
                item = ray.get(next(self._stream))
            except LOST as error:
                self._samplers.drop(self._worker)
                check_tries(self._samplers, self._tries, error)
                self._start()
            else:
                if isinstance(item, SampledShare):
                    self.sampled = item
                else:
                    self.waiting.append(item)

    def settle(self) -> None:
        """Note the batches that have been spoken; give a lost worker's batches to another."""
        for call in self.under_way:
            if ray.wait([call.refs[1]], timeout=0)[0]:
                try:
                    self._settled[call] = ray.get(call.refs[1])
                except LOST as error:
                    call.retry(error)

    @property
    def under_way(self) -> list[Call]:
        """The batches that a speak worker has."""
        return [call for _, call in self.spoken if call not in self._settled]

    def speak_next(self, speakers: WorkerGroup, worker: Worker | None) -> None:
        """Give the batch that has waited longest to a speak worker."""
        answers = self.waiting.popleft()

        def make(actor: Any) -> Any:
            return actor.speak.options(num_returns=2).remote(answers)

        self.spoken.append((answers, Call(speakers, make, to=worker)))

    def score(self) -> None:
        """Send the share to the judges, once all of it is sampled and given to speak workers."""
        if self.sampled is not None and not self.waiting and self.scored is None:
            rollouts = ray.put(self.sampled.rollouts)
            self.scored = [self._score(rollouts, part, questions) for part, questions in self._parts]

    def _score(self, rollouts: Any, part: slice, questions: Sequence[RewardQuestion]) -> Call:
        assert self.sampled is not None
        group_size = self.sampled.rollouts[0].size
        answers_of_part = range(part.start * group_size, part.stop * group_size)
        needed = [
            (answers.numbers, call) for answers, call in self.spoken if any(n in answers_of_part for n in answers.numbers)
        ]
        numbers = [batch for batch, _ in needed]

        def make(actor: Any) -> Any:
            sounds = [call.refs[0] for _, call in needed]
            return actor.score_spoken.options(num_returns=2).remote(rollouts, part, questions, numbers, *sounds)

        return Call(self._judges, make, reads=[call for _, call in needed])

    @property
    def complete(self) -> bool:
        """Whether all is spoken, and the judges have it."""
        return self.scored is not None and not self.under_way

    def awaited(self) -> list[Any]:
        """Return the references that `receive` and `settle` wait for."""
        stream = [self._stream] if self.sampled is None else []
        return [*stream, *(call.refs[1] for call in self.under_way)]

    @property
    def rollouts(self) -> list[Rollout]:
        """The share's rollouts, without sound."""
        assert self.sampled is not None
        return self.sampled.rollouts

    @property
    def spans(self) -> list[Span]:
        """Returns the spans of sampling and speaking."""
        assert self.sampled is not None
        return [*self.sampled.spans, *(span for spans in self._settled.values() for span in spans)]

    def waves(self) -> list[tuple[np.ndarray, ...]]:
        """Return the sound of each rollout's answers."""
        return waves_of(
            self.rollouts, [answers.numbers for answers, _ in self.spoken], results([call for _, call in self.spoken])
        )


def forward(shares: Sequence[SpokenShare], speakers: WorkerGroup) -> None:
    """Forward all results since the last call, the oldest share first; wait for nothing."""
    for share in shares:
        share.receive()
        share.settle()
    for share in shares:
        while share.waiting:
            at = [call.worker for other in shares for call in other.under_way]
            chosen = least_busy([sum(worker is speaker for worker in at) for speaker in speakers.workers])
            if chosen is None and speakers.workers:
                break
            # Where all are lost, the group waits for the first that starts.
            share.speak_next(speakers, None if chosen is None else speakers.workers[chosen])
        share.score()
