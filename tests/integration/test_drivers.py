"""Both drivers with real Ray on this machine: the same questions, seeds and weights, whoever does the work.

A synchronous run, and an asynchronous one without staleness, resume to the weights of an uninterrupted run. An asynchronous
one that allows staleness does not: what was under way is sampled again after the resumption, with newer weights.

Not covered: machines (test_cluster.py), GPUs, and time (benchmarks/drivers.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.util.placement_group import placement_group_table
from tiny.job import ANSWER_STEPS, assert_same_policy, counts, logged, policy_of, tiny_job
from tiny.learner import Demonstrations

from paras2s import grpo
from paras2s.align.job import GRPOJob
from paras2s.errors import ConfigError, PolicyError
from paras2s.grpo import train_grpo
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import Sampling
from paras2s.rollout import worker_group, workers
from paras2s.rollout.local_ray import start_ray
from paras2s.rollout.orchestrator import Orchestrator, PendingBatch, PromptBatch, StepAnswers
from paras2s.rollout.store import FOLDER as ROLLOUTS
from paras2s.rollout.timeline import FILE
from paras2s.rollout.validation_answers import kept_evaluations
from paras2s.train.sft import Example
from paras2s.types import Unscored
from paras2s.utils.io import read_jsonl
from paras2s.utils.seeds import FirstStep


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    start_ray(None, cpus=8)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> GRPOJob:
    """One worker of a role, one step after the other, nothing lost."""
    job = tiny_job(tmp_path_factory.mktemp("sync"))
    train_grpo(job, resume=False)
    return job


def assert_close(found: GRPOJob, expected: GRPOJob) -> None:
    """The same but for rounding."""
    assert_same_policy(found, expected, atol=1e-4)
    for one, other in zip(logged(found), logged(expected), strict=True):
        assert one == {key: pytest.approx(value, rel=1e-3, abs=1e-4) for key, value in other.items()}


def test_a_run_learns_logs_and_looks(expected: GRPOJob) -> None:
    rows = logged(expected)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [row["staleness"] for row in rows] == [0, 0, 0, 0]
    assert ["validation_reward" in row for row in rows] == [True, False, True, True]
    kept = kept_evaluations(expected.run.folder)
    assert list(kept) == [0, 2, 3]
    for folder in kept.values():
        answers = list(read_jsonl(folder / "answers.jsonl"))
        assert len(answers) == len(expected.validation_prompts)
        spoken = {f"{row['query_id']}.wav" for row in answers if not row["empty"]}
        assert spoken == {path.name for path in folder.glob("*.wav")} != set()
    assert (expected.checkpoints / "step_000004" / "trainer.json").is_file()
    before = tiny_job(expected.run.folder.parent).run.load_policy(expected.run.sft_dir).model.state_dict()
    assert any(not np.array_equal(before[name].numpy(), after) for name, after in policy_of(expected).items())


def test_a_run_keeps_who_did_what(expected: GRPOJob) -> None:
    """The update follows the scores, these the answers, and weights that are new are loaded before the next answers."""
    rows = list(read_jsonl(expected.run.folder / FILE))
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        first = {}
        for span in row["spans"]:
            first.setdefault((span["worker"].split(" ")[0], span["work"]), span)
        assert {role for role, _ in first} == {"loop", "learner", "rollout", "reward"}
        sampled, scored, updated = first["rollout", "prefill"], first["reward", "score"], first["learner", "update"]
        # Rounded to a thousandth.
        assert sampled["end_s"] <= scored["start_s"] + 0.002
        assert scored["end_s"] <= updated["start_s"] + 0.002
        # After steps 0, 2 and 3 the new weights are loaded at once, for the evaluation.
        assert (("rollout", "load weights") in first) == (row["step"] != 1)
    assert any(span["work"] == "evaluate" for span in rows[0]["spans"])
    assert any(span["work"] == "checkpoint" for row in rows for span in row["spans"])


class Recorder:
    """What a orchestrator is batch, in order, looks aside: steps with the weights' version, and how many are then under way."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.started: list[tuple[int, int]] = []
        self.pending_counts: list[int] = []
        start, collect, present = Orchestrator.start, Orchestrator.collect, set[int]()

        def recorded_start(orchestrator: Orchestrator, batch: PromptBatch, sampling: Sampling) -> PendingBatch:
            if batch.step != FirstStep.EVALUATION:
                present.add(batch.step)
                self.started.append((batch.step, orchestrator.version))
                self.pending_counts.append(len(present))
            return start(orchestrator, batch, sampling)

        def recorded_collect(orchestrator: Orchestrator, pending: PendingBatch) -> Any:
            present.discard(pending.prompts.step)
            return collect(orchestrator, pending)

        patch.setattr(Orchestrator, "start", recorded_start)
        patch.setattr(Orchestrator, "collect", recorded_collect)


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> tuple[GRPOJob, Recorder]:
    """Answers of one update before."""
    job = tiny_job(tmp_path_factory.mktemp("stale"), max_staleness=1, tis_cap=2.0)
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(patch)
        train_grpo(job, resume=False)
    return job, recorder


def test_answers_are_as_stale_as_allowed_and_no_staler(stale: tuple[GRPOJob, Recorder], expected: GRPOJob) -> None:
    found, recorder = stale
    assert [row["staleness"] for row in logged(found)] == [0, 1, 1, 1]
    assert recorder.started == [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert max(recorder.pending_counts) == 2
    assert any(not np.array_equal(one, policy_of(expected)[name]) for name, one in policy_of(found).items())


def test_two_updates_of_staleness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    found = tiny_job(tmp_path, steps=6, max_staleness=2, tis_cap=2.0)
    train_grpo(found, resume=False)
    assert [row["staleness"] for row in logged(found)] == [0, 1, 2, 2, 2, 2]
    assert recorder.started == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 3)]
    assert max(recorder.pending_counts) == 3


class Killed(Exception):
    """In place of a signal."""


def run_killed_in(step: int, job: GRPOJob) -> None:
    """Up to where this step has been learned, and is neither logged nor saved."""
    finish_step = grpo.finish_step

    def killed(job: GRPOJob, orchestrator: Orchestrator, number: int, *more: Any) -> None:
        if number == step:
            raise Killed
        finish_step(job, orchestrator, number, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo, "finish_step", killed)
        with pytest.raises(Killed):
            train_grpo(job, resume=False)


def test_a_killed_run_resumes_to_the_same_weights(expected: GRPOJob, tmp_path: Path) -> None:
    found = tiny_job(tmp_path)
    run_killed_in(3, found)
    assert [row["step"] for row in logged(found)] == [0, 1, 2]
    train_grpo(found, resume=True)
    assert_same_policy(found, expected)
    assert logged(found) == logged(expected)
    assert answers_kept(found) == answers_kept(expected)


def test_a_run_that_replaces_flat_groups_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """Every group counts as flat, so that each step samples all of its queries twice."""
    settings: dict[str, Any] = {"steps": 3, "resample": {"rounds": 1}, "flat_std": 10.0}
    straight, found = (tiny_job(tmp_path / name, **settings) for name in ("straight", "killed"))
    train_grpo(straight, resume=False)
    run_killed_in(2, found)
    train_grpo(found, resume=True)
    assert_same_policy(found, straight)
    assert logged(found) == logged(straight)
    assert [row["resampled_groups"] for row in logged(found)] == [4, 4, 4]


def test_a_run_with_an_anchor_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """Demonstrations are drawn by seed and step; whichever rank has them, they are the same."""

    def anchored(name: str, weight: float = 0.5) -> GRPOJob:
        job = tiny_job(tmp_path / name, steps=3, anchor={"weight": weight, "every": 2, "demonstrations": 2})
        policy = job.run.load_policy(job.run.sft_dir)
        assert isinstance(policy, EmbeddedPolicy)
        targets = [
            policy.target_block(np.ones((4 + number, policy.codec.num_codebooks), dtype=np.int64), [number])
            for number in range(3)
        ]
        rows = [Example(job.prompts[number], (target,)) for number, target in enumerate(targets)]
        return replace(job, demonstrations=Demonstrations(rows))

    straight, found, zero, plain = (
        anchored("straight"),
        anchored("killed"),
        anchored("zero", 0.0),
        tiny_job(tmp_path / "plain", steps=3),
    )
    for job in (straight, zero, plain):
        train_grpo(job, resume=False)
    run_killed_in(2, found)
    train_grpo(found, resume=True)
    assert_same_policy(found, straight)
    assert logged(found) == logged(straight)
    assert ["anchor_loss" in row for row in logged(found)] == [True, False, True]
    assert any(not np.array_equal(one, policy_of(plain)[name]) for name, one in policy_of(found).items())
    assert_same_policy(zero, plain)
    assert logged(zero) == logged(plain)


def answers_kept(job: GRPOJob) -> dict[str, bytes]:
    """The files of rollouts, which are the same bytes for the same answers."""
    return {path.name: path.read_bytes() for path in (job.run.folder / ROLLOUTS).iterdir()}


def test_a_killed_run_with_staleness_samples_anew_what_was_pending_counts(
    stale: tuple[GRPOJob, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to its checkpoint it is the uninterrupted run, and behind it the answers are younger."""
    # No evaluation between, after which the best would have a checkpoint of its own.
    found = tiny_job(tmp_path, max_staleness=1, tis_cap=2.0, evaluate_every=4)
    run_killed_in(3, found)
    recorder = Recorder(monkeypatch)
    train_grpo(found, resume=True)
    assert recorder.started == [(2, 2), (3, 2)]
    assert logged(found)[:2] == logged(stale[0])[:2]
    assert [(row["step"], row["staleness"]) for row in logged(found)] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_two_learner_ranks_are_as_one(expected: GRPOJob, tmp_path: Path) -> None:
    found = tiny_job(tmp_path, workers=counts(learner=2))
    train_grpo(found, resume=False)
    assert_close(found, expected)


def test_several_workers_of_a_role_are_as_one(expected: GRPOJob, tmp_path: Path) -> None:
    found = tiny_job(tmp_path, workers=counts(rollout=2, reward=3))
    train_grpo(found, resume=False)
    assert_close(found, expected)


def kill_one(monkeypatch: pytest.MonkeyPatch, role: str, at_step: int) -> list[int]:
    """From this step on one worker of the role dies of its next call; returns where its process id will be."""
    start, died = Orchestrator.start, []

    def sabotage(actor: Any) -> int:
        def die(*_: object, **__: object) -> None:
            os._exit(1)

        if hasattr(actor, "engine"):
            actor.engine.generate = die
        else:
            actor._rewards = type("Deadly", (), {"score": die, "needs_sound": False, "needs_codes": False})()
        return os.getpid()

    def sabotaged(orchestrator: Orchestrator, batch: PromptBatch, sampling: Sampling) -> PendingBatch:
        if batch.step == at_step:
            died.append(ray.get(getattr(orchestrator, role).workers[0].actor.__ray_call__.remote(sabotage), timeout=300))
        return start(orchestrator, batch, sampling)

    monkeypatch.setattr(Orchestrator, "start", sabotaged)
    return died


@pytest.mark.parametrize("role", ["rollout", "reward"])
def test_a_worker_that_dies_is_replaced(role: str, expected: GRPOJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the only one of its role, so the one that takes its place does its work."""
    died = kill_one(monkeypatch, role, at_step=1)
    found = tiny_job(tmp_path)
    train_grpo(found, resume=False)
    assert len(died) == 1
    assert_same_policy(found, expected)
    assert logged(found) == logged(expected)


def test_a_worker_that_dies_with_two_batches_before_it_is_replaced(
    stale: tuple[GRPOJob, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are sampled again with the weights that they were batch with, which are not the newest by then."""
    died = kill_one(monkeypatch, "rollout", at_step=2)
    found = tiny_job(tmp_path, max_staleness=1, tis_cap=2.0)
    train_grpo(found, resume=False)
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
    with pytest.raises(PolicyError, match=r"2 rollout workers were lost over the same prompts \(.*DeadlyWorker.*--resume"):
        train_grpo(tiny_job(tmp_path), resume=False)


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    found = tiny_job(tmp_path, engine="vllm")
    with pytest.raises(PolicyError, match=r"align\.sampling\.engine: vllm samples single-stream policies"):
        train_grpo(found, resume=False)


def test_a_role_that_does_not_fit_is_named_and_nothing_stays_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "PLACEMENT_TIMEOUT_S", 3.0)
    found = tiny_job(tmp_path, workers={"rollout": {"count": 2, "cpus": 1, "gpus": 8}})
    # What an earlier test reserved may not have been given back yet.
    before, started = ray.available_resources().get("CPU", 0.0), time.monotonic()
    named = r"align.workers.rollout: 2 x \{'CPU': 1.0, 'GPU': 8.0\} do not fit.*Lower its count"
    with pytest.raises(ConfigError, match=named):
        train_grpo(found, resume=False)
    while ray.available_resources().get("CPU", 0.0) < before:
        assert time.monotonic() - started < 240, placement_group_table()
        time.sleep(0.05)


def test_what_a_worker_refuses_is_raised_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tiny_job(tmp_path)

    def refused(_: Orchestrator, pending: PendingBatch) -> StepAnswers:
        return StepAnswers(pending.prompts, [], [[Unscored("rubric", "no words")]] * 4)

    monkeypatch.setattr(Orchestrator, "collect", refused)
    with pytest.raises(PolicyError, match=r"step 0: 4 of 4 answers are unscored \(no words\)"):
        train_grpo(found, resume=False)
    assert logged(found) == []


def test_a_question_that_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(-1.0, 1.0, ANSWER_STEPS)
    monkeypatch.setattr(GRPOJob, "sampling", property(lambda _: sampling))
    with pytest.raises(PolicyError, match="temperatures must be above 0"):
        train_grpo(tiny_job(tmp_path), resume=False)
