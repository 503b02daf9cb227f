"""Work over this machine's cores, in processes of their own (Piper, WORLD and Whisper hold the GIL).

`map_chunks` is for work whose results fit in memory; its processes stay for the next work. `stream_chunks` is for work of
any length: results leave in order as they come.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextvars import ContextVar
from itertools import islice
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

from paras2s.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")
# Torch's number of threads is a thread's own, but a new thread begins with the number set last: whoever changes it for a while
# holds this.
TORCH_THREADS = threading.Lock()
# Libraries read these as they are loaded, which in a worker is after `_begin`.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Chunks of a stream that may be pending, by worker: a slow one neither stops the others nor lets results pile up.
AHEAD = 4
DIED = "a worker process died (out of memory?); the same command continues from the cache"
# A pool takes seconds to start and to load its models, in which this process measures as many clips as these.
FEW_CLIPS = 8
# Whether this process does the work of a worker, with a worker's one thread, so that its floats are a worker's.
_as_worker: ContextVar[bool] = ContextVar("_as_worker", default=False)


def cores() -> int:
    """Return how many cores this process may use: fewer than the machine has, under `taskset` or in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def native_threads(most: int = 2) -> int:
    """Return the threads for a native library's model: one in a worker process, since every core has a worker already."""
    return 1 if multiprocessing.parent_process() is not None or _as_worker.get() else min(most, cores())


def _begin(parent: int) -> None:
    """Set up a worker process: one thread for the libraries that it loads, and an end with the parent's end."""
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    # Ctrl-C reaches every process of the terminal; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # A worker whose parent was killed would wait for work for ever, and hold a core and its memory.
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _WorkerProcess(SpawnProcess):
    """A spawned process that does not run the user's script again: the work is this package's and needs nothing of it.

    Without it a script without `if __name__ == "__main__"` starts workers in every worker.
    """

    @staticmethod
    def _Popen(process: Any) -> Any:
        main = vars(sys.modules["__main__"])
        with _hiding:
            hidden: dict[str, Any] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
            main["__spec__"] = None
            try:
                return SpawnProcess._Popen(process)
            finally:
                main.update(hidden)


class _WorkerContext(SpawnContext):
    Process = _WorkerProcess


# Two threads may start workers at once.
_hiding = threading.Lock()


def _start(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=_WorkerContext(), initializer=_begin, initargs=(os.getpid(),))


_held: list[ProcessPoolExecutor] = []
# Two threads may have work at once.
_lock = threading.Lock()


def _workers() -> ProcessPoolExecutor:
    """Start the worker processes of this program when first needed, and keep them with the models they have loaded."""
    with _lock:
        if not _held:
            _held.append(_start(cores()))
        return _held[0]


def end_workers() -> None:
    """End the kept worker processes, to free their memory; the next work starts new ones."""
    with _lock:
        while _held:
            _held.pop().shutdown(cancel_futures=True)


def map_chunks(
    work: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    chunk: int,
    on_progress: Callable[[int, int], None] | None = None,
    few: int = 0,
) -> list[Result]:
    """Run `work` on chunks of at most `chunk` items, as many for every worker, and return results in the order of
    items; `on_progress(done, total)` counts items. At most `few` items start no process, and are done in this one.

    Raises:
        DataError: a worker process was killed from outside.
    """
    if len(items) <= few and not _held:
        return _work_here(work, items, on_progress)
    size = even_size(len(items), chunk, cores())
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
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
        raise DataError(DIED) from error
    finally:
        for future in futures:
            future.cancel()
    return [result for number in range(len(chunks)) for result in results[number]]


def _work_here(
    work: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item], on_progress: Callable[[int, int], None] | None
) -> list[Result]:
    token = _as_worker.set(True)
    try:
        results = work(items) if items else []
    finally:
        _as_worker.reset(token)
    if on_progress:
        on_progress(len(items), len(items))
    return results


def even_size(count: int, most: int, workers: int) -> int:
    """Choose the size of chunks of `count` items, at most `most`, that keeps all workers busy to the end."""
    rounds = math.ceil(count / (most * workers))
    return math.ceil(count / max(1, rounds * workers)) or 1


def in_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last may be shorter."""
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


def stream_chunks(
    work: Callable[[list[Item]], list[Result]], items: Iterable[Item], size: int, workers: int
) -> Iterator[tuple[list[Item], list[Result]]]:
    """Yield every chunk with what `work` returns for it, in order, as they come. Raises DataError: a worker was killed."""
    pending: deque[tuple[list[Item], Future[list[Result]]]] = deque()
    with _start(workers) as pool:
        try:
            for chunk in in_chunks(items, size):
                pending.append((chunk, pool.submit(work, chunk)))
                if len(pending) == AHEAD * workers:
                    first, future = pending.popleft()
                    yield first, future.result()
            while pending:
                first, future = pending.popleft()
                yield first, future.result()
        except BrokenProcessPool as error:
            raise DataError(DIED) from error
        finally:
            for _, future in pending:
                future.cancel()
