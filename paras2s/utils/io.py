"""Reading and writing files. Writes are atomic (temporary file, flush, rename): a killed run leaves no half-written file."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from paras2s.errors import ConfigError, DataError, ParaS2SError, StorageError, one_line
from paras2s.utils.suggest import nearest_file

# More digits than any count, size or seed has: such a number overflows in whatever computes with it.
MOST_DIGITS = 20
# Bytes of a name that leave room for a number and an ending: file systems allow 255.
LONGEST_NAME = 200
# How the name of a file begins that is being written, until it has its own.
UNFINISHED = ".unfinished-"
# Of a large file as many samples of this size are hashed.
_PLACES, _SAMPLE_BYTES = 16, 2**16


def path_inside(folder: Path, name: str) -> Path | None:
    """Return the path of a file below a folder that a table names; None if the name or a link leads out of the folder.

    A hub's cache holds links to files beside the folder (`snapshots/REVISION/a.wav` to `blobs/...`): those are let through.
    """
    root = folder.resolve()
    named = Path(os.path.normpath(root / name))
    try:
        target = (root / name).resolve()
    except ValueError:
        # No file has such a name (a NUL, half an emoji), so no link can be behind it.
        target = named
    if target.is_relative_to(root):
        return target
    blobs = [parent.parent / "blobs" for parent in (root, *root.parents) if parent.name == "snapshots"]
    # By its own name, which has an ending; a blob's is a hash.
    return named if named.is_relative_to(root) and any(target.is_relative_to(blob_folder) for blob_folder in blobs) else None


def names_a_file(name: object) -> bool:
    """Return whether a name from a table names a file in whatever folder it is put: no path, and not too long."""
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
        return False
    return len(name.encode("utf-8", "backslashreplace")) <= LONGEST_NAME


# What to do about a write that the system refused, by its reason.
_REMEDIES = {
    errno.ENOSPC: "free disk space and run again",
    errno.EDQUOT: "free disk space within your quota and run again",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EROFS: "the disk is read-only; give a folder on another one",
    errno.EACCES: "give a folder that you may write to",
    errno.EPERM: "give a folder that you may write to",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOTDIR: "a part of the path is a file; give another folder",
    errno.EISDIR: "a folder has this name; remove it or give another name",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
}


# Reasons that no read has, so that they need no advice of the code that writes.
DISK_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def cannot_write(path: object, error: OSError) -> StorageError:
    """Return the error of a failed write, with what to do about its reason."""
    remedy = _REMEDIES.get(error.errno or 0, "check the disk and run again")
    return StorageError(f"cannot write {path}: {error.strerror or error}; {remedy}")


def without_mac_files(paths: Iterable[Path]) -> list[Path]:
    """Return paths sorted, without the "._" file that macOS puts beside every other on a disk that is not its own."""
    return sorted(path for path in paths if not path.name.startswith("._"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step. Raises StorageError: the disk refused; the old file, if any, still exists."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
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
        raise cannot_write(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    # Names of files need not be UTF-8, nor what a model said.
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step; NaN is refused, because a failure is never a number."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


@contextlib.contextmanager
def reading(
    source: object, problem: str = "cannot be read", advice: str = "", kind: type[ParaS2SError] = DataError
) -> Iterator[None]:
    """Turn whatever a parser raises on a damaged file into an error of this project that names the file.

    Parsers raise more than they document: on deep nesting RecursionError, on a huge number OverflowError or ValueError, on
    sizes in a header MemoryError, struct.error or the library's own. Wrap the parsing alone, not what is done with the values.
    """
    try:
        yield
    except ParaS2SError:
        raise
    except Exception as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or one_line(error)[:300] or type(error).__name__
        if isinstance(error, OSError) and error.filename and str(error.filename) != str(source):
            reason += f": {error.filename}"
        raise kind(f"{source}: {problem} ({reason}){advice}") from error


def read_text(path: Path, kind: type[ParaS2SError] = DataError) -> str:
    """Return the text of a user's UTF-8 file, without a byte order mark. Raises DataError (or `kind`): missing, not UTF-8."""
    with reading(path, kind=kind):
        return path.read_text(encoding="utf-8-sig")


def parse_yaml(text: str, source: object, problem: str = "not valid YAML", kind: type[ParaS2SError] = ConfigError) -> Any:
    """Parse YAML text of `source`. Raises ConfigError, or the `kind` of error given: not YAML."""
    import yaml

    with reading(source, problem, kind=kind):
        return yaml.safe_load(text)


def read_yaml(path: Path | Traversable, problem: str = "not valid YAML", kind: type[ParaS2SError] = ConfigError) -> Any:
    """Parse a YAML file. Raises ConfigError, or the `kind` of error given: missing, not UTF-8 or not YAML."""
    with reading(path, problem, kind=kind):
        text = path.read_text(encoding="utf-8-sig")
    return parse_yaml(text, path, problem, kind)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer)


def parse_json(text: str | bytes, source: object, problem: str = "not valid JSON", advice: str = "") -> Any:
    """Parse JSON of `source`, UTF-8; NaN and Infinity are refused, unlike elsewhere. Raises DataError: not JSON."""
    with reading(source, problem, advice):
        return _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8-sig"))


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
    """Parse a JSON file. Raises DataError: missing or not JSON."""
    if not os.path.exists(path):
        raise DataError(f"{path}: no such file{nearest_file(path)}; run the stage that writes it")
    with reading(path):
        data = path.read_bytes()
    return parse_json(data, path, advice="; if a stage wrote it, delete it and run that stage again")


def append_jsonl(path: Path, row: dict[str, Any]) -> None:
    """Add one row to a log. Raises StorageError: the disk refused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            # A kill may have cut the last line off; a new row must not be glued to it.
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                last_line_end = path.read_bytes().rfind(b"\n") + 1
                file.truncate(last_line_end)
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
    except OSError as error:
        raise cannot_write(path, error) from error


def read_jsonl(path: Path, newest: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log of ours, or of its `newest` lines; a last line cut off by a kill is skipped.

    Raises DataError: missing, or another line is not JSON.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file{nearest_file(path)}; run the stage that writes it")
    with reading(path), path.open(encoding="utf-8-sig") as file:
        lines: Iterable[tuple[int, str]] = enumerate(file, 1)
        for number, line in lines if newest is None else deque(lines, newest):
            if not line.strip():
                continue
            try:
                row = parse_json(line, f"{path}:{number}")
            except DataError:
                if not line.endswith("\n"):
                    return
                raise
            yield row


def read_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a JSONL file that a user made, with their line numbers.

    A byte order mark and line ends of Windows are accepted, and the last line, with or without a line break, is a row.

    Raises:
        DataError: missing, not UTF-8, or a line is not JSON.
    """
    # Not splitlines: it would also break a row at a line separator inside its text.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, parse_json(line, f"{path}:{number}")


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Replace a log in one step."""
    write_text(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def drop_steps_from(path: Path, step: int) -> None:
    """Forget the rows of a log from this step on; they are about to be done again."""
    if path.is_file():
        write_jsonl(path, [row for row in read_jsonl(path) if row["step"] < step])


def sample_digest(path: Path) -> bytes:
    """Return a hash of a file's size, its beginning, and 16 places in it; of a small file all of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        for part in range(_PLACES + 1):
            file.seek(max(0, size - _SAMPLE_BYTES) * part // _PLACES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
