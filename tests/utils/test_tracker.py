"""A tracker never stops a run: its own variables hold, and what it cannot do is said once.

By scripted `wandb`, `trackio` and TensorBoard, with the calls that their true libraries take: tried by hand with
trackio 0.43.0, tensorboard 2.21.0 and wandb 0.31.0 offline.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

from paras2s.configs.schema.run import RunConfig
from paras2s.run import Run
from paras2s.utils import tracker
from paras2s.utils.progress import open_console
from paras2s.utils.tracker import TrackedAnswer


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a process begins: nothing requested, opened or failed; every package is installed."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_DISABLED", "TRACKIO_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: name)
    for state in (tracker._opened, tracker._failed):
        state.clear()
    yield
    for state in (tracker._opened, tracker._failed):
        state.clear()


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    scripted = SimpleNamespace(error=None, begun=[], logged=[], Settings=lambda **given: given)

    def init(**options: Any) -> SimpleNamespace:
        scripted.begun.append(options)
        if scripted.error is not None:
            raise scripted.error
        return SimpleNamespace(log=lambda row, step: scripted.logged.append((step, row)))

    scripted.init = init
    monkeypatch.setitem(sys.modules, "wandb", scripted)
    return scripted


def logged_steps(folder: Path, *trackers: str) -> Run:
    run = Run(RunConfig(name="x", run_dir=folder, trackers=trackers), open_console())
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
    run = Run(RunConfig(name="x", run_dir=tmp_path, trackers=("trackio", "tensorboard")), open_console())
    run.open()
    run.open()
    said = capsys.readouterr().out
    assert [said.count(f"pip install 'paras2s[{kind}]'") for kind in tracker.KINDS] == [1, 1, 1]
    run.log_step({"step": 0})
    assert not wandb.begun


def test_the_config_names_every_kind() -> None:
    (kinds, *_) = get_args(RunConfig.model_fields["trackers"].annotation)
    assert get_args(kinds) == tuple(tracker.KINDS)


ANSWERS = (
    TrackedAnswer("q0", (np.array([0.5, -2.0], np.float32), 16_000), "hello", (np.array([0.25], np.float32), 8_000), "hi",
                  {"reward": 4.0, "length": 3.0}),
    TrackedAnswer("q1", None, "bye | now", None, "", {}, "rubric: silent"),
)  # fmt: skip
COLUMNS = ["query", "transcript", "text", "reward", "length", "unscored"]
ROWS = [["q0", "hello", "hi", 4.0, 3.0, ""], ["q1", "bye | now", "", None, None, "rubric: silent"]]


def test_answers_of_wandb_are_a_table_that_plays(
    wandb: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wandb.Audio = lambda samples, sample_rate: (len(samples), sample_rate)
    wandb.Table = lambda columns, data: (columns, data)
    run = logged_steps(tmp_path, "wandb")
    run.trackers.log_answers(3, lambda: ANSWERS)
    (step, logged), columns = wandb.logged[-1], [*COLUMNS, "question", "answer"]
    assert (step, logged) == (3, {"answers": (columns, [[*ROWS[0], (2, 16_000), (1, 8_000)], [*ROWS[1], None, None]])})


@pytest.mark.parametrize(("first", "resume"), [(0, "never"), (5, "allow")])
def test_trackio_gets_steps_a_table_and_sounds(
    first: int, resume: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[Any] = []

    def begin(**options: Any) -> SimpleNamespace:
        print("Trackio prints")
        logged.append(options)
        return SimpleNamespace(log=lambda values, step: logged.append((step, values)))

    def audio(samples: np.ndarray, sample_rate: int, caption: str) -> tuple[Any, ...]:
        return str(samples.dtype), samples.tolist(), sample_rate, caption

    def finish() -> None:
        print("and here")

    scripted = SimpleNamespace(init=begin, finish=finish, Audio=audio, Table=lambda columns, data: (columns, data))
    monkeypatch.setitem(sys.modules, "trackio", scripted)
    run = Run(RunConfig(run_dir=tmp_path / "demo-seed1", trackers=("trackio",)), open_console())
    run.log_step({"step": first, "reward": 1.0, "kl": None})
    run.trackers.log_answers(first, lambda: ANSWERS)
    tracker._opened["trackio"][1].close()
    assert logged[0] == {"project": "paras2s", "name": "demo-seed1", "resume": resume, "embed": False}
    # Its table shows no sound, and it would turn floats up to full scale.
    sounds = {
        "answers/0 question": ("int16", [16383, -32767], 16_000, "hello"),
        "answers/0 answer": ("int16", [8191], 8_000, "hi"),
    }
    assert logged[1:] == [(first, {"reward": 1.0}), (first, {"answers": (COLUMNS, ROWS), **sounds})]
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "Trackio prints\nand here\n")


def test_tensorboard_gets_steps_texts_and_sounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            self.calls: list[Any] = [(folder, purge_step)]

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.calls.append((name, value, step))

        def add_audio(self, name: str, samples: np.ndarray, step: int, sample_rate: int) -> None:
            self.calls.append((name, samples.tolist(), step, sample_rate))

        def add_text(self, name: str, text: str, step: int) -> None:
            self.calls.append((name, text, step))

        def flush(self) -> None:
            self.calls.append("flush")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    run = Run(RunConfig(run_dir=tmp_path, trackers=("tensorboard",)), open_console())
    run.log_step({"step": 5, "reward": 1.0, "kl": None})
    run.trackers.log_answers(5, lambda: ANSWERS)
    begun, scalar, flushed, (name, text, step), *sounds, last = tracker._opened["tensorboard"][1]._writer.calls
    # Steps from 5 on, which a stopped process may have logged, give way.
    assert (begun, scalar, flushed, last) == ((str(tmp_path / "tensorboard"), 5), ("reward", 1.0, 5), "flush", "flush")
    assert (name, step) == ("answers", 5)
    assert r"| q1 | bye \| now |" in text
    assert "rubric: silent" in text
    assert sounds == [("answers/0 question", [0.5, -1.0], 5, 16_000), ("answers/0 answer", [0.25], 5, 8_000)]


class Broken:
    """A tracker that fails in one of its calls."""

    def __init__(self, where: str, error: BaseException) -> None:
        self.calls, self._where, self._error = list[str](), where, error
        self._do("open")

    def _do(self, what: str) -> None:
        self.calls.append(what)
        if what == self._where:
            raise self._error

    def log(self, step: int, values: object) -> None:
        self._do("log")

    def log_answers(self, step: int, answers: object) -> None:
        self._do("log_answers")

    def close(self) -> None:
        self._do("close")


@pytest.mark.parametrize("kind", list(tracker.KINDS))
@pytest.mark.parametrize(
    ("where", "error"),
    [("open", SystemExit(3)), ("log", OSError("disk full")), ("log_answers", ValueError("NaN")), ("close", TimeoutError())],
)
def test_a_tracker_that_fails_is_left_out_and_the_others_go_on(
    kind: str,
    where: str,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: dict[str, list[Broken]] = {name: [] for name in tracker.KINDS}
    for name, made in tracker.KINDS.items():

        def start(*_: object, name: str = name) -> Broken:
            opened[name].append(tried := Broken(where if name == kind else "", error))
            return tried

        monkeypatch.setitem(tracker.KINDS, name, replace(made, open=start))
    for folder in ("first", "second"):
        run = logged_steps(tmp_path / folder, *tracker.KINDS)
        run.trackers.log_answers(3, lambda: ANSWERS)
    said = capsys.readouterr().out
    assert said.count("is left out") == said.count(f"{tracker.KINDS[kind].title} is left out") == 1
    for name, tried in opened.items():
        if name != kind:
            # Another run opens its own and closes the one before.
            assert [one.calls for one in tried] == [
                ["open", "log", "log", "log", "log_answers", "close"],
                ["open", "log", "log", "log", "log_answers"],
            ]


def test_answers_that_cannot_be_made_stop_nothing_and_are_made_for_a_tracker_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(tracker.KINDS, "trackio", replace(tracker.KINDS["trackio"], open=lambda *_: Broken("", OSError())))

    def fail() -> list[TrackedAnswer]:
        raise FileNotFoundError("question.wav")

    Run(RunConfig(run_dir=tmp_path), open_console()).trackers.log_answers(0, fail)
    assert capsys.readouterr().out == ""
    Run(RunConfig(run_dir=tmp_path, trackers=("trackio",)), open_console()).trackers.log_answers(0, fail)
    assert "Trackio is left out (FileNotFoundError: question.wav)" in capsys.readouterr().out
