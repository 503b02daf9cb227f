"""The Ray actors of one GRPO run: rollout, speak and reward workers and learner ranks; the loop in `grpo.py` calls them.

Rollout, speak and reward workers that are lost are replaced, and machines that join are used (see `worker_group.py`). The
learner is not replaced: its state is in its checkpoints, so the run folder must be on storage that all machines share.

Left out: the loss of the head node or of the driver, which ends the run; `--resume` goes on.
Alphabet: B queries, G answers a query.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import ray
from ray.util.placement_group import remove_placement_group

from paras2s.configs.schema.align import RoleConfig, WorkersConfig
from paras2s.configs.schema.run import RunConfig
from paras2s.configs.schema.styles import words_of
from paras2s.errors import ConfigError
from paras2s.policy.types import ClipStore, Prompt, SampleRequest, Sampling
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout import workers
from paras2s.rollout.engine import answer_seeds
from paras2s.rollout.local_ray import start_ray
from paras2s.rollout.prompts import ENCODED_AT_ONCE
from paras2s.rollout.reward_inputs import with_waves
from paras2s.rollout.spoken_share import SpokenShare, forward
from paras2s.rollout.timeline import Span
from paras2s.rollout.worker_group import Call, WorkerGroup, actor_options, errors_of_workers, reserve, results, wait_placed
from paras2s.train.advantages import Values
from paras2s.train.preference import PreferenceBatch
from paras2s.train.sft import Example
from paras2s.types import Demonstration, Query, Reward, Rollout, Unscored

if TYPE_CHECKING:
    from paras2s.reward.sources.composite import RewardSetup

Item = TypeVar("Item")
Rewards = list[list[Reward | Unscored]]
# The longest wait for one thing before it is looked whether something else has come.
FORWARD_S = 1.0


def split(count: int, workers: int) -> list[slice]:
    """Return contiguous shares of `count` items, as even as possible; no share is empty."""
    edges = np.linspace(0, count, min(workers, count) + 1).round().astype(int)
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]


def reserved_cpus(config: WorkersConfig) -> int:
    """Return the number of cores that all roles reserve together."""
    return int(np.ceil(sum(role.cpus * role.count for role in config.by_role.values())))


@dataclass(frozen=True)
class PromptBatch:
    """The prompts of one step [B], as the policy reads them and as rewards read them, and a seed for every answer [B, G].

    `passed_over` counts the run's prompts that the curriculum leaves out; None if it is off.
    """

    step: int
    prompts: tuple[Prompt, ...]
    questions: tuple[RewardQuestion, ...]
    seeds: tuple[tuple[int, ...], ...]
    passed_over: int | None = None


def styles_in_words(run: RunConfig, questions: Sequence[RewardQuestion]) -> list[str]:
    """Return the questions' styles in words for self-distillation's teacher, else []. Raises ConfigError: no words."""
    if run.align.distilled is None:
        return []
    if unknown := [question.id for question in questions if question.style is None]:
        raise ConfigError(f"align.self_distill: the style of question {unknown[0]} is not known")
    return [words_of(question.style or "", run.policy.style_words) for question in questions]


@dataclass(frozen=True)
class StepAnswers:
    """A step's prompts [B], rollouts [B] without sound, and rewards [B, G]; `replaced` groups, None if nothing replaces."""

    prompts: PromptBatch
    rollouts: list[Rollout]
    rewards: Rewards
    replaced: int | None = None


def make_prompt_batch(
    step: int, rows: Sequence[int], prompts: Sequence[Prompt], questions: Sequence[RewardQuestion], seed: int, group_size: int
) -> PromptBatch:
    """Return a batch whose seeds depend on run, step and place alone."""
    seeds = answer_seeds(seed, step, rows, group_size)
    return PromptBatch(step, tuple(prompts), tuple(questions), tuple(tuple(row) for row in seeds))


@dataclass(frozen=True)
class PendingBatch:
    """A batch whose answers are being sampled, share by share, and scored, part by part of the shares.

    Where speak workers make the sound, `shares` in place of calls: what they need is not known beforehand.
    """

    prompts: PromptBatch
    sampled: tuple[Call, ...] = ()
    scored: tuple[Call, ...] = ()
    shares: tuple[SpokenShare, ...] = ()


class Orchestrator:
    """Rollout workers, speak workers if there are any, reward workers and learner ranks, placed by their roles' resources."""

    def __init__(self, run: RunConfig, sft: Path, rewards: RewardSetup) -> None:
        self.run, self._sft, self._setup = run, sft, rewards
        self._spans: list[Span] = []
        # Prompts that were encoded, and not found on the disk.
        self._encoded = 0
        # Shares that speak workers have not done with.
        self._shares: list[SpokenShare] = []
        roles = self.roles = run.align.workers
        start_ray(roles.ray_address, reserved_cpus(roles))
        self._learner_places = reserve(roles.learner, roles.learner.count, "PACK")
        most = max(roles.rollout.count, roles.rollout.max_count or 0)
        self.rollout = WorkerGroup("rollout", roles.rollout, most, self._make_rollout_worker)
        self.reward = WorkerGroup("reward", roles.reward, roles.reward.count, self._make_reward_worker)
        self.speak: WorkerGroup | None = None
        self._groups = [self.rollout, self.reward]
        if roles.speak is not None:
            self.speak = WorkerGroup("speak", roles.speak, roles.speak.count, self._make_speak_worker)
            self._groups.append(self.speak)

    def open(self, resume_from: Path | None) -> None:
        """Place all workers and wait until they have started. Raises ConfigError: the cluster does not hold them."""
        # One role after the other: small workers must not take the places of large ones.
        wait_placed([self._learner_places], "align.workers.learner", self.roles.learner)
        for group in self._groups:
            group.place(group.role.count)
        self.learners = self._make_learners(resume_from)
        for group in self._groups:
            group.open()
        self.sync(ray.get(self.learners[0].next_step.remote()))

    def _threads(self, role: RoleConfig) -> int:
        return role.threads or workers.threads_for(self.roles.rollout.count)

    def _make_rollout_worker(self, options: dict[str, Any]) -> Any:
        actor = workers.RolloutWorker.options(**options)  # type: ignore[attr-defined]
        return actor.remote(self._sft, self.run.policy, self.run.align, self._threads(self.roles.rollout))

    def _make_speak_worker(self, options: dict[str, Any]) -> Any:
        actor = workers.SpeakWorker.options(**options)  # type: ignore[attr-defined]
        assert self.roles.speak is not None
        return actor.remote(self._sft, self.run.policy, self._threads(self.roles.speak))

    def _make_reward_worker(self, options: dict[str, Any]) -> Any:
        actor = workers.RewardWorker.options(**options)  # type: ignore[attr-defined]
        return actor.remote(self._setup, self._threads(self.roles.reward))

    def _make_learners(self, resume_from: Path | None) -> list[Any]:
        role = self.roles.learner
        threads = role.threads or workers.threads_for(role.count)
        ranks = [
            workers.LearnerActor.options(**actor_options(role, self._learner_places, rank)).remote(  # type: ignore[attr-defined]
                self._sft, self.run.policy, self.run.align, threads, self.run.reward.weights
            )
            for rank in range(role.count)
        ]
        address = ray.get(ranks[0].rendezvous.remote())
        ray.get([learner.open.remote(rank, address, resume_from) for rank, learner in enumerate(ranks)])
        return ranks

    def sync(self, version: int) -> None:
        """Publish the learner's weights, those after `version` updates: rollout workers sample with them from now on."""
        self.version = version
        # Every rank must be called to gather the weights; rank 0 returns them.
        self._weights, *_ = [learner.weights.remote() for learner in self.learners]

    def encode(self, folder: Path, clips: ClipStore, queries: Sequence[Query], done: Callable[[int, int], None]) -> list[str]:
        """Return the files of all queries' prompts; rollout workers encode missing prompts. `done` is told their number."""
        return self._encode_all(lambda part: self._encode(folder, clips, part), queries, done)

    def encode_targets(
        self, folder: Path, clips: ClipStore, demonstrations: Sequence[Demonstration], done: Callable[[int, int], None]
    ) -> list[str]:
        """Return the files of all demonstrations as targets, as `encode` does for prompts."""

        def encode(part: Sequence[Demonstration]) -> Call:
            return Call(self.rollout, lambda actor: actor.encode_targets.remote(folder, clips, part))

        return self._encode_all(encode, demonstrations, done)

    def _encode_all(
        self, encode: Callable[[Sequence[Item]], Call], items: Sequence[Item], done: Callable[[int, int], None]
    ) -> list[str]:
        names: list[str] = []
        # Enough under way that no worker waits, and few enough to report progress.
        at_once = 2 * ENCODED_AT_ONCE * self.roles.rollout.count
        for start in range(0, len(items), at_once):
            stop = min(start + at_once, len(items))
            parts = [items[first : min(first + ENCODED_AT_ONCE, stop)] for first in range(start, stop, ENCODED_AT_ONCE)]
            for part, encoded, spans in results([encode(part) for part in parts]):
                names += part
                self._encoded += encoded
                self._spans += spans
            done(len(names), len(items))
        return names

    def _encode(self, folder: Path, clips: ClipStore, queries: Sequence[Query]) -> Call:
        return Call(self.rollout, lambda actor: actor.encode.remote(folder, clips, queries))

    def start(self, batch: PromptBatch, sampling: Sampling) -> PendingBatch:
        """Start sampling on all workers; without speak workers each part goes on to its reward worker by itself."""
        for group in self._groups:
            group.replace_lost_workers()
        shares = split(len(batch.questions), max(1, len(self.rollout.workers)))
        parts_per_share = -(-max(1, len(self.reward.workers)) // max(1, len(shares)))
        if self.speak is not None:
            spoken = tuple(self._share(batch, share, sampling, parts_per_share) for share in shares)
            self._shares += spoken
            return PendingBatch(batch, shares=spoken)
        sampled = [self._sample(batch, share, sampling) for share in shares]
        scored = [self._score(batch, share, part, call) for share, call in zip(shares, sampled, strict=True)
                  for part in split(share.stop - share.start, parts_per_share)]  # fmt: skip
        return PendingBatch(batch, tuple(sampled), tuple(scored))

    def _arguments(self, batch: PromptBatch, share: slice, sampling: Sampling) -> tuple[Any, ...]:
        ids = [question.id for question in batch.questions[share]]
        # A call that is made again later must be with the weights of now.
        return self._weights, self.version, ids, SampleRequest(batch.prompts[share], batch.seeds[share], sampling)

    def _sample(self, batch: PromptBatch, share: slice, sampling: Sampling) -> Call:
        arguments = self._arguments(batch, share, sampling)
        # Several results: the sound stays where it was made until a judge wants it.
        return Call(self.rollout, lambda actor: actor.generate.options(num_returns=3).remote(*arguments))

    def _share(self, batch: PromptBatch, share: slice, sampling: Sampling, parts: int) -> SpokenShare:
        arguments = self._arguments(batch, share, sampling)

        def sample(actor: Any) -> Any:
            return actor.generate_in_parts.options(num_returns="streaming").remote(*arguments)

        judged = [(part, batch.questions[share][part]) for part in split(share.stop - share.start, parts)]
        return SpokenShare(self.rollout, self.reward, sample, judged)

    def _score(self, batch: PromptBatch, share: slice, part: slice, sampled: Call) -> Call:
        questions = batch.questions[share][part]

        def make(actor: Any) -> Any:
            rollouts, waves, _ = sampled.refs
            return actor.score.options(num_returns=2).remote(rollouts, waves, part, questions)

        return Call(self.reward, make, reads=[sampled])

    def _forward_while(self, waiting: Callable[[], bool], refs: Sequence[Any] = ()) -> None:
        """Forward the results of rollout and speak workers while `waiting()`; `refs` are other results that may come."""
        while self.speak is not None and self._shares:
            forward(self._shares, self.speak)
            if not waiting():
                break
            awaited = [ref for share in self._shares for ref in share.awaited()]
            pending = ray.wait(list(refs), num_returns=len(refs), timeout=0)[1] if refs else []
            ray.wait([*awaited, *pending], num_returns=1, timeout=FORWARD_S)

    def collect(self, pending: PendingBatch) -> StepAnswers:
        """Return a batch with its rollouts [B], without their sound, and rewards [B, G], once all have come."""
        self._forward_while(lambda: not all(share.complete for share in pending.shares))
        self._shares = [share for share in self._shares if share not in pending.shares]
        scored = (*pending.scored, *(call for share in pending.shares for call in share.scored or ()))
        parts = [*results(pending.sampled), *(share.rollouts for share in pending.shares)]
        rewards = results(scored)
        for spans in (*results(pending.sampled, 2), *(share.spans for share in pending.shares), *results(scored, 1)):
            self._spans += spans
        rollouts = [rollout for part in parts for rollout in part]
        return StepAnswers(pending.prompts, rollouts, [row for part in rewards for row in part])

    def with_sound(self, pending: PendingBatch, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Return the collected rollouts [B] of a batch with their sound, to be kept."""
        parts = [*results(pending.sampled, 1), *(share.waves() for share in pending.shares)]
        return with_waves(rollouts, [waves for part in parts for waves in part])

    def update(self, answers: StepAnswers, anchored: Sequence[Example] = ()) -> tuple[dict[str, Any], Values]:
        """Update the policy on all ranks, anchored to demonstrations; return metrics, and the advantages [B, G] of its loss."""
        styles = styles_in_words(self.run, answers.prompts.questions)
        inputs = ray.put((answers.prompts.prompts, answers.rollouts, answers.rewards, anchored, styles))
        steps = [learner.step.remote(inputs) for learner in self.learners]
        self._forward_while(lambda: bool(ray.wait(steps, num_returns=len(steps), timeout=0)[1]), steps)
        updates = ray.get(steps)
        for _, _, spans in updates:
            self._spans += spans
        metrics, advantages, _ = updates[0]
        counts = {"resampled_groups": answers.replaced, "passed_over": answers.prompts.passed_over}
        return metrics | {name: count for name, count in counts.items() if count is not None}, advantages

    def learn(self, batch: PreferenceBatch, anchored: Sequence[Example] = ()) -> dict[str, Any]:
        """Update the policy on recorded answers, on all ranks at once; return the step's metrics."""
        inputs = ray.put((batch, anchored))
        updates = ray.get([learner.learn.remote(inputs) for learner in self.learners])
        for _, spans in updates:
            self._spans += spans
        metrics: dict[str, Any] = updates[0][0]
        return metrics

    def answer_rate_hz(self) -> int:
        """Return the lowest sample rate of a recorded answer that holds all that the policy can say."""
        return int(results([Call(self.rollout, lambda actor: actor.answer_rate_hz.remote())])[0])

    def take_spans(self) -> tuple[list[Span], int]:
        """Return the workers' spans that have come since the last call, and how many prompts they encoded in them."""
        spans, self._spans = self._spans, []
        encoded, self._encoded = self._encoded, 0
        return spans, encoded

    def checkpoint_bytes(self) -> int:
        """Return the size of a checkpoint in bytes."""
        return int(ray.get(self.learners[0].checkpoint_bytes.remote()))

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        ray.get([learner.save.remote(folder) for learner in self.learners])

    def export(self, folder: Path) -> None:
        """Write the aligned policy."""
        ray.get([learner.export.remote(folder) for learner in self.learners])

    def close(self) -> None:
        """Give the reserved places back; the actors end with them."""
        if not ray.is_initialized():
            return
        for group in self._groups:
            group.close()
        remove_placement_group(self._learner_places)


@contextmanager
def open_orchestrator(run: RunConfig, sft: Path, rewards: RewardSetup, resume_from: Path | None) -> Iterator[Orchestrator]:
    """Open an orchestrator for as long as the block lasts; an error in an actor is raised as itself.

    Raises:
        ConfigError: the cluster does not hold its workers. PolicyError: a worker is gone for good.
    """
    orchestrator = Orchestrator(run, sft, rewards)
    try:
        with errors_of_workers():
            orchestrator.open(resume_from)
            yield orchestrator
    finally:
        orchestrator.close()
