"""A stream of chunks through worker processes: order, bounds, errors, a worker that dies.

Not covered: how fast it is (benchmarks/blueprint_scale.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from paras2s.errors import AudioError, DataError
from paras2s.utils.process_stream import AHEAD, in_chunks, stream_chunks

START = list(range(7))


def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


def identify(numbers: list[int]) -> list[tuple[int, str]]:
    return [(os.getpid(), os.environ["OMP_NUM_THREADS"]) for _ in numbers]


def fail_at(wrong: int, numbers: list[int]) -> list[int]:
    if wrong in numbers:
        raise AudioError(f"not {wrong}")
    return numbers


def die_at(wrong: int, numbers: list[int]) -> list[int]:
    if wrong in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return numbers


def test_chunks_have_their_size_and_the_last_is_shorter() -> None:
    assert list(in_chunks(START, 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(in_chunks([], 3)) == []


def test_results_leave_in_order_beside_their_items() -> None:
    found = list(stream_chunks(double, START, 2, 2))
    assert found == [([0, 1], [0, 2]), ([2, 3], [4, 6]), ([4, 5], [8, 10]), ([6], [12])]


def test_workers_have_one_thread_and_this_process_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    rows = [row for _, found in stream_chunks(identify, START, 1, 2) for row in found]
    assert os.getpid() not in {process for process, _ in rows}
    assert {threads for _, threads in rows} == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_no_more_is_taken_from_the_source_than_may_be_pending() -> None:
    taken = []

    def source() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    stream = stream_chunks(double, source(), 1, 1)
    next(stream)
    assert len(taken) <= AHEAD + 1
    stream.close()


def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    stream = stream_chunks(partial(fail_at, 5), START, 2, 2)
    with pytest.raises(AudioError, match="not 5"):
        list(stream)


def test_a_worker_that_is_killed_ends_the_stream_with_a_reason() -> None:
    with pytest.raises(DataError, match="continues from the cache"):
        list(stream_chunks(partial(die_at, 5), START, 2, 2))
