"""Runs with workers that only make sound, by real Ray: the same sound, weights and log as without them, whoever dies.

Not covered: machines that are lost (test_cluster.py), GPUs, and time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from test_drivers import answers_kept, assert_same_policy, run_killed_in
from tiny.job import counts, logged, tiny_job, tiny_kimi_job

from paras2s.align.answers_ahead import step_batch
from paras2s.align.job import GRPOJob
from paras2s.errors import PolicyError
from paras2s.grpo import open_workers, train_grpo
from paras2s.policy.types import Sampling
from paras2s.rollout import workers
from paras2s.rollout.local_ray import start_ray
from paras2s.rollout.orchestrator import Orchestrator, PendingBatch, PromptBatch
from paras2s.rollout.timeline import FILE
from paras2s.utils.io import read_jsonl

SPEAK = counts(speak=2)


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    start_ray(None, cpus=8)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> GRPOJob:
    job = tiny_job(tmp_path_factory.mktemp("plain"))
    train_grpo(job, resume=False)
    return job


def kept_clips(job: GRPOJob) -> dict[str, bytes]:
    """The sound of the answers to validation queries."""
    folder = job.run.folder / "validation"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.wav"))}


def spans(job: GRPOJob) -> set[tuple[str, str]]:
    rows = read_jsonl(job.run.folder / FILE)
    return {(span["worker"].split(" ")[0], span["work"]) for row in rows for span in row["spans"]}


def die_of_the_next_call(monkeypatch: pytest.MonkeyPatch, role: str, at_step: int) -> list[int]:
    """From this step on one worker of the role dies as soon as it is to work."""
    start, died = Orchestrator.start, []

    def sabotage(actor: Any) -> int:
        def die(*_: object, **__: object) -> None:
            os._exit(1)

        if role == "speak":
            actor._speaker = type("Deadly", (), {"speak": die})()
        else:
            actor.engine.generate_in_parts = die
        return os.getpid()

    def sabotaged(orchestrator: Orchestrator, batch: PromptBatch, sampling: Sampling) -> PendingBatch:
        if batch.step == at_step:
            group = getattr(orchestrator, role)
            died.append(ray.get(group.workers[0].actor.__ray_call__.remote(sabotage), timeout=300))
        return start(orchestrator, batch, sampling)

    monkeypatch.setattr(Orchestrator, "start", sabotaged)
    return died


def test_the_embedded_policy_ends_as_without_them(expected: GRPOJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, resumed, and with a speak worker that dies of its first answers after that."""
    found = tiny_job(tmp_path, workers=SPEAK)
    run_killed_in(3, found)
    died = die_of_the_next_call(monkeypatch, "speak", at_step=3)
    train_grpo(found, resume=True)
    assert len(died) == 1
    assert_same_policy(found, expected)
    assert logged(found) == logged(expected)
    assert answers_kept(found) == answers_kept(expected)
    assert kept_clips(found) == kept_clips(expected) != {}
    assert ("speak", "speak") in spans(found)
    assert ("rollout", "decode") in spans(found)
    assert not any(work == "speak" for _, work in spans(expected))
    # Where each step's time went is in its log.
    last = list(found.run.metrics())[-1]
    assert all(last[f"seconds_of_{part}"] >= 0 for part in ("prefill", "decode", "speak", "judge", "learn"))


def sounds_of(job: GRPOJob) -> list[np.ndarray]:
    """The sound of a step's answers, sampled as the run would, with nothing learned."""
    with open_workers(job, None) as roles:
        pending = roles.start(step_batch(job, 0), job.sampling)
        answers = roles.collect(pending)
        assert [len(row) for row in answers.rewards] == [job.config.sampling.group_size] * len(answers.rollouts)
        return [wave for one in roles.with_sound(pending, answers.rollouts) for wave in one.waves]


def test_kimi_sounds_the_same_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With them, one of each role that samples and speaks dies on the way, and two judges each get a part of a share."""
    plain = sounds_of(tiny_kimi_job(tmp_path))
    dead = [die_of_the_next_call(monkeypatch, role, at_step=0) for role in ("speak", "rollout")]
    found = sounds_of(tiny_kimi_job(tmp_path, workers=SPEAK | counts(reward=2)))
    assert [len(one) for one in dead] == [1, 1]
    assert len({wave.tobytes() for wave in plain}) > 30
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_stale_answers_are_spoken_while_the_learner_updates(tmp_path: Path) -> None:
    """Two batches are pending; both kinds of run take the same answers with the same weights."""
    settings: dict[str, Any] = {"max_staleness": 1, "tis_cap": 2.0, "steps": 3}
    plain, found = tiny_job(tmp_path / "plain", **settings), tiny_job(tmp_path / "speak", workers=SPEAK, **settings)
    for job in (plain, found):
        train_grpo(job, resume=False)
    assert_same_policy(found, plain)
    assert logged(found) == logged(plain)


def test_a_policy_that_speaks_with_its_own_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal of a speak worker reaches the driver as itself."""
    found = tiny_job(tmp_path, workers=SPEAK)
    config = found.run.config.model_copy(update={"policy": found.run.config.policy.model_copy(update={"kind": "moshi"})})
    actor = workers.SpeakWorker.remote(found.run.sft_dir, config.policy, 1)
    with pytest.raises(ray.exceptions.RayTaskError) as refused:
        ray.get(actor.speak.remote(None), timeout=300)
    assert isinstance(refused.value.cause, PolicyError)
    assert "align.workers.speak: MoshiPolicy makes its sound with its own network" in str(refused.value.cause)
