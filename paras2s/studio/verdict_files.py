"""The files of verdicts below the given folders: those of `judge --out`, of `probe`, and of every benchmark that judges."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paras2s.errors import DataError
from paras2s.run import RESOLVED
from paras2s.studio.folders import Folders, OutsideError
from paras2s.utils.io import read_jsonl

# Folders that are searched; of runs by the thousand the list says that it stops.
SEARCHED = 4000
DEPTH = 5
LONGEST_LINE = 1 << 18
LARGEST_BYTES = 256 << 20

# The keys that a file's rows have, all of them, by what the file is.
SUITE = "an outside suite"
KINDS = {
    SUITE: ("suite", "item", "metric", "judge"),
    "a bench's answers": ("query_id", "answer_index", "judge"),
    "judge": ("kind", "made_from"),
    "probe": ("about", "change", "judge"),
    "StyleSet": ("item", "system", "task", "judge"),
    "UniSRM-Bench": ("item", "condition", "judge"),
    "systems against a reference": ("aspect", "verdict"),
    "pairs against people's labels": ("index", "judge"),
    "detection": ("id", "truth", "judge"),
}
ANSWERS = "a bench's answers"


@dataclass(frozen=True)
class VerdictFile:
    """A file of verdicts: what it is, the folder's address, its name there, and when it was written (seconds since 1970)."""

    kind: str
    run: str
    name: str
    changed_s: float


def find_files(folders: Folders) -> tuple[list[VerdictFile], bool]:
    """Return the files of verdicts, the last written first, and whether all folders were searched. No link is followed."""
    files: dict[str, VerdictFile] = {}
    left = SEARCHED
    for number, root in enumerate(map(str, folders.roots)):
        for entry in _files(root, DEPTH):
            if entry is None:
                left -= 1
                if left == 0:
                    return _sorted(files), False
                continue
            kind = kind_of(entry)
            if kind == ANSWERS:
                run = _run_of(folders, Path(entry))
                files.setdefault(run, VerdictFile(kind, run, "", os.stat(entry).st_mtime))
            elif kind is not None:
                files.setdefault(entry, VerdictFile(kind, str(number), os.path.relpath(entry, root), os.stat(entry).st_mtime))
    return _sorted(files), True


def _run_of(folders: Folders, path: Path) -> str:
    """Return the address of the folder whose page shows a file of a bench's answers: the run, or the file's folder."""
    above = next((folder.parent for folder in list(path.parents)[:2] if folder.name == "bench"), path.parent)
    for folder in (above, path.parent):
        if any(folder.is_relative_to(root) for root in folders.roots):
            number, name = folders.locate(folder)
            return number if name == "." else f"{number}/{name}"
    raise OutsideError(f"{path.name!r}: outside the given folders")


def run_of(folders: Folders, address: str, file: str) -> str | None:
    """Return the address of the run that holds a file below the folder at `address`; None for a file outside of runs."""
    for folder in list(folders.path(address, file).parents)[:DEPTH]:
        if not any(folder.is_relative_to(root) for root in folders.roots):
            return None
        if (folder / RESOLVED).is_file():
            number, name = folders.locate(folder)
            return number if name == "." else f"{number}/{name}"
    return None


def _sorted(files: dict[str, VerdictFile]) -> list[VerdictFile]:
    return sorted(files.values(), key=lambda file: (-file.changed_s, file.run, file.name))


def _files(folder: str, depth: int) -> Iterator[str | None]:
    """Yield the JSONL files below a folder, and None for every folder that was read."""
    yield None
    inner = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.path)
                elif entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False):
                    yield entry.path
    except OSError:
        return
    for subfolder in sorted(inner) if depth else ():
        yield from _files(subfolder, depth - 1)


def kind_of(path: str) -> str | None:
    """Return the kind of a file by the keys of its first row; None for a file without verdicts."""
    try:
        with open(path, "rb") as file:
            row = json.loads(file.readline(LONGEST_LINE))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return next((kind for kind, keys in KINDS.items() if all(key in row for key in keys)), None)


def read_rows(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the rows of a file of verdicts. Raises DataError: it is missing, broken, or larger than can be shown."""
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"{path.name}: no such file") from error
    if stat.st_size > LARGEST_BYTES:
        raise DataError(f"{path.name}: {stat.st_size >> 20} MB are more than the studio reads ({LARGEST_BYTES >> 20} MB)")
    return _read_rows(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=2)
def _read_rows(path: Path, changed_ns: int, size: int) -> tuple[dict[str, Any], ...]:
    return tuple(row for row in read_jsonl(path) if isinstance(row, dict))
