"""Weights & Biases never stops a run: its modes hold, and what it cannot do is said once. By a scripted `wandb`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paras2s.configs.schema.run import RunConfig
from paras2s.run import Run
from paras2s.utils import tracker
from paras2s.utils.progress import open_console


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    scripted = SimpleNamespace(error=None, begun=[], logged=[], Settings=lambda **given: given)

    def init(**options: Any) -> SimpleNamespace:
        scripted.begun.append(options)
        if scripted.error is not None:
            raise scripted.error
        return SimpleNamespace(log=lambda row, step: scripted.logged.append((step, row)))

    scripted.init = init
    monkeypatch.setitem(sys.modules, "wandb", scripted)
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: scripted)
    tracker._start.cache_clear()
    tracker._problems.clear()
    yield scripted
    tracker._start.cache_clear()
    tracker._problems.clear()


def logged_steps(folder: Path) -> Run:
    run = Run(RunConfig(name="x", run_dir=folder), open_console())
    run.open()
    for step in range(3):
        run.log_step({"step": step, "reward": 1.0, "kl": None})
    assert len(run.metrics()) == 3
    return run


@pytest.mark.parametrize(
    ("environment", "begun", "project"),
    [
        ({}, 0, ""),
        ({"WANDB_API_KEY": "a" * 40}, 1, "paras2s"),
        ({"WANDB_API_KEY": "a" * 40, "WANDB_PROJECT": "mine"}, 1, "mine"),
        ({"WANDB_API_KEY": "a" * 40, "WANDB_MODE": "disabled"}, 0, ""),
        ({"WANDB_API_KEY": "a" * 40, "WANDB_DISABLED": "true"}, 0, ""),
        ({"WANDB_API_KEY": "a" * 40, "WANDB_MODE": "offline"}, 1, "paras2s"),
        ({"WANDB_MODE": "offline"}, 1, "paras2s"),
    ],
)
def test_its_own_variables_hold(
    wandb: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    environment: dict[str, str],
    begun: int,
    project: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    logged_steps(tmp_path)
    assert len(wandb.begun) == begun
    if begun:
        assert wandb.begun[0]["project"] == project
        assert "mode" not in wandb.begun[0]
        assert wandb.logged == [(step, {"step": step, "reward": 1.0}) for step in range(3)]


@pytest.mark.parametrize("error", [RuntimeError("no network"), TimeoutError(), SystemExit(1), OSError("no folder")])
def test_a_failure_is_said_once_and_the_run_goes_on(
    wandb: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    wandb.error = error
    logged_steps(tmp_path)
    assert len(wandb.begun) == 1
    assert capsys.readouterr().out.count("Weights & Biases is left out") == 1


def test_what_is_not_installed_is_said_before_the_first_stage(
    wandb: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: None)
    run = Run(RunConfig(name="x", run_dir=tmp_path), open_console())
    run.open()
    assert "pip install 'paras2s[wandb]'" in capsys.readouterr().out
    run.log_step({"step": 0})
    assert not wandb.begun
