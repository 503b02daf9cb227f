"""A local Ray whose processes are killed, with real processes: the command ends soon, in our words, and leaves none behind."""

from __future__ import annotations

import contextlib
import os
import re
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

if not Path("/proc/self/comm").exists():
    pytest.skip("reads /proc", allow_module_level=True)

START = """
import contextlib, os, signal, sys, time
from ray._private import node
from paras2s.rollout import local_ray

started = node.Node.start_gcs_server
def start_and_kill(self, *given, **named):
    started(self, *given, **named)
    self.all_processes["gcs_server"][0].process.kill()
if sys.argv[1] == "while Ray starts":
    node.Node.start_gcs_server = start_and_kill
    local_ray.START_PATIENCE_S = 3.0
local_ray.start_ray(None, 1)
import psutil

def agents():
    named = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            named += [process.pid] if "Agent" in process.name() else []
    return named

while len(agents()) < 2:
    time.sleep(0.1)
family = psutil.Process().children(recursive=True)
print("pids", *(process.pid for process in family), flush=True)
if sys.argv[1] == "with the command":
    kept = agents()
    for process in family:
        if process.pid not in kept:
            with contextlib.suppress(psutil.Error):
                process.kill()
    os.kill(os.getpid(), signal.SIGKILL)
[raylet] = [process for process in family if process.name() == "raylet"]
raylet.kill()
time.sleep(100)
"""
JOIN = """
import time
from ray.cluster_utils import Cluster
from paras2s.rollout import local_ray

local_ray.HEAD_MISSED_S, local_ray.HEAD_PATIENCE_S = 1.0, 4.0
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
local_ray.start_ray(cluster.address)
cluster.head_node.kill_gcs_server()
time.sleep(100)
"""
# Ray itself waits for a minute.
SOON_S = 40.0


def run(code: str, moment: str, folder: Path) -> tuple[int, str, list[int]]:
    """Start Ray in a process of its own with this folder for temporary files, and kill; return code, errors and Ray's pids."""
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, moment]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SOON_S)
    lines = [line.split()[1:] for line in ended.stdout.splitlines() if line.startswith("pids ")]
    return ended.returncode, ended.stderr, [int(pid) for line in lines for pid in line]


def line_of(pid: int) -> str:
    """Return the command line of a process; "" for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def holding(folder: Path) -> set[int]:
    """Return the processes that hold files below a folder open, removed ones too."""
    held: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(f"{folder}/"):
                held.add(int(path.parts[2]))
    return held


def left_of(pids: list[int], folder: Path) -> set[int]:
    """Return the processes that are left after a few seconds: of these, and of those that hold files below the folder open."""
    until = time.monotonic() + 15.0
    while (left := {pid for pid in pids if line_of(pid)} | holding(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


@pytest.fixture
def folder() -> Iterator[Path]:
    # Sockets need a short path.
    made = Path(tempfile.mkdtemp(prefix="p2s-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(("moment", "name"), [("while Ray starts", "gcs_server"), ("after its start", "raylet")])
def test_the_command_ends_soon_in_our_words_and_nothing_is_left(moment: str, name: str, folder: Path) -> None:
    code, said, pids = run(START, moment, folder)
    assert code == 2, said
    assert f"paras2s: Ray's process {name} has ended" in said
    assert len(pids) >= 4 or moment == "while Ray starts"
    assert left_of(pids, folder) == set()
    assert list(folder.glob("p2s-ray-*")) == []


def test_the_death_of_a_joined_clusters_head_ends_the_command_in_our_words(folder: Path) -> None:
    code, said, _ = run(JOIN, "", folder)
    assert code == 2, said
    first, last = [line for line in said.splitlines() if line.startswith("paras2s: the head of the Ray cluster at ")]
    assert "does not answer; waiting 4 s for it" in first
    assert re.search(r"has not answered for \d+ s; the same command", last)


def test_agents_of_a_killed_command_are_ended_by_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, pids = run(START, "with the command", folder)
    assert code == -signal.SIGKILL, said
    agents = [pid for pid in pids if "Agent" in line_of(pid)]
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    local_ray.session_folder().rmdir()
    assert len(agents) == 2
    assert left_of(pids, folder) == set()
