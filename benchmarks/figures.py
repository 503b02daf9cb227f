"""Figures as every benchmark writes them with `--json FILE`: all values, not their median, and where they were taken."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paras2s.utils.machine import describe_machine

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("numpy", "torch", "transformers", "trl", "onnxruntime", "ctranslate2", "openai", "ray")
BURNER = "import os, sys\nos.nice(19)\nparent = int(sys.argv[1])\nwhile os.getppid() == parent:\n  for _ in range(10**6): pass"


@dataclass(frozen=True)
class Figure:
    """One measured quantity: our values, and those of another program or setting if there is one.

    The ratio says how many times better ours is. `least_ratio` is the aim for it, `at_most` and `at_least` one for our value.
    """

    name: str
    unit: str
    ours: Sequence[float]
    other: Sequence[float] = ()
    other_name: str = ""
    more_is_better: bool = False
    least_ratio: float | None = None
    at_most: float | None = None
    at_least: float | None = None


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Lets a benchmark write its figures to a file, too."""
    parser.add_argument("--json", type=Path, help="write the figures there")


def write_figures(path: Path | None, figures: Sequence[Figure], **more: Any) -> None:
    """Writes figures with the machine, versions and commit; `more` is what a benchmark's own table needs."""
    if path is not None:
        rows = [
            {key: value for key, value in asdict(one).items() if value is not False and value not in (None, "", ())}
            for one in figures
        ]
        path.write_text(json.dumps({"taken": taken(), "figures": rows, **more}, indent=1) + "\n")


# -- where ------------------------------------------------------------------------------------------------------------


def taken() -> dict[str, Any]:
    """The commit, the machine and the versions that figures belong to."""
    return {"commit": commit(), "package": package_id(), "machine": describe_machine(), "versions": versions()}


def commit() -> str:
    """The commit's short name, with a plus where files differ from it."""
    edited = _git("status", "--porcelain", "--", "paras2s", "benchmarks/*.py")
    return _git("rev-parse", "--short=7", "HEAD") + ("+" if edited else "")


def package_id() -> str:
    """A name for the package's present content: figures of equal names need not be taken again."""
    changes = _git("diff", "HEAD", "--", "paras2s")
    edited = f"+{hashlib.sha256(changes.encode()).hexdigest()[:7]}" if changes else ""
    return _git("rev-parse", "HEAD:paras2s")[:12] + edited


def versions() -> dict[str, str]:
    """Python and the packages that decide about speed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()


# -- other programs on the machine --------------------------------------------------------------------------------------


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs programs of the lowest priority that want a core each, as a browser or a neighbour on a CI machine does."""
    burners = [subprocess.Popen([sys.executable, "-c", BURNER, str(os.getpid())]) for _ in range(count)]
    try:
        yield burners
    finally:
        for burner in burners:
            burner.terminate()
            burner.wait()


def processor_s(pids: Iterable[int]) -> float:
    """Processor time that running processes have used so far, and that of their children that have ended."""
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")
