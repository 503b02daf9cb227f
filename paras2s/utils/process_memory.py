"""Memory of a run over all its processes on this machine, Ray and its actors included; shared pages count once."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

EVERY_S = 5.0


def descendants(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants, by /proc; those that end meanwhile are left out."""
    ids, pending = [], [pid]
    while pending:
        current = pending.pop()
        ids.append(current)
        try:
            for task in os.listdir(f"/proc/{current}/task"):
                pending += map(int, Path(f"/proc/{current}/task/{task}/children").read_text(encoding="utf-8").split())
        except OSError:
            continue
    return ids


def proportional_gib(pid: int) -> float:
    """Return a process's proportional memory (PSS) in GiB: its own pages and its part of shared ones; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 2**20


class MemoryWatch:
    """Sampler of the memory every few seconds inside a `with` block. `peak_gib` is None without /proc."""

    def __init__(self) -> None:
        self.peak_gib: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        if Path("/proc/self/smaps_rollup").is_file():
            self._sample()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        if self.peak_gib is not None:
            self._sample()

    def _watch(self) -> None:
        while not self._stopped.wait(EVERY_S):
            self._sample()

    def _sample(self) -> None:
        now_gib = sum(map(proportional_gib, descendants(os.getpid())))
        self.peak_gib = max(now_gib, self.peak_gib or 0.0)
