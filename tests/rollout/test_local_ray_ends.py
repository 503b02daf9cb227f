"""A local Ray whose processes are killed, with real processes: the command ends soon, in our words, and leaves none behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paras2s.rollout import local_ray

if not Path("/proc/self/environ").exists():
    pytest.skip("reads /proc", allow_module_level=True)

MARK = "PARAS2S_TEST_RAY"
START = """
import os, signal, sys, time
from ray._private import node
from paras2s.rollout.local_ray import start_ray

started = node.Node.start_gcs_server
def start_and_kill(self, *given, **named):
    started(self, *given, **named)
    self.all_processes["gcs_server"][0].process.kill()
if sys.argv[1] == "while Ray starts":
    node.Node.start_gcs_server = start_and_kill
start_ray(None, 1)
import psutil
[raylet] = [process for process in psutil.Process().children() if process.name() == "raylet"]
while len([one for one in raylet.children() if "Agent" in " ".join(one.cmdline())]) < 2:
    time.sleep(0.1)
if sys.argv[1] == "with the command":
    for process in psutil.Process().children(recursive=True):
        if "Agent" not in " ".join(process.cmdline()):
            process.kill()
    os.kill(os.getpid(), signal.SIGKILL)
raylet.kill()
time.sleep(100)
"""
# Ray itself waits for a minute.
SOON_S = 40.0


def alive(mark: str) -> list[str]:
    """Return the command lines of processes with a mark in their environment."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return lines


def run(moment: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Start Ray in a process of its own with this folder for temporary files, and kill at a moment."""
    environment = os.environ | {MARK: folder.name, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", START, moment], env=environment, capture_output=True, text=True, timeout=SOON_S
    )


def left_of(folder: Path) -> list[str]:
    """Return the processes and folders that are left after a few seconds."""
    until = time.monotonic() + 15.0
    while (left := alive(folder.name)) and time.monotonic() < until:
        os.sched_yield()
    return left + [str(path) for path in folder.glob("p2s-ray-*")]


@pytest.fixture
def folder() -> Iterator[Path]:
    # Sockets need a short path.
    made = Path(tempfile.mkdtemp(prefix="p2s-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(("moment", "name"), [("while Ray starts", "gcs_server"), ("after its start", "raylet")])
def test_the_command_ends_soon_in_our_words_and_nothing_is_left(moment: str, name: str, folder: Path) -> None:
    ended = run(moment, folder)
    assert ended.returncode == 2, ended.stderr
    assert f"paras2s: Ray's process {name} has ended" in ended.stderr
    assert left_of(folder) == []


def test_agents_of_a_killed_command_are_ended_by_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("with the command", folder).returncode == -signal.SIGKILL
    assert len(alive(folder.name)) == 2
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    local_ray.session_folder().rmdir()
    assert left_of(folder) == []
