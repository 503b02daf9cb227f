"""GRPO on a speech-to-speech policy: the main loop (ParaS2S, section 4.3).

    choose prompts -> sample groups of answers -> score them -> update the policy -> push its weights -> evaluate

The same loop serves synchronous and asynchronous runs. `align.max_staleness` is the number of updates by which the weights
that sampled an answer may be behind. At 0 (the default) each step waits for its own answers. Above 0 the next batches are
sampled and scored while the learner updates, so slow judges are not waited for; set `align.objective.tis_cap` as well, which
corrects for the older weights token by token. At most `max_staleness + 1` batches are pending. Where sampler and learner
share cores, they only slow each other down. A resumed run samples its pending batches again, with its checkpoint's weights.

With `distill.refresh_every` the loop stops after every so many updates, its workers end, the reward model is trained again on
the newest answers too (`pipeline/refresh.py`), and the loop goes on from its checkpoint, as a resumed run does. No answer is
sampled ahead of such a stop.

With `align.sampling.resample` queries whose groups are flat are replaced before the update (`rollout/dynamic_sampling.py`).

One machine: `paras2s align CONFIG`. A cluster: set `align.workers.ray_address`. Not implemented: several updates on one
batch (`num_iterations` in TRL).
Notation: B queries a step, G answers to each.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from paras2s.bench.paras2s.curve import discard_from as discard_answers
from paras2s.bench.paras2s.curve import save_answers, step_folder
from paras2s.configs.schema.align import AlignConfig
from paras2s.errors import ConfigError, StorageError
from paras2s.policy.answers import answer_settings_of, write_answer_settings
from paras2s.policy.types import Prompt, Sampling
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout.demonstrations import DemonstrationFiles
from paras2s.rollout.dynamic_sampling import ROUND_STRIDE, StepAnswers, replace_flat_groups, replacement_rows
from paras2s.rollout.orchestrator import Orchestrator, PendingBatch, PromptBatch, make_prompt_batch, open_orchestrator
from paras2s.rollout.phase_times import logged_seconds
from paras2s.rollout.prompts import PromptFiles
from paras2s.rollout.store import RolloutKeeper
from paras2s.rollout.timeline import SpanRecorder, Timeline
from paras2s.run import Run
from paras2s.train.advantages import is_flat, rule_of, scored_only
from paras2s.train.anchor import batch_of_step
from paras2s.train.checkpoint import (
    best_by_validation,
    checkpoints_in,
    describe_size,
    latest_checkpoint,
    read_position,
    remove_all,
    remove_superseded,
    size_text,
    step_name,
    under_one_model,
)
from paras2s.train.sft import Example
from paras2s.types import Reward, Rollout, Unscored
from paras2s.utils.epochs import rows_of_step

if TYPE_CHECKING:
    from paras2s.utils.progress import Bar

Item = TypeVar("Item", covariant=True)
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
    checkpoint = latest_checkpoint(job.checkpoints) if resume else None
    with job.run.stage("align"):
        updates = first = updates_of(checkpoint)
        while True:
            if job.refresher is not None and updates in job.refreshes:
                job.refresher.refresh(updates)
            updates = train_until_stop(job, checkpoint, announce=updates == first)
            if updates == job.config.steps:
                break
            checkpoint = latest_checkpoint(job.checkpoints)


def updates_of(checkpoint: Path | None) -> int:
    """The number of updates that a checkpoint has seen; 0 without one."""
    return 0 if checkpoint is None else read_position(checkpoint).next_step


def train_until_stop(job: GRPOJob, checkpoint: Path | None, announce: bool) -> int:
    """The loop from a checkpoint to where the reward model is refreshed, or to its end; returns the number of updates made."""
    config, run = job.config, job.run
    with open_workers(job, checkpoint) as workers, run.bar("GRPO steps", config.steps) as bar:
        if announce:
            job.announce_checkpoints(workers.checkpoint_bytes())
        # The version of the weights is the number of updates made.
        job.discard_from(workers.version)
        stop = next_stop(workers.version, job.refreshes, config.steps)
        keeper, timeline, recorder = job.rollout_keeper(), Timeline(run.folder, run.say), SpanRecorder("loop")
        keeper.discard_from(workers.version)
        timeline.discard_from(workers.version)
        pending: deque[PendingBatch] = deque()
        for step in range(workers.version, stop):
            started = time.perf_counter()
            while len(pending) <= config.max_staleness and step + len(pending) < stop:
                pending.append(workers.start(job.sample_batch(step + len(pending)), job.sampling))
            batch = pending.popleft()
            with recorder.span("wait for answers"):
                answers, resampled = job.resample(workers, step, StepAnswers(batch.prompts, *workers.collect(batch)))
            collected = time.perf_counter()
            with recorder.span("wait for the update"):
                metrics = workers.update(answers.prompts, answers.rollouts, answers.rewards, job.anchored(step)) | resampled
            updated = time.perf_counter()
            with recorder.span("keep rollouts"):
                workers.sync(step + 1)
                keeper.keep(step, answers.rollouts, answers.rewards)
            synced = time.perf_counter()
            metrics |= {
                "seconds_answers": collected - started,
                "seconds_update": updated - collected,
                "seconds_sync": synced - updated,
            }
            spans, encoded = workers.take_spans()
            metrics |= logged_seconds(spans, encoded)
            if job.should_evaluate(step):
                with recorder.span("evaluate"):
                    metrics |= evaluate(workers, job, step)
                metrics["seconds_evaluation"] = time.perf_counter() - synced
            with recorder.span("log and checkpoint"):
                job.log_and_checkpoint(workers, step, metrics | {"seconds": time.perf_counter() - started}, bar)
            timeline.keep(step, [*recorder.take(), *spans, *workers.take_spans()[0]])
        if stop == config.steps:
            write_answer_settings(job.output, answer_settings_of(run.config))
            workers.export(job.output)
    return stop


def next_stop(updates: int, refreshes: Sequence[int], steps: int) -> int:
    """The number of updates after which the loop stops next: for a refresh of the reward model, or since all are made."""
    return min((one for one in refreshes if one > updates), default=steps)


@contextmanager
def open_workers(job: GRPOJob, checkpoint: Path | None) -> Iterator[Orchestrator]:
    """The run's workers, once all prompts are encoded."""
    run = job.run
    with open_orchestrator(run.config, run.sft_dir.resolve(), run.reward_setup(updates_of(checkpoint)), checkpoint) as workers:
        for name, prompts in (("prompts encoded", job.prompts), ("validation encoded", job.validation_prompts)):
            if prompts.clips is not None:
                with run.bar(name, len(prompts)) as bar:
                    prompts.names = workers.encode(prompts.folder, prompts.clips, prompts.queries, bar.at)
        if job.demonstrations is not None:
            with run.bar("demonstrations encoded", len(job.demonstrations)) as bar:
                job.demonstrations.encode(workers, bar.at)
        yield workers


def evaluate(workers: Orchestrator, job: GRPOJob, step: int) -> dict[str, Any]:
    """Mean reward of one answer to each validation query (None if none was scored), and how many were unscored.

    For the curve alone: one answer each, at the training temperature. A pairwise source cannot score a single answer. The
    answers are kept, so that other judges may score them afterwards (`paras2s bench curve`).
    """
    seed, rows = job.run.config.seed, range(len(job.validation_prompts))
    prompts, questions = [job.validation_prompts[row] for row in rows], [job.validation_questions[row] for row in rows]
    batch = make_prompt_batch(EVALUATION_STEP, rows, prompts, questions, seed, 1)
    pending = workers.start(batch, job.sampling)
    rollouts, rewards = workers.collect(pending)
    try:
        spoken = workers.with_sound(pending, rollouts)
        save_answers(step_folder(job.run, step), spoken, rewards)
        if job.refresher is not None:
            job.refresher.keep_evaluation(step, spoken, rewards)
    except StorageError as error:
        # They are for looking at: the run goes on without them.
        job.run.say(f"  the answers to validation queries of step {step} are not kept: {error}")
    scored = [reward.value for row in rewards for reward in row if isinstance(reward, Reward)]
    mean = float(np.mean(scored)) if scored else None
    return {"validation_reward": mean, "validation_unscored": sum(map(len, rewards)) - len(scored)}


def choose_prompts(step: int, per_step: int, available: int, seed: int) -> list[int]:
    """Rows of the RL prompts that a step samples: every prompt once an epoch, in an order that the seed alone decides."""
    return rows_of_step(step, per_step, available, [seed, ORDER_STREAM])


class Refresher(Protocol):
    """Trains the reward model again on the policy's newest answers."""

    def refresh(self, updates: int) -> None:
        """Make the reward model that is used from so many updates on, unless it is there already."""

    def keep_evaluation(self, step: int, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]) -> None:
        """Keep the answers [B] of an evaluation, one each, which later reward models score as well."""

    def validation_rewards(self, updates: int) -> Mapping[int, float | None]:
        """Returns what the model made after so many updates gives the answers of all evaluations before, by step."""

    def discard_from(self, step: int) -> None:
        """Remove what was made of steps that are about to be done again."""


class Rows(Protocol[Item]):
    """Items that may be made or read only when they are wanted."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Item: ...


@dataclass(frozen=True)
class GRPOJob:
    """The inputs of one GRPO run, and its decisions by step. It holds no policy, and of prompts only those of a step.

    `prompts` are the RL queries as the policy reads them, `questions` the same as rewards read them. `augment` changes a
    prompt before the policy reads it; the reward is computed on the original question. `refresher` trains the reward model
    again where `distill.refresh_every` wants it. `demonstrations` are those of `align.objective.anchor`.
    """

    run: Run
    prompts: PromptFiles
    questions: Rows[RewardQuestion]
    validation_prompts: PromptFiles
    validation_questions: Rows[RewardQuestion]
    augment: Augment
    refresher: Refresher | None = None
    demonstrations: DemonstrationFiles | None = None

    @property
    def refreshes(self) -> range:
        """The numbers of updates after which the reward model is trained again."""
        return self.run.config.refreshes if self.refresher is not None else range(0)

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

    def rollout_keeper(self) -> RolloutKeeper:
        """Keeps the answers of steps in the run folder."""
        every, objective, weights = self.config.keep_rollouts_every, self.config.objective, self.run.config.reward.weights
        rule = rule_of(objective)
        return RolloutKeeper(self.run.folder, every, rule, objective.groups_per_update, self.run.say, weights)

    @property
    def checkpoints(self) -> Path:
        """Folder of the learners' checkpoints."""
        return (self.run.folder / "checkpoints" / "align").resolve()

    def discard_from(self, step: int) -> None:
        """Remove log rows and validation answers, and at step 0 the checkpoints, of steps that are about to be done again."""
        self.run.drop_steps_from(step)
        discard_answers(self.run, step)
        if self.refresher is not None:
            self.refresher.discard_from(step)
        if step == 0:
            # Else a later --resume would continue from the checkpoints of a run that was started before this one.
            remove_all(self.checkpoints)

    def announce_checkpoints(self, each_bytes: int) -> None:
        """Say how much disk the checkpoints will take.

        Raises:
            ConfigError: there is less.
        """
        most = self.config.most_checkpoints
        self.run.say(f"  {describe_size(each_bytes, most, self.config.lora is not None)}")
        missing = each_bytes * (most - len(checkpoints_in(self.checkpoints)))
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        if missing > (free := shutil.disk_usage(self.checkpoints).free):
            raise ConfigError(
                f"align.keep_checkpoints: {most} checkpoints of {size_text(each_bytes)} do not fit: {self.checkpoints} has "
                f"{size_text(free)} left; keep fewer, write fewer (checkpoint_every), train adapters (align.lora), or free some"
            )

    def sample_batch(self, step: int) -> PromptBatch:
        """The B prompts of a step, each augmented anew, with a seed for every answer."""
        rows = choose_prompts(step, self.config.sampling.queries_per_step, len(self.prompts), self.run.config.seed)
        return self._batch(step, rows)

    def _batch(self, step: int, rows: Sequence[int], number: int = 0) -> PromptBatch:
        """These prompts as round `number` of a step samples them, 0 being the step's own."""
        seed = self.run.config.seed
        rng = np.random.default_rng([seed, AUGMENT_STREAM, step, *([number] if number else [])])
        prompts, questions = [self.augment(self.prompts[row], rng) for row in rows], [self.questions[row] for row in rows]
        key = step + number * ROUND_STRIDE
        return replace(make_prompt_batch(key, rows, prompts, questions, seed, self.config.sampling.group_size), step=step)

    def anchored(self, step: int) -> tuple[Example, ...]:
        """The demonstrations of an update's anchor; () for an update without it."""
        if self.demonstrations is None:
            return ()
        return batch_of_step(self.config.objective.anchor, self.demonstrations, self.run.config.seed, step)

    def resample(self, workers: Orchestrator, step: int, first: StepAnswers) -> tuple[StepAnswers, dict[str, int]]:
        """Replace queries whose groups are flat, where that is wanted; returns what the log says of it."""
        settings, sampling, seed = self.config.sampling.resample, self.config.sampling, self.run.config.seed
        if settings is None:
            return first, {}
        used = choose_prompts(step, sampling.queries_per_step, len(self.prompts), seed)
        apart = rule_of(self.config.objective) == "sources"

        def flat(row: Sequence[Reward | Unscored]) -> bool:
            return is_flat(scored_only([row])[0], apart, settings.max_std)

        def sample(number: int, count: int) -> StepAnswers:
            rows = replacement_rows(used, count, len(self.prompts), seed, step, number)
            used.extend(rows)
            batch = self._batch(step, rows, number)
            return StepAnswers(batch, *workers.collect(workers.start(batch, self.sampling)))

        answers, replaced = replace_flat_groups(first, flat, settings.rounds, sample)
        return answers, {"resampled_groups": replaced}

    def should_evaluate(self, step: int) -> bool:
        """Whether validation queries are sampled after this step."""
        return self.config.evaluates_after(step)

    def log_and_checkpoint(self, workers: Orchestrator, step: int, metrics: dict[str, Any], bar: Bar) -> None:
        """Log a step, move the bar, and write a checkpoint where one is due, or the step is the best by validation so far."""
        refreshed = self.refreshed_before(step)
        self.run.log_step(metrics if self.refresher is None else metrics | {"reward_model_step": refreshed})
        bar.at(step + 1, self.config.steps, f"reward {metrics['reward_mean']:.2f} KL {metrics.get('kl', 0):.3f}")
        due = (step + 1) % self.config.checkpoint_every == 0
        if due or metrics.get("validation_reward") is not None:
            best = best_by_validation(self.comparable_rows(step))
            if due or best == step + 1:
                workers.save(self.checkpoints / step_name(step + 1))
                remove_superseded(self.checkpoints, self.config.keep_checkpoints, best)

    def refreshed_before(self, step: int) -> int:
        """The number of updates after which the reward model of a step was trained; 0: it is as it was distilled."""
        return max((one for one in self.refreshes if one <= step), default=0)

    def comparable_rows(self, step: int) -> Sequence[Mapping[str, Any]]:
        """The log's rows up to a step, with validation rewards of one reward model: the newest."""
        rows, refreshed = self.run.metrics(), self.refreshed_before(step)
        if self.refresher is None or not refreshed:
            return rows
        there = {*checkpoints_in(self.checkpoints), step + 1}
        return under_one_model(rows, refreshed, self.refresher.validation_rewards(refreshed), there)
