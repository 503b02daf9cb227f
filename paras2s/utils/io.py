"""Reading and writing files. Writes are atomic (temporary file, flush, rename): a killed run leaves no half-written file."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from paras2s.errors import DataError, StorageError, one_line
from paras2s.utils.suggest import nearest_file


def path_inside(folder: Path, name: str) -> Path | None:
    """Return the path of a file below a folder that a table names; None if the name or a link leads out of the folder.

    A hub's cache holds links to files beside the folder (`snapshots/REVISION/a.wav` to `blobs/...`): those are let through.
    """
    root = folder.resolve()
    target = (root / name).resolve()
    if target.is_relative_to(root):
        return target
    named = Path(os.path.normpath(root / name))
    blobs = [parent.parent / "blobs" for parent in (root, *root.parents) if parent.name == "snapshots"]
    # By its own name, which has an ending; a blob's is a hash.
    return named if named.is_relative_to(root) and any(target.is_relative_to(blob_folder) for blob_folder in blobs) else None


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


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file that a user made, without the byte order mark that spreadsheets put first.

    Raises:
        DataError: missing, or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)})") from error


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a CSV file with their line numbers, for a strict model to validate.

    Values that are missing are None, and values without a column are under the key "more values than columns".

    Raises:
        DataError: the file cannot be read, or is no CSV; names file:line.
    """
    reader = csv.DictReader(io.StringIO(read_text(path)), restkey="more values than columns")
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num + 1}: {error}") from error


def read_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        DataError: missing or not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file{nearest_file(path)}; run the stage that writes it") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
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
                last_line_end = path.read_bytes().rfind(b"\n") + 1
                file.truncate(last_line_end)
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; free disk space and run again") from error


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log; a last line cut off by a kill is skipped, any other bad line is an error.

    Raises:
        DataError: missing, or a line in the middle is not JSON.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file{nearest_file(path)}; run the stage that writes it")
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


def drop_steps_from(path: Path, step: int) -> None:
    """Forget the rows of a log from this step on; they are about to be done again."""
    if path.is_file():
        write_jsonl(path, [row for row in read_jsonl(path) if row["step"] < step])
