"""The sdist makes a wheel that holds every file of the package and runs outside of the repository.

Not covered: its dependencies, which are those of the environment that runs the tests, and a whole run from it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
RUN = "import paras2s, sys; print(paras2s.__file__); from paras2s.cli.app import main; sys.argv[0] = 'paras2s'; main()"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "paras2s", source / "paras2s", ignore=shutil.ignore_patterns("__pycache__"))
    # The setuptools that is installed is enough: nothing is fetched.
    build(source, "build_sdist", made)
    (sdist,) = made.glob("*.tar.gz")
    with tarfile.open(sdist) as held:
        held.extractall(made, filter="data")
    build(made / sdist.name.removesuffix(".tar.gz"), "build_wheel", made)
    (path,) = made.glob("*.whl")
    return path


def build(source: Path, what: str, made: Path) -> None:
    subprocess.run([sys.executable, "-c", BUILD, what, made], cwd=source, check=True, capture_output=True, timeout=120)


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "paras2s").rglob("*") if path.is_file()}
    assert sorted(name for name in files - held if "__pycache__" not in name) == []
    (named,) = [name for name in held if name.endswith("entry_points.txt")]
    assert "paras2s = paras2s.cli.app:main" in zipfile.ZipFile(wheel).read(named).decode()


def test_it_runs_outside_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    env = {**os.environ, "PYTHONPATH": str(installed)}
    words = ("demo", "--preset", "quick", "--dry-run")
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed))
    assert "GRPO over" in done.stdout
