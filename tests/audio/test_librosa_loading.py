"""Processes that load librosa at once share one cache of compiled functions, which a later one can read.

Not covered: that without the lock the cache may be spoilt; the race is lost now and then.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import numpy as np
from paras2s.audio.librosa_loading import load_librosa
tone = np.sin(2 * np.pi * 200 * np.arange(8_000) / 8_000).astype(np.float32)
print(round(float(np.median(load_librosa().yin(tone, fmin=60, fmax=500, sr=8_000)))))
"""


def test_two_at_once_and_then_a_third(tmp_path: Path) -> None:
    pytest.importorskip("librosa")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE, text=True)

    both = [start(), start()]
    for one in [*both, start()]:
        printed, _ = one.communicate(timeout=300)
        assert (one.returncode, printed) == (0, "200\n")
    files = [path.name for path in tmp_path.rglob("*.nbi")]
    assert any("localmin" in name for name in files)
    # Only one of the two compiled.
    assert len(files) == len(set(files))


def test_where_the_users_folder_cannot_be_written_the_process_has_its_own_and_removes_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = "from paras2s.audio.librosa_loading import cache_folder as own; print(own(), own(), own().is_dir())"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    first, second, there = printed.split()
    assert (Path(first).parent, there) == (tmp_path, "True")
    assert first != second
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
