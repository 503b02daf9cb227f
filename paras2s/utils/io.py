"""Atomic files: written beside, flushed to disk, then renamed, so that a killed run leaves whole files only."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from paras2s.errors import DataError, StorageError


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step.

    Raises:
        StorageError: the disk refused (full, read-only); the old file, if any, is still there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; free disk space and run again") from error


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step; NaN is refused, because a failure is never a number."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        DataError: missing or not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; run the stage that writes it") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error}); if a stage wrote it, delete it and run that stage again") from error


def append_jsonl(path: Path, row: dict[str, Any]) -> None:
    """Add one row to a log.

    Raises:
        StorageError: the disk refused.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            # A kill may have cut the last line off; a new row must not be glued to it.
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                whole = path.read_bytes().rfind(b"\n") + 1
                file.truncate(whole)
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; free disk space and run again") from error


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a log; a last line cut off by a kill is passed over, any other bad line is an error.

    Raises:
        DataError: missing, or a line in the middle is not JSON.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; run the stage that writes it")
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    yield json.loads(line)
                except ValueError as error:
                    if not line.endswith("\n"):
                        return
                    raise DataError(f"{path}:{number}: not valid JSON ({error})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Replace a log in one step."""
    write_text(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
