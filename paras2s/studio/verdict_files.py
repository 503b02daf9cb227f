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
from paras2s.studio.folders import Folders, OutsideError
from paras2s.utils.io import read_jsonl

# Folders that are searched; of runs by the thousand the list says that it stops.
SEARCHED = 4000
DEPTH = 5
LONGEST_LINE = 1 << 18
LARGEST_BYTES = 256 << 20

# The keys that a file's rows have, all of them, by what the file is.
KINDS = {
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
    """The files of verdicts, the last written first, and whether all folders were searched. No link is followed."""
    found: dict[str, VerdictFile] = {}
    left = SEARCHED
    for number, root in enumerate(map(str, folders.roots)):
        for entry in _files(root, DEPTH):
            if entry is None:
                left -= 1
                if left == 0:
                    return _sorted(found), False
                continue
            kind = kind_of(entry)
            if kind == ANSWERS:
                run = _run_of(folders, Path(entry))
                found.setdefault(run, VerdictFile(kind, run, "", os.stat(entry).st_mtime))
            elif kind is not None:
                found.setdefault(entry, VerdictFile(kind, str(number), os.path.relpath(entry, root), os.stat(entry).st_mtime))
    return _sorted(found), True


def _run_of(folders: Folders, path: Path) -> str:
    """The address of the folder whose page shows a file of a bench's answers: the run, or the folder of the file."""
    above = next((folder.parent for folder in list(path.parents)[:2] if folder.name == "bench"), path.parent)
    for folder in (above, path.parent):
        if any(folder.is_relative_to(root) for root in folders.roots):
            number, name = folders.locate(folder)
            return number if name == "." else f"{number}/{name}"
    raise OutsideError(f"{path.name!r}: outside the given folders")


def _sorted(found: dict[str, VerdictFile]) -> list[VerdictFile]:
    return sorted(found.values(), key=lambda one: (-one.changed_s, one.run, one.name))


def _files(folder: str, depth: int) -> Iterator[str | None]:
    """The JSONL files below a folder, and None for every folder that was read."""
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
    for one in sorted(inner) if depth else ():
        yield from _files(one, depth - 1)


def kind_of(path: str) -> str | None:
    """The kind of a file by the keys of its first row; None for one that holds no verdicts."""
    try:
        with open(path, "rb") as file:
            row = json.loads(file.readline(LONGEST_LINE))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return next((kind for kind, keys in KINDS.items() if all(key in row for key in keys)), None)


def read_rows(path: Path) -> tuple[dict[str, Any], ...]:
    """The rows of a file of verdicts.

    Raises:
        DataError: it is missing, broken, or larger than can be shown.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"{path.name}: no such file") from error
    if stat.st_size > LARGEST_BYTES:
        raise DataError(f"{path.name}: {stat.st_size >> 20} MB are more than the studio reads ({LARGEST_BYTES >> 20} MB)")
    return _read_rows(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=2)
def _read_rows(path: Path, changed_ns: int, size: int) -> tuple[dict[str, Any], ...]:
    try:
        return tuple(row for row in read_jsonl(path) if isinstance(row, dict))
    except RecursionError as error:
        raise DataError(f"{path.name}: nested too deeply to be read") from error
