"""The driver's decisions: which prompts a step asks, how work is shared out, and the mean of a look at held-out queries.

Not covered: the loop itself, which needs Ray (tests/integration/test_ray_actors.py covers its actors).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny.job import tiny_job
from tiny.learner import Demonstrations

from paras2s import grpo
from paras2s.align.answers_ahead import choose_prompts
from paras2s.align.evaluation import evaluate
from paras2s.align.job import GRPOJob
from paras2s.align.recorded import RecordedPreferences
from paras2s.audio.clip import Clip
from paras2s.configs.schema.align import AlignConfig
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import Sampling
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout.orchestrator import PendingBatch, PromptBatch, StepAnswers, split
from paras2s.train.preference import PreferenceBatch
from paras2s.train.sft import Example
from paras2s.types import Reward, Rollout, Unscored
from paras2s.utils.tracker import TrackedAnswer


@pytest.mark.parametrize(("per_step", "available"), [(4, 12), (5, 12), (12, 12), (7, 3), (1, 5), (30, 8)])
def test_every_prompt_is_chosen_once_an_epoch(per_step: int, available: int) -> None:
    epochs = 6
    steps = -(-epochs * available // per_step)
    chosen = [row for step in range(steps) for row in choose_prompts(step, per_step, available, seed=2)]
    assert len(chosen) == steps * per_step
    for epoch in range(epochs):
        assert sorted(chosen[epoch * available : (epoch + 1) * available]) == list(range(available))


def test_epochs_have_orders_of_their_own() -> None:
    first, second = choose_prompts(0, 20, 20, seed=0), choose_prompts(1, 20, 20, seed=0)
    assert first != second
    assert first != choose_prompts(0, 20, 20, seed=1)
    assert first != list(range(20))


def test_a_step_does_not_depend_on_the_steps_before() -> None:
    """So a resumed run asks what the uninterrupted one would have asked."""
    backwards = {step: choose_prompts(step, 5, 12, seed=4) for step in reversed(range(9))}
    assert backwards == {step: choose_prompts(step, 5, 12, seed=4) for step in range(9)}


@pytest.mark.parametrize(
    ("count", "workers", "sizes"),
    [
        (12, 1, [12]),
        (12, 3, [4, 4, 4]),
        (5, 2, [2, 3]),
        (7, 3, [2, 3, 2]),
        (3, 8, [1, 1, 1]),
        (1, 2, [1]),
        (0, 2, []),
    ],
)
def test_shares(count: int, workers: int, sizes: list[int]) -> None:
    shares = split(count, workers)
    assert [len(range(count)[share]) for share in shares] == sizes
    assert [item for share in shares for item in range(count)[share]] == list(range(count))


def test_shares_are_even_and_complete_for_any_numbers() -> None:
    for count in range(1, 40):
        for workers in range(1, 12):
            sizes = [share.stop - share.start for share in split(count, workers)]
            assert sum(sizes) == count
            assert len(sizes) == min(workers, count)
            assert max(sizes) - min(sizes) <= 1
            assert min(sizes) >= 1


@pytest.mark.parametrize(("values", "expected"), [([1.0, None, 4.0], 2.5), ([None, None], None)])
@pytest.mark.parametrize("writable", [True, False])
def test_evaluation_is_the_mean_over_scored_answers(
    values: list[float | None], expected: float | None, writable: bool, tmp_path: Path
) -> None:
    """A reward model that scored nothing gives no number, which the log can hold and a NaN it could not.

    The answers are kept; a disk that refuses them stops nothing.
    """
    rewards = [[Unscored("rubric", "silent") if value is None else Reward(value, {})] for value in values]
    wave = np.full(800, 0.1, dtype=np.float32)
    rollouts = [Rollout(f"q{n}", 0, (), (), (0,), ("hi",), (), (wave,), 8000, "") for n in range(len(values))]
    bare = [replace(rollout, waves=()) for rollout in rollouts]
    workers = SimpleNamespace(
        start=lambda *_: None, collect=lambda _: SimpleNamespace(rollouts=bare, rewards=rewards), with_sound=lambda *_: rollouts
    )
    folder, said = tmp_path / "run", []
    tracked: list[TrackedAnswer] = []
    trackers = SimpleNamespace(log_answers=lambda step, answers: tracked.extend(answers()))
    if not writable:
        folder.write_text("a file stands where the run's folder should be")
    run = SimpleNamespace(config=SimpleNamespace(seed=0), folder=folder, say=said.append, trackers=trackers)
    questions = [RewardQuestion(f"q{n}", None, "hello", clip=Clip(np.zeros(4, np.float32), 16_000)) for n in range(len(values))]
    job = SimpleNamespace(run=run, sampling=Sampling(), refresher=None,
                                validation_prompts=[None] * len(values), validation_questions=questions)  # fmt: skip
    found = evaluate(workers, job, 7)  # type: ignore[arg-type]
    assert found == {"validation_reward": expected, "validation_unscored": values.count(None)}
    kept = folder / "validation" / "step_000007"
    assert ((kept / "answers.jsonl").is_file(), len(list(kept.glob("*.wav")))) == (writable, len(values) * writable)
    assert ["are not kept" in line for line in said] == ([] if writable else [True])
    # Trackers get them in any case.
    assert [answer.scores for answer in tracked] == [{} if value is None else {"reward": value} for value in values]
    assert [answer.unscored for answer in tracked] == ["rubric: silent" if value is None else "" for value in values]
    assert all(answer.question and answer.answer and len(answer.answer[0]) == 800 for answer in tracked)


class CountingWorkers:
    """Fake workers, which need no Ray: they note the steps whose answers they are to sample, and what is done in between."""

    def __init__(self, version: int) -> None:
        self.version, self.done = version, list[str]()

    def start(self, batch: PromptBatch, sampling: Sampling) -> PendingBatch:
        self.done.append(f"sample {batch.step}")
        return PendingBatch(batch)

    def collect(self, pending: PendingBatch) -> StepAnswers:
        return StepAnswers(pending.prompts, [], [])

    def update(self, answers: StepAnswers, anchored: object) -> tuple[dict[str, float], list[object]]:
        self.done.append("update")
        return {"step": self.version, "reward_mean": 1.0}, []

    def learn(self, batch: PreferenceBatch, anchored: object) -> dict[str, float]:
        self.done.append(f"learn from {len(batch.examples)}")
        return {"step": self.version, "loss": 0.5, "preference_accuracy": 1.0}

    def take_spans(self) -> tuple[list[object], int]:
        return [], 0

    def sync(self, version: int) -> None:
        self.version = version

    def export(self, folder: Path) -> None:
        self.done.append("export")

    def save(self, folder: Path) -> None:
        pass


def test_no_answer_is_sampled_ahead_of_a_refresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be rewarded by the model that is about to be replaced. Behind it the loop looks ahead as ever."""
    job = tiny_job(tmp_path, steps=5, max_staleness=1, tis_cap=2.0, keep_rollouts_every=0)
    monkeypatch.setattr(GRPOJob, "refreshes", property(lambda _: range(2, 5, 2)))
    monkeypatch.setattr(AlignConfig, "evaluates_after", lambda *_: False)
    found = []
    for begin, stop in ((0, 2), (2, 4), (4, 5)):
        workers = CountingWorkers(begin)
        monkeypatch.setattr(grpo, "open_workers", lambda *_, now=workers: nullcontext(now))
        assert grpo.train_until_stop(job, None, announce=False) == stop
        found.append(workers.done)
    assert found == [
        ["sample 0", "sample 1", "update", "update"],
        ["sample 2", "sample 3", "update", "update"],
        ["sample 4", "update", "export"],
    ]


def test_recorded_answers_take_the_place_of_sampled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sampled or kept; the log has the updates' metrics, and the policy is written at the end."""
    job = tiny_job(tmp_path, steps=3)
    policy = job.run.load_policy(job.run.sft_dir)
    assert isinstance(policy, EmbeddedPolicy)
    block = policy.target_block(np.ones((4, policy.codec.num_codebooks), dtype=np.int64), [1])
    answers: Any = Demonstrations([Example(job.prompts[0], (block,))] * 6)
    recorded = RecordedPreferences(tmp_path, answers, ((0, 1), (2, 3), (4, 5)), (True, False) * 3, (1,) * 6, (8000,) * 6)
    job = replace(job, preferences=recorded)
    workers = CountingWorkers(0)
    monkeypatch.setattr(grpo, "open_workers", lambda *_: nullcontext(workers))
    monkeypatch.setattr(AlignConfig, "evaluates_after", lambda *_: False)
    assert grpo.train_until_stop(job, None, announce=False) == 3
    # Four rows a step are eight answers.
    assert workers.done == ["learn from 8"] * 3 + ["export"]
    assert [row["preference_accuracy"] for row in job.run.metrics()] == [1.0] * 3
    assert not (job.run.folder / "rollouts").exists()
