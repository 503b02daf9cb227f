"""Which worker did what, and when: the spans of each step, kept in `RUN/timeline.jsonl` for the studio.

Times are those of each machine's own clock: spans of machines whose clocks differ are shifted against each other.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from paras2s.errors import StorageError
from paras2s.policy.types import AnswersSoFar, SamplingEvent
from paras2s.utils.io import append_jsonl, drop_steps_from

FILE = "timeline.jsonl"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Span:
    """One piece of a worker's work: `worker` is its role, process and machine; times are seconds since 1970."""

    worker: str
    work: str
    start_s: float
    end_s: float


class SpanRecorder:
    """Times the pieces of one process's work."""

    def __init__(self, role: str) -> None:
        self.worker = f"{role} {os.getpid()} on {socket.gethostname()}"
        self._spans: list[Span] = []

    @contextmanager
    def span(self, work: str) -> Iterator[None]:
        """Time a block; a block that raises is not recorded."""
        # The clock of the day may jump while the block lasts.
        started, start_s = time.perf_counter(), time.time()
        yield
        self._spans.append(Span(self.worker, work, start_s, start_s + time.perf_counter() - started))

    def sampling(self, events: Generator[SamplingEvent, None, Result]) -> Generator[AnswersSoFar, None, Result]:
        """Time sampling: reading prompts ("prefill"), what is between ("decode"), or all ("sample"); passes progress on."""
        # The clock of the day may jump meanwhile.
        day_s = time.time() - time.perf_counter()
        since = time.perf_counter()
        between = "sample"
        while True:
            try:
                event = next(events)
            except StopIteration as done:
                self._add(between, day_s, since, time.perf_counter())
                result: Result = done.value
                return result
            if isinstance(event, AnswersSoFar):
                yield event
                continue
            now, between = time.perf_counter(), "decode"
            self._add(between, day_s, since, now - event.seconds)
            self._add("prefill", day_s, now - event.seconds, now)
            since = now

    def _add(self, work: str, day_s: float, start: float, end: float) -> None:
        self._spans.append(Span(self.worker, work, day_s + start, day_s + max(start, end)))

    def take(self) -> list[Span]:
        """Return the spans since the last call."""
        spans, self._spans = self._spans, []
        return spans


class Timeline:
    """Keeps the spans of steps in a run's folder. A disk that refuses ends the keeping, and not the run."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._path, self._say, self._refused = folder / FILE, say, False

    def discard_from(self, step: int) -> None:
        """Forget steps that are about to be done again."""
        drop_steps_from(self._path, step)

    def keep(self, step: int, spans: Sequence[Span]) -> None:
        """Add a step's spans, in order of time."""
        if self._refused:
            return
        rows = [
            {"worker": span.worker, "work": span.work, "start_s": round(span.start_s, 3), "end_s": round(span.end_s, 3)}
            for span in sorted(spans, key=lambda span: span.start_s)
        ]
        try:
            append_jsonl(self._path, {"step": step, "spans": rows})
        except StorageError as error:
            self._refused = True
            self._say(f"  {self._path} is not kept from step {step} on: {error}")
