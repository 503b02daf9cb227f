"""The folder of an export: what may be replaced, and how it is, so that a stopped export leaves nothing half-written."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paras2s.errors import ConfigError, DataError, StorageError
from paras2s.utils.io import read_json, write_json

MANIFEST = "export.json"


def check_folder(out: Path, runs: Sequence[Path]) -> None:
    """Check that an export may be written to `out`. Raises ConfigError: a file, a run, or another program's files."""
    if any(out.resolve().is_relative_to(run) for run in runs):
        raise ConfigError(f"--export {out}: is inside a run, which is only read; give another folder")
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"--export {out}: is a file; give a folder")
    existing = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_symlink() or not path.is_dir())
    if not existing:
        return
    if MANIFEST not in existing:
        raise ConfigError(f"--export {out}: is not empty, and no earlier export; give another folder")
    try:
        known = set(read_json(out / MANIFEST)["files"])
    except (DataError, KeyError, TypeError) as error:
        raise ConfigError(f"--export {out}: {MANIFEST} cannot be read; give another folder") from error
    if other := [name for name in existing if name not in known and name != MANIFEST]:
        raise ConfigError(f"--export {out}: holds {other[0]}, which no export wrote; move it away, or give another folder")


def _exchange(folder: Path, out: Path) -> None:
    """Put a folder in the place of `out`, which is removed only then: a stop in between leaves both."""
    if not out.exists():
        os.rename(folder, out)
        return
    former = folder.with_name(f"{folder.name}.former")
    os.rename(out, former)
    try:
        os.rename(folder, out)
    except OSError:
        os.rename(former, out)
        raise
    shutil.rmtree(former, ignore_errors=True)


@contextlib.contextmanager
def new_folder(out: Path, facts: dict[str, Any]) -> Iterator[Path]:
    """Give a folder that replaces `out` when the block ends well, with a manifest of `facts`. Raises StorageError."""
    out = out.resolve()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        try:
            folder.chmod(0o755)
            yield folder
            files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
            write_json(folder / MANIFEST, {**facts, "files": files})
            _exchange(folder, out)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}") from error
