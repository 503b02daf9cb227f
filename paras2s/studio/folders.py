"""The folders that the studio was given, and the only way in which it opens a file.

A run is named by its address: the number of the given folder, then the path below it ("0/quick"; "0" where the folder itself
is the run). A link is followed as long as it ends in one of the given folders: the runs of an ablation link `data` and `sft`
of the run beside them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paras2s.errors import ConfigError, DataError
from paras2s.run import RESOLVED

# An ablation's variants are two folders below the folder of all runs.
MAX_DEPTH = 3
# Longer names are on no disk, and asking for one is an error of the system.
MAX_NAME_BYTES, MAX_PATH_BYTES, MAX_DIGITS = 255, 2048, 6


class OutsideError(DataError):
    """A path that is not in the folders that the studio was given."""


@dataclass(frozen=True)
class FoundRun:
    """A run folder: its address, its name, and when its config was last written (seconds since 1970)."""

    address: str
    name: str
    changed_s: float


@dataclass(frozen=True)
class Folders:
    """The given folders, resolved, and which of their runs are listed (addresses; None: all). Made by `open_folders`."""

    roots: tuple[Path, ...]
    listed: frozenset[str] | None = None

    def path(self, address: str, name: str = "") -> Path:
        """Return the path of `name` below the folder at `address`, existing or not. Raises OutsideError: it leads outside."""
        number, _, below = address.partition("/")
        if not number.isascii() or not number.isdigit() or len(number) > MAX_DIGITS or int(number) >= len(self.roots):
            raise OutsideError(f"{address!r}: no such folder here")
        parts = (*_parts(below), *_parts(name))
        target = self.roots[int(number)].joinpath(*parts)
        try:
            resolved = target.resolve()
        except (OSError, RuntimeError) as error:
            raise OutsideError(f"{'/'.join(parts)!r}: a link that leads nowhere") from error
        if not any(resolved.is_relative_to(root) for root in self.roots):
            raise OutsideError(
                f"{'/'.join(parts)!r}: a link that leaves the folders that the studio was given; give that folder as well"
            )
        return resolved

    def locate(self, path: Path) -> tuple[str, str]:
        """Return the address of a file's given folder, and its path there. Raises OutsideError: it is in none of them."""
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise OutsideError(f"{path.name!r}: not a path") from error
        for number, root in enumerate(self.roots):
            if resolved.is_relative_to(root):
                return str(number), resolved.relative_to(root).as_posix()
        raise OutsideError(f"{path.name!r} lies outside the folders that the studio was given; give its folder as well")

    def runs(self) -> list[FoundRun]:
        """Return all runs below the given folders, the last changed first. No config is read."""
        by_path: dict[str, FoundRun] = {}
        for number, root in enumerate(map(str, self.roots)):
            for path, changed_s in _find(root, MAX_DEPTH):
                # The same run below two given folders has one address, the first.
                by_path.setdefault(path, FoundRun(f"{number}{path.removeprefix(root)}", os.path.basename(path), changed_s))
        runs = [run for run in by_path.values() if self.listed is None or run.address in self.listed]
        return sorted(runs, key=lambda run: (-run.changed_s, run.address))


def _parts(name: str) -> tuple[str, ...]:
    """Return the parts of a relative path. Raises OutsideError: it is absolute, goes up, or has a forbidden character."""
    if name.startswith("/") or "\\" in name or "\0" in name or ".." in PurePosixPath(name).parts:
        raise OutsideError(f"{name!r}: not a path inside the folder")
    parts = PurePosixPath(name).parts
    sizes = [len(os.fsencode(part)) if is_text(part) else MAX_PATH_BYTES + 1 for part in parts]
    if sum(sizes) > MAX_PATH_BYTES or max(sizes, default=0) > MAX_NAME_BYTES:
        raise OutsideError(f"{name[:80]!r}: no name of a file")
    return parts


def is_text(name: str) -> bool:
    """Return whether a name can be written in an address: a file's name may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _find(folder: str, depth: int) -> Iterator[tuple[str, float]]:
    """Run folders in and below a folder, with the time of their configs. Links are not followed, nor runs searched."""
    # Strings: of ten thousand folders, the making of paths would take longest.
    try:
        yield folder, os.stat(f"{folder}/{RESOLVED}").st_mtime
        return
    except OSError:
        pass
    if depth == 0:
        return
    try:
        with os.scandir(folder) as entries:
            inner = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for subfolder in inner:
        yield from _find(subfolder, depth - 1)


def open_folders(paths: Sequence[Path]) -> Folders:
    """Return the given folders, resolved. Raises ConfigError: one of them is missing, or is no folder."""
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"{path}: no such folder; give the folder of a run, or a folder above it")
    return Folders(tuple(dict.fromkeys(path.resolve() for path in paths)))
