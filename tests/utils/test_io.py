"""Covers atomic files: complete or not at all, a full disk, logs cut off by a kill, bad JSON.

Not covered: a power cut (the kernel's own cache) and two processes that write one log.
"""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from paras2s.errors import DataError, StorageError
from paras2s.utils import io


def test_written_files_are_read_back(tmp_path: Path) -> None:
    io.write_json(tmp_path / "new" / "a.json", {"b": [1, 2.5, None, "ü"]})
    assert io.read_json(tmp_path / "new" / "a.json") == {"b": [1, 2.5, None, "ü"]}
    io.write_jsonl(tmp_path / "a.jsonl", [{"n": 1}, {"n": 2}])
    io.append_jsonl(tmp_path / "a.jsonl", {"n": 3})
    assert list(io.read_jsonl(tmp_path / "a.jsonl")) == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("missing", ["", "part.bin"])
def test_an_error_names_the_file_that_is_missing_once(tmp_path: Path, missing: str) -> None:
    """The folder that was read, or the part of it that is not there."""
    source = tmp_path / "model"
    with pytest.raises(DataError) as raised, io.reading(source, "not a model"):
        (source / missing if missing else source).read_bytes()
    part = f": {source / missing}" if missing else ""
    assert str(raised.value) == f"{source}: not a model (No such file or directory{part})"


def test_a_hubs_links_to_its_blobs_are_inside_and_others_are_not(tmp_path: Path) -> None:
    repository, secret = tmp_path / "datasets--a--b", tmp_path / "secret.wav"
    folder = repository / "snapshots" / "0123abcd"
    for path in (repository / "blobs" / "feed", secret, folder / "audio" / "own.wav"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (folder / "audio/a.wav").symlink_to("../../../blobs/feed")
    (folder / "audio/b.wav").symlink_to(secret)
    for root in (folder, folder / "audio"):
        name = "a.wav" if root != folder else "audio/a.wav"
        assert io.path_inside(root, name) == folder / "audio/a.wav"
    assert io.path_inside(folder, "audio/own.wav") == folder / "audio/own.wav"
    for name in ("audio/b.wav", "../../../secret.wav", "../../blobs/feed", str(secret)):
        assert io.path_inside(folder, name) is None
    # The same link in a folder that is no snapshot of a hub leads out of it.
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/a.wav").symlink_to("../datasets--a--b/blobs/feed")
    assert io.path_inside(tmp_path / "plain", "a.wav") is None


def test_replacing_leaves_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    io.write_bytes(path, b"old")
    io.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_full_disk_keeps_the_old_file_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "a.json"
    io.write_json(path, {"state": "old"})

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(StorageError, match="No space left") as caught:
        io.write_json(path, {"state": "new"})
    assert str(path) in str(caught.value)
    assert io.read_json(path) == {"state": "old"}
    assert list(tmp_path.iterdir()) == [path]


def test_folder_that_is_a_file_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/a\.json"):
        io.write_json(tmp_path / "file" / "a.json", {})
    with pytest.raises(StorageError, match=r"file/a\.jsonl"):
        io.append_jsonl(tmp_path / "file" / "a.jsonl", {})


def test_nan_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    io.write_json(tmp_path / "a.json", {"score": 1.0})
    with pytest.raises(ValueError, match="not JSON compliant"):
        io.write_json(tmp_path / "a.json", {"score": float("nan")})
    assert io.read_json(tmp_path / "a.json") == {"score": 1.0}


def test_last_line_cut_off_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": ')
    assert list(io.read_jsonl(path)) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("content", ['{"n": 1}\n{"n": \n{"n": 3}\n', '{"n": 1}\n{"n": \n'])
def test_any_other_bad_line_is_an_error_with_its_number(tmp_path: Path, content: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"log\.jsonl:2: not valid JSON"):
        list(io.read_jsonl(path))


def test_missing_and_broken_json_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.json: no such file"):
        io.read_json(tmp_path / "gone.json")
    with pytest.raises(DataError, match=r"gone\.jsonl: no such file"):
        list(io.read_jsonl(tmp_path / "gone.jsonl"))
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    with pytest.raises(DataError, match=r"bad\.json: not valid JSON"):
        io.read_json(tmp_path / "bad.json")


def test_files_that_macos_puts_beside_others_are_left_out(tmp_path: Path) -> None:
    for name in ("b.wav", "._b.wav", "a.wav", "._a.wav"):
        (tmp_path / name).touch()
    assert [path.name for path in io.without_mac_files(tmp_path.glob("*.wav"))] == ["a.wav", "b.wav"]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free disk space"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "may write to"),
        (errno.ENOENT, "check the disk"),
    ],
)
def test_a_failed_write_says_why_and_what_to_do(number: int, advice: str) -> None:
    said = str(io.cannot_write(Path("a.json"), OSError(number, os.strerror(number))))
    assert said.startswith(f"cannot write a.json: {os.strerror(number)}; ")
    assert advice in said


def test_a_users_rows_may_come_from_windows_and_the_last_needs_no_line_break(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}')
    assert list(io.read_rows(path)) == [(1, {"a": 1}), (3, {"a": 2})]
    path.write_bytes(b'{"a": 1}\n{"a": 2')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not valid JSON"):
        list(io.read_rows(path))
    # The end of our own log may be cut off by a kill.
    assert list(io.read_jsonl(path)) == [{"a": 1}]


def test_samples_tell_large_files_apart_whose_ends_are_equal(tmp_path: Path) -> None:
    """As a checkpoint whose first and last tensors are frozen: 4 MiB, of which the ends are no more than 1 MiB."""
    first, second = tmp_path / "first", tmp_path / "second"
    ends, size = bytes(2**20), 2**21
    first.write_bytes(ends + bytes(size) + ends)
    second.write_bytes(ends + b"1" * size + ends)
    assert io.sample_digest(first) != io.sample_digest(second)
    second.write_bytes(first.read_bytes())
    assert io.sample_digest(first) == io.sample_digest(second)
    second.write_bytes(first.read_bytes() + b"\0")
    assert io.sample_digest(first) != io.sample_digest(second)
