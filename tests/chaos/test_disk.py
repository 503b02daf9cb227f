"""A disk that is full in the midst of a write, or read-only: an error of ours, the old file stays, a later write succeeds.

The kernel itself refuses: files may grow by five bytes (RLIMIT_FSIZE). Not covered: whole commands on a full disk, which
`make chaos` runs, and a network disk that goes away.
"""

from __future__ import annotations

import json
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from paras2s.audio.clip import Clip, encode_clip
from paras2s.bench.made_from import MadeFrom, keep_verdict
from paras2s.errors import StorageError
from paras2s.utils import lock
from paras2s.utils.cache import JsonCache
from paras2s.utils.io import append_jsonl, write_bytes, write_json

SOUND = encode_clip(Clip(np.full(800, 0.1, np.float32), 16_000))
# A kernel's own folder, in which nobody makes another, root included.
READ_ONLY = Path("/sys/paras2s")


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Let a file grow by five bytes, and others not beyond its size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((path.stat().st_size if path.is_file() else 0) + 5, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    yield
    while lock._held:
        lock._held.popitem()[1].close()


# A file and what writes it, given its folder; before it holds `OLD`.
OLD = b'{"a": "written before"}\n'
WRITERS: dict[str, Callable[[Path], None]] = {
    "bytes.bin": lambda folder: write_bytes(folder / "bytes.bin", b"x" * 100),
    "value.json": lambda folder: write_json(folder / "value.json", {"a": "x" * 100}),
    "log.jsonl": lambda folder: append_jsonl(folder / "log.jsonl", {"a": "x" * 100}),
    lock.LOCK: lock.hold,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_write_that_a_full_disk_refused_keeps_the_file_and_succeeds_later(tmp_path: Path, name: str) -> None:
    path, write = tmp_path / name, WRITERS[name]
    if name != lock.LOCK:
        path.write_bytes(OLD)
    with full_disk(path), pytest.raises(StorageError, match=rf"cannot write .*{name}: File too large; raise the limit"):
        write(tmp_path)
    assert path.read_bytes().startswith(OLD if name != lock.LOCK else b"")
    assert list(tmp_path.iterdir()) == [path]
    write(tmp_path)
    # A row that was cut off in the midst is gone.
    expected = {"log.jsonl": OLD + json.dumps({"a": "x" * 100}).encode() + b"\n", "bytes.bin": b"x" * 100}
    assert path.read_bytes() == expected.get(name, path.read_bytes())
    assert len(path.read_bytes()) > 30


def test_a_copied_clip_is_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    (tmp_path / "given.wav").write_bytes(SOUND)
    with full_disk(tmp_path / "none"), pytest.raises(StorageError):
        keep_verdict(folder, "pair", {}, MadeFrom(), {"a": tmp_path / "given.wav"})
    keep_verdict(folder, "pair", {}, MadeFrom(), {"a": tmp_path / "given.wav"})
    (copy,) = (folder / "clips").iterdir()
    assert copy.read_bytes() == SOUND


def test_a_cache_on_a_full_disk_keeps_its_values(tmp_path: Path) -> None:
    cache = JsonCache(tmp_path / "a.sqlite")
    cache.put_many({"old": 1})
    with full_disk(tmp_path / "none"), pytest.raises(StorageError, match=r"cannot write .*a\.sqlite: .*; check the disk"):
        cache.put_many({"new": "x" * 10_000})
    assert cache.get_many(["old", "new"]) == {"old": 1}
    cache.put_many({"new": 2})
    assert cache.get("new") == 2
    cache.close()


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (sqlite3.SQLITE_FULL, "free disk space"),
        (sqlite3.SQLITE_READONLY | 4 << 8, "the disk is read-only"),
        (sqlite3.SQLITE_IOERR, "check the disk"),
        (None, "check the disk"),
    ],
)
def test_a_cache_says_why_it_is_not_written(tmp_path: Path, code: int | None, advice: str) -> None:
    class Refusing:
        def __enter__(self) -> None:
            error = sqlite3.OperationalError("refused")
            if code is not None:
                error.sqlite_errorcode = code
            raise error

        def __exit__(self, *_: object) -> None: ...

    cache = JsonCache(tmp_path / "a.sqlite")
    cache.close()
    cache._db = Refusing()  # type: ignore[assignment]
    with pytest.raises(StorageError, match=f"a.sqlite: refused; {advice}"):
        cache.put_many({"a": 1})


@pytest.mark.parametrize("name", [*WRITERS, "clip"])
def test_a_read_only_folder_is_an_error_of_ours(tmp_path: Path, name: str) -> None:
    if not READ_ONLY.parent.is_dir():
        pytest.skip("no sysfs")
    (tmp_path / "given.wav").write_bytes(SOUND)
    clips = {"a": tmp_path / "given.wav"}
    with pytest.raises(StorageError, match=r"cannot write /sys/paras2s.*give a folder"):
        WRITERS.get(name, lambda folder: keep_verdict(folder, "pair", {}, MadeFrom(), clips))(READ_ONLY)
