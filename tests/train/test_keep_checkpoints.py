"""Which checkpoints stay: the newest and the best by validation, whenever a run is killed; and what one refuses to go on from.

Not covered: a disk that loses what it has confirmed, and removal on storage that several machines share.
"""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy
from tiny.job import tiny_job
from tiny.learner import STEPS
from tiny.settings import align_config

from paras2s.align.checkpoints import announce_checkpoints, finish_step
from paras2s.errors import ConfigError, DataError, PolicyError
from paras2s.policy.weights import fingerprint
from paras2s.train import checkpoint
from paras2s.train.checkpoint import (
    Position,
    best_by_validation,
    checkpoints_in,
    describe_size,
    latest_checkpoint,
    read_position,
    remove_all,
    remove_superseded,
    step_name,
    superseded,
    write_position,
)
from paras2s.train.learner import Learner


def rows(*rewards: float | None) -> list[dict[str, Any]]:
    """A log whose n-th step was evaluated with the n-th reward; None: no answer was scored."""
    return [{"step": step, "validation_reward": value} for step, value in enumerate(rewards)]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (rows(3.0, 4.0, 2.0), 2),
        (rows(4.0, 4.0), 1),
        (rows(None, 1.0, None), 2),
        (rows(None), None),
        ([{"step": 0}, {"step": 1, "validation_reward": 2.0}, {"step": 2}], 2),
        ([], None),
    ],
    ids=["highest", "the first of equals", "unscored", "none scored", "not every step", "nothing"],
)
def test_the_best_is_the_highest_validation_reward(log: list[dict[str, Any]], expected: int | None) -> None:
    assert best_by_validation(log) == expected


@pytest.mark.parametrize(
    ("updates", "keep", "best", "expected"),
    [
        ([10, 20, 30], 2, None, [10]),
        ([10, 20, 30], 1, 10, [20]),
        ([30, 10, 20], 1, 30, [10, 20]),
        ([10, 20], 5, None, []),
        ([10, 20], None, None, []),
        ([10, 20, 30], 1, 99, [10, 20]),
        ([], 1, None, []),
    ],
    ids=["newest two", "and the best", "which is the newest", "few", "all", "the best was never written", "nothing"],
)
def test_what_newer_ones_supersede(updates: list[int], keep: int | None, best: int | None, expected: list[int]) -> None:
    assert superseded(updates, keep, best) == expected


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        # Checkpoints after 10, 20, 30; evaluations after 1, 11, 21, 30.
        ({"steps": 30, "checkpoint_every": 10, "evaluate_every": 10, "keep_checkpoints": None}, 6),
        ({"steps": 30, "checkpoint_every": 10, "evaluate_every": 10, "keep_checkpoints": 2}, 4),
        ({"steps": 2, "checkpoint_every": 10, "evaluate_every": 10, "keep_checkpoints": 5}, 2),
    ],
)
def test_how_many_there_are_at_once(settings: dict[str, Any], most: int) -> None:
    assert align_config(**settings).most_checkpoints == most


def make(folder: Path, *updates: int) -> None:
    for number in updates:
        write_position(folder / step_name(number), Position(number))
        (folder / step_name(number) / "trained.safetensors").write_bytes(b"weights")


class Killed(BaseException):
    """In place of a signal."""


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("before", [True, False], ids=["before its files go", "with half of them gone"])
def test_a_kill_while_old_ones_are_removed_leaves_the_newest(
    at: int, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, 1, 2, 3, 4, 5)
    rmtree, calls = shutil.rmtree, []

    def killed(folder: Path, **options: Any) -> None:
        calls.append(folder)
        if len(calls) <= at:
            rmtree(folder, **options)
            return
        if not before:
            (folder / "trained.safetensors").unlink()
        raise Killed

    monkeypatch.setattr(checkpoint.shutil, "rmtree", killed)
    with pytest.raises(Killed):
        remove_superseded(tmp_path, 1, 2)
    monkeypatch.undo()
    # The one in question is no checkpoint any more, the others are whole.
    assert list(checkpoints_in(tmp_path)) == {0: [2, 3, 4, 5], 1: [2, 4, 5], 2: [2, 5]}[at]
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert (newest.name, read_position(newest).next_step) == ("step_000005", 5)
    assert all((path / "trained.safetensors").is_file() for path in checkpoints_in(tmp_path).values())
    remove_superseded(tmp_path, 1, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000005"]


def test_one_that_was_never_finished_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    make(tmp_path, 1, 2)
    half = tmp_path / step_name(3)
    half.mkdir()
    (half / "trained.safetensors").write_bytes(b"half of it")
    assert latest_checkpoint(tmp_path) == tmp_path / step_name(2)
    remove_superseded(tmp_path, None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000002"]
    remove_all(tmp_path)
    assert latest_checkpoint(tmp_path) is None


def test_a_run_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    """Evaluated after steps 0, 3, 6, 7; the third is the best, and is written though no checkpoint is due."""
    job = tiny_job(tmp_path, steps=8, checkpoint_every=2, evaluate_every=3, keep_checkpoints=1)
    saved: list[str] = []

    def save(folder: Path) -> None:
        saved.append(folder.name)
        make(job.checkpoints, int(folder.name[5:]))

    workers, bar = SimpleNamespace(save=save), SimpleNamespace(at=lambda *_: None)
    for step, validation in enumerate([2.0, None, None, 1.0, None, None, 3.0, 2.5]):
        metrics: dict[str, Any] = {"step": step, "reward_mean": 1.0}
        if job.config.evaluates_after(step):
            metrics["validation_reward"] = validation
        finish_step(job, workers, step, metrics, bar)  # type: ignore[arg-type]
    assert saved == [step_name(number) for number in (1, 2, 4, 6, 7, 8)]
    assert list(checkpoints_in(job.checkpoints)) == [7, 8]


def test_sizes_are_said_and_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tiny_job(tmp_path, steps=30, checkpoint_every=10, evaluate_every=10)
    announce_checkpoints(job, 1000)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(3 * 10**9))
    with pytest.raises(ConfigError, match=r"align.keep_checkpoints: 4 checkpoints of 1 GB do not fit: .* has 3 GB left"):
        announce_checkpoints(job, 10**9)
    # One of the four is there already.
    make(job.checkpoints, 10)
    announce_checkpoints(job, 10**9)
    assert describe_size(2 * 10**9, 4, True) == "checkpoints: 2 GB each (adapters and optimiser), at most 4 at once: 8 GB"


def make_learner(base: str | None = None, **values: Any) -> Learner:
    torch.manual_seed(0)
    policy = small_policy(small_model(small_config()))
    return Learner(policy, align_config(lr=0.01, **values), STEPS, base=base)


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 4}], ids=["all weights", "adapters"])
def test_a_checkpoint_is_as_large_as_was_said(tmp_path: Path, lora: Any) -> None:
    """Float64 weights and adapters; the optimiser has two numbers a weight, and a step each."""
    learner = make_learner(lora=lora)
    for parameter in learner.policy.trainable().values():
        parameter.grad = torch.ones_like(parameter)
    learner.optimiser.step()
    learner.save(tmp_path)
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    tensors = len(learner.policy.trainable())
    assert learner.checkpoint_bytes < written < learner.checkpoint_bytes + 600 * tensors + 10_000


def test_a_newer_version_a_broken_sign_and_other_weights_are_refused(tmp_path: Path) -> None:
    make_learner("abc").save(tmp_path)
    path = tmp_path / "trainer.json"
    with pytest.raises(PolicyError, match=r"trainer.json: was trained from other weights .*\(abc, here def\)"):
        make_learner("def").restore(tmp_path)
    make_learner("abc").restore(tmp_path)
    # Of a version that wrote no base.
    path.write_text('{"next_step": 4}')
    other = make_learner("def")
    other.restore(tmp_path)
    assert other.next_step == 4
    path.write_text(json.dumps({"version": 2, "next_step": 4}))
    with pytest.raises(PolicyError, match=r"trainer.json: is of version 2 of checkpoints, this program reads 1; install"):
        make_learner().restore(tmp_path)
    path.write_text('{"version": 1}')
    with pytest.raises(DataError, match=r"trainer.json: does not say which step"):
        make_learner().restore(tmp_path)


def test_a_fingerprint_is_of_the_weights(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        small_policy(small_model(small_config(), seed=seed)).save(tmp_path / name)
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "same") != fingerprint(tmp_path / "other")
    assert fingerprint(tmp_path) is None
