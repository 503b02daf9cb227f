"""A stream of work through worker processes: results leave in order as they come, and memory does not grow with the input."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from paras2s.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")
# Chunks that may wait for an earlier one, by worker: one slow chunk neither stops the others nor lets results pile up.
AHEAD = 4
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def in_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields lists of `size` items; the last may be shorter."""
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


def stream_chunks(
    work: Callable[[list[Item]], list[Result]], items: Iterable[Item], size: int, workers: int
) -> Iterator[tuple[list[Item], list[Result]]]:
    """Yields every chunk of items with what `work` returns for it, in order, from `workers` processes of one thread each.

    Raises:
        DataError: a worker process was killed from outside; an error of `work` is raised as it is.
    """
    todo = enumerate(in_chunks(items, size))
    pending: dict[int, list[Item]] = {}
    finished: dict[int, list[Result]] = {}
    pool = _start(work, workers)
    idle, busy = list(pool), dict[Connection, int]()
    expected = 0
    try:
        while True:
            while idle and len(pending) < AHEAD * workers and (new := next(todo, None)) is not None:
                number, chunk = new
                pending[number] = chunk
                busy[wire := idle.pop()] = number
                _send(wire, chunk)
            if not pending:
                return
            for wire in _ready(busy):
                finished[busy.pop(wire)] = _receive(wire)
                idle.append(wire)
            while expected in finished:
                yield pending.pop(expected), finished.pop(expected)
                expected += 1
    finally:
        for wire, process in pool.items():
            wire.close()
            process.terminate()
            process.join()


def _ready(busy: dict[Connection, int]) -> list[Connection]:
    return [one for one in wait(list(busy)) if isinstance(one, Connection)]


DIED = "a worker process died (out of memory?); the same command continues from the cache"


def _send(wire: Connection, chunk: list[Any]) -> None:
    try:
        wire.send(chunk)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise DataError(DIED) from error


def _receive(wire: Connection) -> list[Any]:
    try:
        result, failure = wire.recv()
    except (EOFError, ConnectionResetError) as error:
        raise DataError(DIED) from error
    if failure is not None:
        raise failure
    return list(result)


def _start(work: Callable[[list[Any]], list[Any]], workers: int) -> dict[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    pool: dict[Connection, SpawnProcess] = {}
    # Before the start: libraries read the number of threads as they are loaded.
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        for _ in range(workers):
            wire, inside = context.Pipe()
            process = context.Process(target=_serve, args=(inside, work), daemon=True)
            process.start()
            # Else the wire would stay open when the worker dies, and `recv` would wait for ever.
            inside.close()
            pool[wire] = process
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return pool


def _serve(wire: Connection, work: Callable[[list[Any]], list[Any]]) -> None:
    """Works on chunks until the other end of the wire is closed, as it is when the parent is killed."""
    while True:
        try:
            chunk = wire.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[Any, Exception | None] = work(chunk), None
        except Exception as error:
            answer = None, error
        wire.send(answer)
