"""GRPO on a speech-to-speech policy: the main loop (ParaS2S, section 4.3).

    choose prompts -> sample groups of answers -> score them -> update the policy -> push its weights -> evaluate

The same loop serves synchronous and asynchronous runs. `align.max_staleness` is the number of updates by which the weights
that sampled an answer may be behind. At 0 (the default) each step waits for its own answers. Above 0 the next batches are
sampled and scored while the learner updates, so slow judges are not waited for; set `align.objective.tis_cap` as well, which
corrects for the older weights token by token. At most `max_staleness + 1` batches are pending. Where sampler and learner
share cores, they only slow each other down. A resumed run samples its pending batches again, with its checkpoint's weights.

One machine: `paras2s align CONFIG`. A cluster: set `align.workers.ray_address`. Not implemented: several updates on one
batch (`num_iterations` in TRL).
Notation: B queries a step, G answers to each.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paras2s.bench.paras2s.curve import discard_from as discard_answers
from paras2s.bench.paras2s.curve import save_answers, step_folder
from paras2s.configs.schema.align import AlignConfig
from paras2s.errors import StorageError
from paras2s.policy.answers import answer_settings_of, write_answer_settings
from paras2s.policy.types import Prompt, Sampling
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout.orchestrator import Orchestrator, PendingBatch, PromptBatch, make_prompt_batch, open_orchestrator
from paras2s.rollout.store import RolloutKeeper
from paras2s.run import Run
from paras2s.train.checkpoint import latest_checkpoint
from paras2s.types import Reward

if TYPE_CHECKING:
    from paras2s.utils.progress import Bar

Augment = Callable[[Prompt, np.random.Generator], Prompt]
# Random streams of a run's seed, so that no two purposes draw the same numbers.
ORDER_STREAM, AUGMENT_STREAM = 3, 5
# Evaluation takes this in place of a step's number, which no step reaches.
EVALUATION_STEP = 3_000_000


def train_grpo(job: GRPOJob, resume: bool) -> None:
    """Move the SFT policy toward its better answers; the aligned policy is then in the run folder.

    Raises:
        ConfigError: the cluster does not hold the run's workers.
        PolicyError: too many unscored answers, a loss that is not finite, or a worker that could not be kept alive.
    """
    config, run = job.config, job.run
    checkpoint = latest_checkpoint(job.checkpoints) if resume else None
    with (
        run.stage("align"),
        run.bar("GRPO steps", config.steps) as bar,
        open_orchestrator(run.config, run.sft_dir.resolve(), run.reward_setup(), checkpoint) as workers,
    ):
        # The version of the weights is the number of updates made.
        job.discard_from(workers.version)
        keeper = job.keeper
        pending: deque[PendingBatch] = deque()
        for step in range(workers.version, config.steps):
            started = time.perf_counter()
            while len(pending) <= config.max_staleness and step + len(pending) < config.steps:
                pending.append(workers.start(job.sample_batch(step + len(pending)), job.sampling))
            batch = pending.popleft()
            rollouts, rewards = workers.collect(batch)
            collected = time.perf_counter()
            metrics = workers.update(batch.prompts, rollouts, rewards)
            updated = time.perf_counter()
            workers.sync(step + 1)
            keeper.keep(step, rollouts, rewards)
            metrics |= {"seconds_answers": collected - started, "seconds_update": updated - collected}
            if job.should_evaluate(step):
                metrics |= evaluate(workers, job, step) | {"seconds_evaluation": time.perf_counter() - updated}
            job.log_and_checkpoint(workers, step, metrics | {"seconds": time.perf_counter() - started}, bar)
        write_answer_settings(job.output, answer_settings_of(run.config))
        workers.export(job.output)


def evaluate(workers: Orchestrator, job: GRPOJob, step: int) -> dict[str, Any]:
    """Mean reward of one answer to each validation query (None if none was scored), and how many were unscored.

    For the curve alone: one answer each, at the training temperature. A pairwise source cannot score a single answer. The
    answers are kept, so that other judges may score them afterwards (`paras2s bench curve`).
    """
    seed, count = job.run.config.seed, len(job.validation_prompts)
    batch = make_prompt_batch(EVALUATION_STEP, range(count), job.validation_prompts, job.validation_questions, seed, 1)
    rollouts, rewards = workers.collect(workers.start(batch, job.sampling))
    try:
        save_answers(step_folder(job.run, step), rollouts, rewards)
    except StorageError as error:
        # They are for looking at: the run goes on without them.
        job.run.say(f"  the answers to validation queries of step {step} are not kept: {error}")
    scored = [reward.value for row in rewards for reward in row if isinstance(reward, Reward)]
    mean = float(np.mean(scored)) if scored else None
    return {"validation_reward": mean, "validation_unscored": sum(map(len, rewards)) - len(scored)}


def choose_prompts(step: int, per_step: int, available: int, seed: int) -> list[int]:
    """Rows of the RL prompts that a step samples: every prompt once an epoch, in an order that the seed alone decides."""
    epochs = range(step * per_step // available, ((step + 1) * per_step - 1) // available + 1)
    order = np.concatenate([np.random.default_rng([seed, ORDER_STREAM, epoch]).permutation(available) for epoch in epochs])
    start = step * per_step - epochs[0] * available
    return [int(row) for row in order[start : start + per_step]]


@dataclass(frozen=True)
class GRPOJob:
    """The inputs of one GRPO run, and its decisions by step.

    `prompts` are the RL queries as the policy reads them, `questions` the same as rewards read them. `augment` changes a
    prompt before the policy reads it; the reward is computed on the original question.
    """

    run: Run
    prompts: Sequence[Prompt]
    questions: Sequence[RewardQuestion]
    validation_prompts: Sequence[Prompt]
    validation_questions: Sequence[RewardQuestion]
    augment: Augment

    @property
    def config(self) -> AlignConfig:
        """The run's settings of GRPO."""
        return self.run.config.align

    @property
    def sampling(self) -> Sampling:
        """Sampling settings, in training and in evaluation."""
        return Sampling(*self.config.sampling.temperatures, self.run.config.policy.max_answer_steps)

    @property
    def output(self) -> Path:
        """Folder of the aligned policy; absolute, since Ray workers have other working directories."""
        return self.run.aligned_dir.resolve()

    @property
    def keeper(self) -> RolloutKeeper:
        """Keeps the answers of steps in the run folder."""
        config, objective = self.config, self.config.objective
        return RolloutKeeper(
            self.run.folder, config.keep_rollouts_every, objective.scale_rewards, objective.groups_per_update, self.run.say
        )

    @property
    def checkpoints(self) -> Path:
        """Folder of the learners' checkpoints."""
        return (self.run.folder / "checkpoints" / "align").resolve()

    def discard_from(self, step: int) -> None:
        """Remove the log rows and kept answers, and at step 0 the checkpoints, of steps that are about to be done again."""
        self.run.drop_steps_from(step)
        discard_answers(self.run, step)
        self.keeper.discard_from(step)
        if step == 0:
            # Else a later --resume would continue from the checkpoints of a run that was started before this one.
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def sample_batch(self, step: int) -> PromptBatch:
        """The B prompts of a step, each augmented anew, with a seed for every answer."""
        config, seed = self.config.sampling, self.run.config.seed
        rows = choose_prompts(step, config.queries_per_step, len(self.prompts), seed)
        rng = np.random.default_rng([seed, AUGMENT_STREAM, step])
        prompts = [self.augment(self.prompts[row], rng) for row in rows]
        return make_prompt_batch(step, rows, prompts, [self.questions[row] for row in rows], seed, config.group_size)

    def should_evaluate(self, step: int) -> bool:
        """Whether validation queries are sampled after this step."""
        return step % self.config.evaluate_every == 0 or step + 1 == self.config.steps

    def log_and_checkpoint(self, workers: Orchestrator, step: int, metrics: dict[str, Any], bar: Bar) -> None:
        """Log a step, move the bar, and write a checkpoint where one is due."""
        self.run.log_step(metrics)
        bar.at(step + 1, self.config.steps, f"reward {metrics['reward_mean']:.2f} KL {metrics.get('kl', 0):.3f}")
        if (step + 1) % self.config.checkpoint_every == 0:
            workers.save(self.checkpoints / f"step_{step + 1:06d}")
