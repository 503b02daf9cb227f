"""Work in processes: order of results, errors, a killed worker, processes that stay. Not covered: running out of memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from paras2s.errors import DataError
from paras2s.utils.process_pool import cores, end_workers, map_chunks


def doubled(items: Sequence[int]) -> list[int]:
    return [2 * item for item in items]


def refused(items: Sequence[int]) -> list[int]:
    raise ValueError(f"not {items[0]}")


def killed(items: Sequence[int]) -> list[int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return list(items)


def process_ids(items: Sequence[int]) -> list[int]:
    return [os.getpid() for _ in items]


def threads_of_torch(items: Sequence[int]) -> list[str]:
    return [os.environ["OMP_NUM_THREADS"] for _ in items]


def test_results_are_in_the_order_of_items_and_progress_counts_them() -> None:
    seen: list[tuple[int, int]] = []
    assert map_chunks(doubled, range(10), 3, lambda done, total: seen.append((done, total))) == [2 * n for n in range(10)]
    assert seen[-1] == (10, 10)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_no_work_starts_no_process() -> None:
    assert map_chunks(doubled, [], 3) == []


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
