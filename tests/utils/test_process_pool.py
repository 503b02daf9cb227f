"""Work in processes, at once and as a stream: order, bounds, errors, a killed worker, processes that stay.

Not covered: running out of memory, and how fast a stream is (benchmarks/blueprint_scale.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from paras2s.errors import AudioError, DataError
from paras2s.utils import process_pool
from paras2s.utils.process_pool import AHEAD, cores, end_workers, even_size, in_chunks, map_chunks, stream_chunks


def doubled(items: Sequence[int]) -> list[int]:
    return [2 * item for item in items]


def refused(items: Sequence[int]) -> list[int]:
    raise ValueError(f"not {items[0]}")


def killed(items: Sequence[int]) -> list[int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return list(items)


def process_ids(items: Sequence[int]) -> list[int]:
    return [os.getpid() for _ in items]


def process_and_threads(items: Sequence[int]) -> list[tuple[int, int]]:
    return [(os.getpid(), process_pool.native_threads()) for _ in items]


def threads_of_torch(items: Sequence[int]) -> list[str]:
    return [os.environ["OMP_NUM_THREADS"] for _ in items]


def test_results_are_in_the_order_of_items_and_progress_counts_them() -> None:
    seen: list[tuple[int, int]] = []
    assert map_chunks(doubled, range(10), 3, lambda done, total: seen.append((done, total))) == [2 * n for n in range(10)]
    assert seen[-1] == (10, 10)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize(
    ("count", "most", "workers", "size"),
    [
        # By hand: 116 in chunks of 48 would leave one of two workers 68 and the other 48.
        (116, 48, 2, 29),
        (56, 48, 2, 28),
        (96, 48, 2, 48),
        (97, 48, 2, 25),
        (8, 48, 2, 4),
        (5, 1, 2, 1),
        (1, 48, 4, 1),
        (0, 48, 2, 1),
    ],
)
def test_every_worker_gets_as_much(count: int, most: int, workers: int, size: int) -> None:
    assert even_size(count, most, workers) == size


def test_no_work_starts_no_process() -> None:
    assert map_chunks(doubled, [], 3) == []


def test_few_items_start_no_process_and_are_done_with_a_workers_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "_held", [])
    monkeypatch.setattr(process_pool, "cores", lambda: 8)
    seen: list[tuple[int, int]] = []
    work = partial(map_chunks, process_and_threads, on_progress=lambda *now: seen.append(now), few=3)
    assert work([1, 2, 3], 1) == [(os.getpid(), 1)] * 3
    assert seen == [(3, 3)]
    assert process_pool._held == []
    assert process_pool.native_threads() == 2
    assert os.getpid() not in {process for process, _ in work(range(4), 1)}
    end_workers()


def test_a_script_that_is_not_guarded_starts_workers_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\nfrom paras2s.utils.process_pool import map_chunks\nprint(map_chunks(sorted, [2, 1, 3, 0], 2))\n"
        "print(__spec__, __file__[-9:])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "once\n[1, 2, 0, 3]\nNone script.py\n"


def test_an_error_of_the_work_is_raised_as_itself() -> None:
    with pytest.raises(ValueError, match="not 4"):
        map_chunks(refused, [4], 1)


def test_a_killed_worker_is_an_error_and_the_next_work_has_new_ones() -> None:
    with pytest.raises(DataError, match="a worker process died"):
        map_chunks(killed, range(3), 1)
    assert map_chunks(doubled, [1, 2], 1) == [2, 4]


def test_processes_stay_with_what_they_have_loaded_and_have_one_thread() -> None:
    end_workers()
    first, second = (set(map_chunks(process_ids, range(20), 1)) for _ in range(2))
    assert second <= first or first <= second
    assert len(first | second) <= cores()
    assert set(map_chunks(threads_of_torch, range(4), 1)) == {"1"}


# Streams.

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
