"""Ray on this machine: a failed start is tried again and told in one line, session folders are short and do not stay.

Not covered: real sockets (tests/integration/test_ray_actors.py) and real processes that are killed (test_local_ray_ends.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from ray.exceptions import RayActorError

from paras2s.configs.schema.align import RoleConfig
from paras2s.errors import ConfigError
from paras2s.rollout import local_ray, worker_group
from paras2s.rollout.worker_group import WorkerGroup


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Ray that starts nothing; `fails` is how many starts fail."""
    scripted = SimpleNamespace(fails=0, starts=[], ended=[])

    def init(**options: Any) -> None:
        scripted.starts.append(options)
        if len(scripted.starts) <= scripted.fails:
            raise TimeoutError("Timed out waiting for file\n  after 15 s")

    scripted.is_initialized, scripted.init, scripted.shutdown = (lambda: False), init, (lambda: None)
    scripted._private = SimpleNamespace(worker=SimpleNamespace(_global_node=None))
    monkeypatch.setattr(local_ray, "ray", scripted)
    monkeypatch.setattr(local_ray.atexit, "register", lambda *made: scripted.ended.append(made))
    monkeypatch.setattr(local_ray.ray_constants, "ENABLE_RAY_CLUSTER", True)
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(local_ray, "LONGEST_FOLDER", len(str(tmp_path)))
    return scripted


def test_a_start_that_fails_is_tried_again_and_leaves_no_folder(ray: SimpleNamespace, tmp_path: Path) -> None:
    ray.fails = 2
    local_ray.start_ray(None)
    folders = [Path(options["_temp_dir"]) for options in ray.starts]
    assert len(folders) == 3
    assert list(tmp_path.iterdir()) == folders[2:]
    assert folders[2].stat().st_mode & 0o777 == 0o700
    function, *arguments = ray.ended[0]
    function(*arguments)
    assert not list(tmp_path.iterdir())


def test_starts_that_all_fail_are_one_line(ray: SimpleNamespace, tmp_path: Path) -> None:
    ray.fails = 9
    with pytest.raises(ConfigError, match="does not start on this machine, tried 3 times") as raised:
        local_ray.start_ray(None)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_calls_need_a_token_and_the_user_s_own_is_kept(ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    local_ray.start_ray(None)
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "mine")
    local_ray.start_ray(None)
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_a_long_tmpdir_is_replaced_and_folders_of_killed_processes_are_removed(
    ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("p2s-ray-999999999-abc", f"p2s-ray-{os.getpid()}-abc", "p2s-ray-other"):
        (tmp_path / name).mkdir()
    made = local_ray.session_folder()
    assert {path.name for path in tmp_path.iterdir()} == {f"p2s-ray-{os.getpid()}-abc", "p2s-ray-other", made.name}
    monkeypatch.setattr(local_ray, "LONGEST_FOLDER", len("/tmp"))
    elsewhere = local_ray.session_folder()
    assert elsewhere.parent == Path("/tmp")
    elsewhere.rmdir()
    monkeypatch.setattr(local_ray, "LONGEST_FOLDER", 1)
    with pytest.raises(ConfigError, match="set TMPDIR to a writable folder with a path of at most 1 characters"):
        local_ray.session_folder()


def test_the_end_of_a_process_of_ray_is_told_and_ends_this_one(
    ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed: list[bool] = []
    node = SimpleNamespace(
        dead_processes=lambda: [("gcs_server", None)], kill_all_processes=lambda check_alive: killed.append(check_alive)
    )
    ray._private.worker._global_node = node
    ray.is_initialized = lambda: True

    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(local_ray.os, "_exit", leave)
    with pytest.raises(SystemExit) as ended:
        local_ray.watch_ray(node, tmp_path)
    assert (ended.value.code, killed, tmp_path.exists()) == (2, [False], False)
    said = capsys.readouterr().err
    assert said.startswith("paras2s: Ray's process gcs_server has ended")
    assert said.count("\n") == 1
    # Another Ray has been started meanwhile, or none.
    ray._private.worker._global_node = None
    local_ray.watch_ray(node, tmp_path)


def test_a_worker_that_is_killed_while_it_starts_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(_: dict[str, Any]) -> Any:
        made.append(f"worker {len(made)}")
        return SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda name=made[-1]: name))

    def get(started: str) -> None:
        if started == "worker 0":
            raise RayActorError()

    monkeypatch.setattr(worker_group, "reserve", lambda *_: SimpleNamespace(wait=lambda _: True))
    monkeypatch.setattr(worker_group, "actor_options", lambda *_: {})
    monkeypatch.setattr(worker_group, "wait_placed", lambda *_: None)
    monkeypatch.setattr(worker_group, "remove_placement_group", lambda _: None)
    monkeypatch.setattr(worker_group.ray, "wait", lambda refs, timeout: (refs, []))
    monkeypatch.setattr(worker_group.ray, "get", get)
    group = WorkerGroup("rollout", RoleConfig(), 2, make)
    group.place(2)
    group.open()
    assert [worker.started for worker in group.workers] == ["worker 1", "worker 2"]
