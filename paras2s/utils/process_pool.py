"""Work over this machine's cores, in processes of their own (Piper, WORLD and Whisper hold the GIL)."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from paras2s.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Returns how many cores this process may use: fewer than the machine has, under `taskset` or in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def native_threads(most: int = 2) -> int:
    """Returns the threads for a native library's model: one in a worker process, since every core has a worker already."""
    return 1 if multiprocessing.parent_process() is not None else min(most, cores())


def _watch_parent(parent: int) -> None:
    # A worker whose parent was killed would wait for work for ever, and hold a core and its memory.
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def map_chunks(
    work: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    chunk: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """Runs `work` on chunks of items and returns results in the order of items; `on_progress(done, total)` counts items.

    Raises:
        DataError: a worker process was killed from outside.
    """
    chunks = [items[start : start + chunk] for start in range(0, len(items), chunk)]
    if not chunks:
        return []
    results: dict[int, list[Result]] = {}
    done = 0
    workers = min(cores(), len(chunks))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_watch_parent, initargs=(os.getpid(),)) as pool:
        futures = {pool.submit(work, part): number for number, part in enumerate(chunks)}
        for future in as_completed(futures):
            try:
                results[futures[future]] = future.result()
            except BrokenProcessPool as error:
                raise DataError("a worker process died (out of memory?); the same command continues from the cache") from error
            done += len(chunks[futures[future]])
            if on_progress:
                on_progress(done, len(items))
    return [result for number in range(len(chunks)) for result in results[number]]
