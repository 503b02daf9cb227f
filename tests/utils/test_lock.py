"""One writer a folder, by real locks in two processes."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paras2s.configs.schema.run import RunConfig
from paras2s.errors import ConfigError, DataError
from paras2s.run import ORIGIN, RESOLVED, Run
from paras2s.utils import lock
from paras2s.utils.io import write_bytes
from paras2s.utils.progress import open_console


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    yield
    while lock._held:
        lock._held.popitem()[1].close()


def in_another_process(folder: Path, then: Callable[[], object]) -> None:
    """Call `then` while another process holds the folder, which is killed afterwards."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lock.hold(folder)
            os.write(tell, b"x")
            signal.pause()
        finally:
            os._exit(1)
    try:
        # A child of a process with threads may wait for a lock that none of its threads holds.
        assert select.select([ready], [], [], 60)[0], "the other process does not get as far as the lock"
        then()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_folder_of_another_process_is_refused_by_its_name_and_free_after_its_death(tmp_path: Path) -> None:
    def refused() -> None:
        with pytest.raises(ConfigError, match=r"another command works here \(process \d+ on .*, since .* UTC\); add --wait"):
            lock.hold(tmp_path)

    in_another_process(tmp_path, refused)
    lock.hold(tmp_path)
    lock.hold(tmp_path)
    assert re.match(rf"process {os.getpid()} on ", (tmp_path / lock.LOCK).read_text())


def test_files_that_a_killed_writer_left_are_removed_and_those_under_way_are_not(tmp_path: Path) -> None:
    def die(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    def write(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", die)
            with pytest.raises(KeyboardInterrupt):
                write_bytes(folder / "checkpoints" / "model.safetensors", b"weights")

    write(tmp_path)
    (left,) = (tmp_path / "checkpoints").iterdir()
    assert left.read_bytes() == b"weights"
    lock.hold(tmp_path)
    assert not left.exists()
    write(tmp_path)
    lock.hold(tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def test_a_command_may_wait_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    locks: list[int] = []

    def flock(file: object, how: int) -> None:
        locks.append(how)
        if how & fcntl.LOCK_NB:
            raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", flock)
    lock.hold(tmp_path, wait=True)
    assert locks == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX]
    assert "waiting for its end" in capsys.readouterr().err


def test_a_start_that_fails_at_once_does_not_claim_the_folder(tmp_path: Path) -> None:
    run = Run(RunConfig(name="x", run_dir=tmp_path), open_console(), quiet=True)
    (tmp_path / "data").mkdir()
    run.open()
    assert (tmp_path / RESOLVED).is_file()
    with pytest.raises(DataError), run.stage("warmup"):
        raise DataError("a wrong setting")
    assert {path.name for path in tmp_path.iterdir()} == {"data", lock.LOCK}
    # What has written something keeps its claim.
    run.open()
    (tmp_path / "warmup.jsonl").touch()
    with pytest.raises(DataError), run.stage("warmup"):
        raise DataError("later")
    assert {RESOLVED, ORIGIN} <= {path.name for path in tmp_path.iterdir()}
