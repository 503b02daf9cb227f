"""Evaluation within a run: one answer to each validation query, scored by the run's own reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paras2s.align.job import GRPOJob
from paras2s.audio.clip import Clip
from paras2s.errors import StorageError
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout.orchestrator import Orchestrator, make_prompt_batch
from paras2s.rollout.reward_inputs import sounds
from paras2s.rollout.validation_answers import save_answers, step_folder
from paras2s.types import Reward, Rollout, Unscored
from paras2s.utils.seeds import FirstStep
from paras2s.utils.tracker import Sound, TrackedAnswer

# Validation answers that trackers get at each evaluation: the first ones, the same questions each time.
TRACKED = 8


def evaluate(workers: Orchestrator, job: GRPOJob, step: int) -> dict[str, Any]:
    """Return the mean reward of one answer to each validation query (None if none was scored), and the number unscored.

    For the curve and the best checkpoint, at the training temperature. A pairwise source cannot score a single answer, which is
    then unscored. The answers are kept, so that other judges can score them afterwards (`paras2s bench curve`).
    """
    rows = range(len(job.validation_prompts))
    prompts, questions = [job.validation_prompts[row] for row in rows], [job.validation_questions[row] for row in rows]
    batch = make_prompt_batch(FirstStep.EVALUATION, rows, prompts, questions, job.run.config.seed, 1)
    pending = workers.start(batch, job.sampling)
    answers = workers.collect(pending)
    try:
        spoken = workers.with_sound(pending, answers.rollouts)
        job.run.trackers.log_answers(step, lambda: tracked_answers(questions, spoken, answers.rewards))
        save_answers(step_folder(job.run.folder, step), spoken, answers.rewards)
        if job.refresher is not None:
            job.refresher.keep_evaluation(step, spoken, answers.rewards)
    except StorageError as error:
        # The run goes on without them: no update depends on them.
        job.run.say(f"  the answers to validation queries of step {step} are not kept: {error}")
    scored = [reward.value for row in answers.rewards for reward in row if isinstance(reward, Reward)]
    mean = float(np.mean(scored)) if scored else None
    return {"validation_reward": mean, "validation_unscored": sum(map(len, answers.rewards)) - len(scored)}


def tracked_answers(
    questions: Sequence[RewardQuestion], rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]
) -> list[TrackedAnswer]:
    """Return the first answer to each of the first questions, for trackers."""
    codec = Codec2Pairs()

    def sound(clip: Clip | None) -> Sound | None:
        return (clip.samples, clip.sample_rate_hz) if clip is not None and len(clip.samples) else None

    tracked = []
    for question, rollout, (reward, *_) in list(zip(questions, rollouts, rewards, strict=True))[:TRACKED]:
        scores = {"reward": reward.value, **reward.parts} if isinstance(reward, Reward) else {}
        reason = f"{reward.judge}: {reward.reason}" if isinstance(reward, Unscored) else ""
        answer = sound(sounds(rollout, codec)[0])
        tracked.append(
            TrackedAnswer(question.id, sound(question.sound()), question.transcript, answer, rollout.texts[0], scores, reason)
        )
    return tracked
