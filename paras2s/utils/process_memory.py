"""How much memory a run takes over all its processes on this machine, Ray and its actors among them, shared pages once."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

EVERY_S = 5.0


def descendants(pid: int) -> list[int]:
    """A process and all below it, by /proc; those that end meanwhile are left out."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                waiting += map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return found


def proportional_gib(pid: int) -> float:
    """A process's share of memory: its own pages, and of each shared page its part; 0 for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 2**20


class MemoryWatch:
    """Looks every few seconds while the block lasts. `peak_gib` is None where there is no /proc."""

    def __init__(self) -> None:
        self.peak_gib: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        if Path("/proc/self/smaps_rollup").is_file():
            self._look()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self.peak_gib is not None:
            self._look()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        now_gib = sum(map(proportional_gib, descendants(os.getpid())))
        self.peak_gib = max(now_gib, self.peak_gib or 0.0)
