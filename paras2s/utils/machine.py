"""The machine in a phrase."""

from __future__ import annotations

import platform
from pathlib import Path

from paras2s.utils.process_pool import cores


def describe_machine() -> str:
    """Return the cores that this process may use, the processor's name and the memory, as far as the system tells them."""
    return f"{cores()} cores of {_processor()}{_memory()}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _processor() -> str:
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    kilobytes = [int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return f", {kilobytes[0] / 2**20:.0f} GiB" if kilobytes else ""
