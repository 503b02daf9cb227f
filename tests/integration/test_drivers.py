"""Both drivers with real Ray on this machine: the same questions, seeds and weights, whoever does the work.

A synchronous run, and an asynchronous one without staleness, resume to the weights of an uninterrupted run. An asynchronous
one that allows staleness does not: what was under way is sampled again after the resumption, with newer weights.

Not covered: machines (test_cluster.py), GPUs, and time (benchmarks/drivers.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from tiny.alignment import ANSWER_STEPS, assert_same_policy, logged, policy_of, tiny_alignment

from paras2s.align_async import align_async
from paras2s.configs.schema.run import RoleConfig
from paras2s.errors import ConfigError, PolicyError
from paras2s.grpo import align
from paras2s.grpo_run import Alignment
from paras2s.policy.types import Sampling
from paras2s.rollout import worker_group, workers
from paras2s.rollout.orchestrator import Orchestrator, PendingBatch, PromptBatch
from paras2s.types import Unscored

LOOK = 3_000_000  # the step of a look at held-out questions


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    workers.start_ray(None, cpus=8)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Alignment:
    """One worker of a role, one step after the other, nothing lost."""
    alignment = tiny_alignment(tmp_path_factory.mktemp("sync"))
    align(alignment, resume=False)
    return alignment


def assert_close(found: Alignment, expected: Alignment) -> None:
    """The same but for rounding."""
    assert_same_policy(found, expected, atol=1e-4)
    for one, other in zip(logged(found), logged(expected), strict=True):
        assert one == {key: pytest.approx(value, rel=1e-3, abs=1e-4) for key, value in other.items()}


def test_a_run_learns_logs_and_looks(expected: Alignment) -> None:
    rows = logged(expected)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [row["staleness"] for row in rows] == [0, 0, 0, 0]
    assert ["validation_reward" in row for row in rows] == [True, False, True, True]
    assert (expected.checkpoints / "step_000004" / "trainer.json").is_file()
    before = tiny_alignment(expected.run.folder.parent).run.load_policy(expected.run.sft_dir).model.state_dict()
    assert any(not np.array_equal(before[name].numpy(), after) for name, after in policy_of(expected).items())


def test_without_staleness_the_asynchronous_driver_does_the_same(expected: Alignment, tmp_path: Path) -> None:
    found = tiny_alignment(tmp_path, max_staleness=0)
    align_async(found, resume=False)
    assert_same_policy(found, expected)
    assert logged(found) == logged(expected)


class Recorder:
    """What a fleet is asked, in order, looks aside: steps with the weights' version, and how many are then under way."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun: list[tuple[int, int]] = []
        self.under_way: list[int] = []
        begin, collect, present = Orchestrator.begin, Orchestrator.collect, set[int]()

        def recorded_begin(fleet: Orchestrator, asked: PromptBatch, group: int, sampling: Sampling) -> PendingBatch:
            if asked.step != LOOK:
                present.add(asked.step)
                self.begun.append((asked.step, fleet.version))
                self.under_way.append(len(present))
            return begin(fleet, asked, group, sampling)

        def recorded_collect(fleet: Orchestrator, underway: PendingBatch) -> Any:
            present.discard(underway.asked.step)
            return collect(fleet, underway)

        patch.setattr(Orchestrator, "begin", recorded_begin)
        patch.setattr(Orchestrator, "collect", recorded_collect)


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> tuple[Alignment, Recorder]:
    """Answers of one update before."""
    alignment = tiny_alignment(tmp_path_factory.mktemp("stale"), max_staleness=1, importance_cap=2.0)
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(patch)
        align_async(alignment, resume=False)
    return alignment, recorder


def test_answers_are_as_stale_as_allowed_and_no_staler(stale: tuple[Alignment, Recorder], expected: Alignment) -> None:
    found, recorder = stale
    assert [row["staleness"] for row in logged(found)] == [0, 1, 1, 1]
    assert recorder.begun == [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert max(recorder.under_way) == 2
    assert any(not np.array_equal(one, policy_of(expected)[name]) for name, one in policy_of(found).items())


def test_two_updates_of_staleness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    found = tiny_alignment(tmp_path, steps=6, max_staleness=2, importance_cap=2.0)
    align_async(found, resume=False)
    assert [row["staleness"] for row in logged(found)] == [0, 1, 2, 2, 2, 2]
    assert recorder.begun == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 3)]
    assert max(recorder.under_way) == 3


class Killed(Exception):
    """In place of a signal."""


def run_killed_in(step: int, alignment: Alignment, driver: Any) -> None:
    """Up to where this step has been learned, and is neither logged nor saved."""
    keep = Alignment.keep

    def killed(alignment: Alignment, fleet: Orchestrator, number: int, *more: Any) -> None:
        if number == step:
            raise Killed
        keep(alignment, fleet, number, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Alignment, "keep", killed)
        with pytest.raises(Killed):
            driver(alignment, False)


@pytest.mark.parametrize("driver", [align, align_async])
def test_a_killed_run_resumes_to_the_same_weights(driver: Any, expected: Alignment, tmp_path: Path) -> None:
    found = tiny_alignment(tmp_path, max_staleness=None if driver is align else 0)
    run_killed_in(3, found, driver)
    assert [row["step"] for row in logged(found)] == [0, 1, 2]
    driver(found, True)
    assert_same_policy(found, expected)
    assert logged(found) == logged(expected)


def test_a_killed_run_with_staleness_samples_anew_what_was_under_way(
    stale: tuple[Alignment, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to its checkpoint it is the uninterrupted run, and behind it the answers are younger."""
    found = tiny_alignment(tmp_path, max_staleness=1, importance_cap=2.0)
    run_killed_in(3, found, align_async)
    recorder = Recorder(monkeypatch)
    align_async(found, resume=True)
    assert recorder.begun == [(2, 2), (3, 2)]
    assert logged(found)[:2] == logged(stale[0])[:2]
    assert [(row["step"], row["staleness"]) for row in logged(found)] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_two_learner_ranks_are_as_one(expected: Alignment, tmp_path: Path) -> None:
    found = tiny_alignment(tmp_path, learner_workers=2)
    align(found, resume=False)
    assert_close(found, expected)


def test_several_workers_of_a_role_are_as_one(expected: Alignment, tmp_path: Path) -> None:
    found = tiny_alignment(tmp_path, rollout_workers=2, reward_workers=3)
    align(found, resume=False)
    assert_close(found, expected)


def kill_one(monkeypatch: pytest.MonkeyPatch, role: str, at_step: int) -> list[int]:
    """From this step on one worker of the role dies of its next call; returns where its process id will be."""
    begin, died = Orchestrator.begin, []

    def sabotage(actor: Any) -> int:
        def die(*_: object, **__: object) -> None:
            os._exit(1)

        if hasattr(actor, "engine"):
            actor.engine.generate = die
        else:
            actor._panel = type("Deadly", (), {"score": die, "needs_sound": False})()
        return os.getpid()

    def sabotaged(fleet: Orchestrator, asked: PromptBatch, group: int, sampling: Sampling) -> PendingBatch:
        if asked.step == at_step:
            died.append(ray.get(getattr(fleet, role).workers[0].actor.__ray_call__.remote(sabotage)))
        return begin(fleet, asked, group, sampling)

    monkeypatch.setattr(Orchestrator, "begin", sabotaged)
    return died


@pytest.mark.parametrize("role", ["rollout", "reward"])
def test_a_worker_that_dies_is_replaced(
    role: str, expected: Alignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the only one of its role, so the one that takes its place does its work."""
    died = kill_one(monkeypatch, role, at_step=1)
    found = tiny_alignment(tmp_path)
    align(found, resume=False)
    assert len(died) == 1
    assert_same_policy(found, expected)
    assert logged(found) == logged(expected)


def test_a_worker_that_dies_with_two_batches_before_it_is_replaced(
    stale: tuple[Alignment, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are sampled again with the weights that they were asked with, which are not the newest by then."""
    died = kill_one(monkeypatch, "rollout", at_step=2)
    found = tiny_alignment(tmp_path, max_staleness=1, importance_cap=2.0)
    align_async(found, resume=False)
    assert len(died) == 1
    assert_same_policy(found, stale[0])
    assert logged(found) == logged(stale[0])


def test_questions_that_end_every_worker_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @ray.remote
    class DeadlyWorker:
        def __init__(self, *_: object) -> None:
            pass

        def generate(self, *_: object) -> None:
            os._exit(1)

    monkeypatch.setattr(workers, "RolloutWorker", DeadlyWorker)
    monkeypatch.setattr(worker_group, "TRIES", 2)
    with pytest.raises(PolicyError, match=r"2 rollout workers were lost over the same questions \(.*DeadlyWorker.*--resume"):
        align(tiny_alignment(tmp_path), resume=False)


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    found = tiny_alignment(tmp_path, engine="vllm")
    with pytest.raises(PolicyError, match=r"align\.engine: vllm samples single-stream policies"):
        align(found, resume=False)


def test_a_role_that_does_not_fit_is_named_and_nothing_stays_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "PLACEMENT_TIMEOUT_S", 3.0)
    found = tiny_alignment(tmp_path, rollout_workers=2, rollout=RoleConfig(cpus=1, gpus=8))
    started = time.monotonic()
    named = r"align.rollout_workers: 2 x \{'CPU': 1.0, 'GPU': 8.0\} do not fit.*change align.rollout"
    with pytest.raises(ConfigError, match=named):
        align(found, resume=False)
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert time.monotonic() - started < 60
        time.sleep(0.05)


def test_what_a_worker_refuses_is_raised_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tiny_alignment(tmp_path)
    monkeypatch.setattr(Orchestrator, "collect", lambda *_: ([], [[Unscored("rubric", "no words")]] * 4))
    with pytest.raises(PolicyError, match=r"step 0: 4 of 4 answers are unscored \(no words\)"):
        align(found, resume=False)
    assert logged(found) == []


def test_a_question_that_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(-1.0, 1.0, ANSWER_STEPS)
    monkeypatch.setattr(Alignment, "sampling", property(lambda _: sampling))
    with pytest.raises(PolicyError, match="temperatures must be above 0"):
        align(tiny_alignment(tmp_path), resume=False)
