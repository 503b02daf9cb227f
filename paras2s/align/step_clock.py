"""The clock of the loop: the seconds of each step for the log, and all workers' spans for the timeline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from paras2s.rollout.orchestrator import Orchestrator
from paras2s.rollout.phase_times import EVALUATE, logged_seconds
from paras2s.rollout.timeline import Span, SpanRecorder, Timeline
from paras2s.run import Run

Phase = Literal["answers", "update", "sync", "evaluation", "finish"]
# The names of the phases in the timeline.
WORK: dict[Phase, str] = {
    "answers": "wait for answers",
    "update": "wait for the update",
    "sync": "keep rollouts",
    "evaluation": EVALUATE,
    "finish": "log and checkpoint",
}


class StepClock:
    """Times the phases of each step. The timeline of steps that are about to be done again is discarded."""

    def __init__(self, run: Run, workers: Orchestrator) -> None:
        self._workers, self._timeline, self._recorder = workers, Timeline(run.folder, run.say), SpanRecorder("loop")
        self._timeline.discard_from(workers.version)
        self._started = 0.0
        self._seconds: dict[str, float] = {}
        self._spans: list[Span] = []

    def steps(self, first: int, stop: int) -> Iterator[int]:
        """Yield the numbers of the steps; at the end of each its spans go into the timeline."""
        for step in range(first, stop):
            self._started, self._seconds, self._spans = time.perf_counter(), {}, []
            yield step
            self._timeline.keep(step, [*self._recorder.take(), *self._spans, *self._workers.take_spans()[0]])

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Time a phase of the current step."""
        started = time.perf_counter()
        with self._recorder.span(WORK[name]):
            yield
        self._seconds[f"seconds_{name}"] = time.perf_counter() - started
        if name == "sync":
            # What workers do from now on, for an evaluation, is no part of the step's work.
            self._spans, encoded = self._workers.take_spans()
            self._seconds |= logged_seconds(self._spans, encoded)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of the current step so far: of each phase, of each kind of the workers' work, and in all."""
        return self._seconds | {"seconds": time.perf_counter() - self._started}
