"""A local Ray whose processes are killed, with real processes: the command ends soon, in our words, and leaves none behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

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


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
@pytest.mark.parametrize(("moment", "name"), [("while Ray starts", "gcs_server"), ("after its start", "raylet")])
def test_the_command_ends_soon_in_our_words_and_nothing_is_left(moment: str, name: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="p2s-", dir="/tmp"))
    mark, paths = folder.name, os.pathsep.join(sys.path)
    environment = os.environ | {MARK: mark, "TMPDIR": str(folder), "PYTHONPATH": paths}
    ended = subprocess.run(
        [sys.executable, "-c", START, moment], env=environment, capture_output=True, text=True, timeout=SOON_S
    )
    assert ended.returncode == 2, ended.stderr
    assert f"paras2s: Ray's process {name} has ended" in ended.stderr
    until = time.monotonic() + 15.0
    while (left := alive(mark)) and time.monotonic() < until:
        os.sched_yield()
    assert left == []
    assert list(folder.glob("p2s-ray-*")) == []
    folder.rmdir()
