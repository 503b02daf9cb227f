"""Work over this machine's cores, in processes of their own (Piper, WORLD and Whisper hold the GIL)."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
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


def _begin(parent: int) -> None:
    """The start of a worker process: one thread for torch, should it be loaded, and an end with the parent's end."""
    os.environ["OMP_NUM_THREADS"] = "1"

    # A worker whose parent was killed would wait for work for ever, and hold a core and its memory.
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.lru_cache(maxsize=1)
def _workers() -> ProcessPoolExecutor:
    """The worker processes of this program: started when there is work, and kept with the models they have loaded."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(cores(), mp_context=context, initializer=_begin, initargs=(os.getpid(),))


def end_workers() -> None:
    """Ends the worker processes, to free their memory; the next work starts new ones."""
    if _workers.cache_info().currsize:
        _workers().shutdown(cancel_futures=True)
        _workers.cache_clear()


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
    results: dict[int, list[Result]] = {}
    done = 0
    futures: dict[Future[list[Result]], int] = {}
    try:
        futures = {_workers().submit(work, part): number for number, part in enumerate(chunks)}
        for future in as_completed(futures):
            results[futures[future]] = future.result()
            done += len(chunks[futures[future]])
            if on_progress:
                on_progress(done, len(items))
    except BrokenProcessPool as error:
        end_workers()
        raise DataError("a worker process died (out of memory?); the same command continues from the cache") from error
    finally:
        for future in futures:
            future.cancel()
    return [result for number in range(len(chunks)) for result in results[number]]
