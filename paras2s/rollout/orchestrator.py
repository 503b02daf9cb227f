"""The Ray actors of one alignment and their calls; drivers see `begin`, `collect`, `learn` and `sync`.

Rollout and reward workers that are lost are replaced, and machines that join are used (see `crew.py`). The learner is not
replaced: what it knows is in its checkpoints, so the run folder must be on storage that all machines share.

On one machine sampling and learning share its cores: what the asynchronous driver then hides is waiting for judges.

Left out: the loss of the head node or of the driver, which ends the run; `--resume` goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import remove_placement_group

from paras2s.configs.schema.run import AlignConfig, RoleConfig, RunConfig
from paras2s.errors import PolicyError
from paras2s.policy.types import Prompt, Sampling
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout import workers
from paras2s.rollout.engine import answer_seeds
from paras2s.rollout.worker_group import (
    LOST,
    RESUME,
    Call,
    WorkerGroup,
    options_of,
    reserved,
    results,
    wait_placed,
    what_happened,
)
from paras2s.types import Reward, Rollout, Unscored

if TYPE_CHECKING:
    from paras2s.reward.sources.composite import RewardSetup

Rewards = list[list[Reward | Unscored]]


def split(count: int, workers: int) -> list[slice]:
    """Contiguous shares of `count` items, as even as can be; no share is empty."""
    edges = np.linspace(0, count, min(workers, count) + 1).round().astype(int)
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]


def cpus_wanted(config: AlignConfig) -> int:
    """Cores that all roles reserve together."""
    roles = ((config.rollout, config.rollout_workers), (config.reward, config.reward_workers))
    return int(np.ceil(sum(role.cpus * count for role, count in (*roles, (config.learner, config.learner_workers)))))


@dataclass(frozen=True)
class PromptBatch:
    """What one step asks: the questions as the policy hears them, as rewards know them, and a seed for every answer [B][G]."""

    step: int
    heard: tuple[Prompt, ...]
    questions: tuple[RewardQuestion, ...]
    seeds: tuple[tuple[int, ...], ...]


def asked_of(
    step: int, rows: Sequence[int], heard: Sequence[Prompt], questions: Sequence[RewardQuestion], seed: int, group: int
) -> PromptBatch:
    """A step's questions with their seeds, which depend on run, step and place alone."""
    seeds = answer_seeds(seed, step, rows, group)
    return PromptBatch(step, tuple(heard), tuple(questions), tuple(tuple(row) for row in seeds))


@dataclass(frozen=True)
class PendingBatch:
    """Answers that are being sampled, share by share, and judged, slice by slice of the shares."""

    asked: PromptBatch
    sampled: tuple[Call, ...]
    judged: tuple[Call, ...]


class Orchestrator:
    """Rollout workers, reward workers and learner ranks, each placed by its role's resources."""

    def __init__(self, run: RunConfig, sft: Path, rewards: RewardSetup) -> None:
        self.config, self._policy, self._sft, self._setup = run.align, run.policy, sft, rewards
        config = self.config
        workers.start_ray(config.ray_address, cpus_wanted(config))
        self._learners_group = reserved(config.learner, config.learner_workers, "PACK")
        most = max(config.rollout_workers, config.rollout_workers_max or 0)
        self.rollout = WorkerGroup("rollout", config.rollout, most, self._rollout_worker)
        self.reward = WorkerGroup("reward", config.reward, config.reward_workers, self._reward_worker)

    def open(self, resume_from: Path | None) -> None:
        """Place all of them and wait until they have started.

        Raises:
            ConfigError: the cluster does not hold them.
        """
        config = self.config
        # One role after the other: small workers must not take the places where large ones are to stand.
        wait_placed([self._learners_group], "learner", config.learner)
        self.rollout.place(config.rollout_workers)
        self.reward.place(config.reward_workers)
        self.learners = self._learners(resume_from)
        self.rollout.open()
        self.reward.open()
        self.sync(ray.get(self.learners[0].next_step.remote()))

    def _threads(self, wanted: RoleConfig) -> int:
        return wanted.threads or workers.threads_for(self.config.rollout_workers)

    def _rollout_worker(self, options: dict[str, Any]) -> Any:
        config = self.config
        made = workers.RolloutWorker.options(**options)  # type: ignore[attr-defined]
        return made.remote(self._sft, self._policy, config, self._threads(config.rollout))

    def _reward_worker(self, options: dict[str, Any]) -> Any:
        made = workers.RewardWorker.options(**options)  # type: ignore[attr-defined]
        return made.remote(self._setup, self._threads(self.config.reward))

    def _learners(self, resume_from: Path | None) -> list[Any]:
        config, ranks = self.config, self.config.learner_workers
        threads = config.learner.threads or workers.threads_for(ranks)
        found = [
            workers.LearnerActor.options(**options_of(config.learner, self._learners_group, rank)).remote(  # type: ignore[attr-defined]
                self._sft, self._policy, config, threads
            )
            for rank in range(ranks)
        ]
        meeting = ray.get(found[0].meeting.remote())
        ray.get([one.open.remote(rank, meeting, resume_from) for rank, one in enumerate(found)])
        return found

    def sync(self, version: int) -> None:
        """From now on rollout workers sample with the learner's present weights, those after `version` steps."""
        self.version = version
        # Every rank must ask for whole weights; one of them hands them on.
        self._weights, *_ = [learner.weights.remote() for learner in self.learners]

    def begin(self, asked: PromptBatch, group: int, sampling: Sampling) -> PendingBatch:
        """Start sampling, on all workers there are by now; every part goes on to its judges without coming back here."""
        self.rollout.tend()
        self.reward.tend()
        shares = split(len(asked.questions), max(1, len(self.rollout.workers)))
        judges = -(-max(1, len(self.reward.workers)) // max(1, len(shares)))
        sampled = [self._sample(asked, share, group, sampling) for share in shares]
        judged = [self._judge(asked, share, part, one) for share, one in zip(shares, sampled, strict=True)
                  for part in split(share.stop - share.start, judges)]  # fmt: skip
        return PendingBatch(asked, tuple(sampled), tuple(judged))

    def _sample(self, asked: PromptBatch, share: slice, group: int, sampling: Sampling) -> Call:
        ids, heard, seeds = [one.id for one in asked.questions[share]], asked.heard[share], asked.seeds[share]
        # Made again later, it must be with the weights of now.
        weights, version = self._weights, self.version
        return Call(self.rollout, lambda actor: actor.generate.remote(weights, version, ids, heard, group, sampling, seeds))

    def _judge(self, asked: PromptBatch, share: slice, part: slice, sampled: Call) -> Call:
        questions = asked.questions[share][part]
        return Call(self.reward, lambda actor: actor.score.remote(sampled.ref, part, questions), of=sampled)

    def collect(self, underway: PendingBatch) -> tuple[list[Rollout], Rewards]:
        """Rollouts [B] and rewards [B][G], once all are there."""
        rollouts, rewards = results(underway.sampled), results(underway.judged)
        return [one for part in rollouts for one in part], [row for part in rewards for row in part]

    def learn(self, asked: PromptBatch, rollouts: Sequence[Rollout], rewards: Rewards) -> dict[str, Any]:
        """One update, on all ranks at once."""
        given = ray.put((asked.heard, list(rollouts), rewards))
        return ray.get([learner.step.remote(given) for learner in self.learners])[0]  # type: ignore[no-any-return]

    def save(self, folder: Path) -> None:
        """A checkpoint."""
        ray.get([learner.save.remote(folder) for learner in self.learners])

    def export(self, folder: Path) -> None:
        """The aligned policy."""
        ray.get([learner.export.remote(folder) for learner in self.learners])

    def close(self) -> None:
        """Give the reserved places back; actors end with them."""
        self.rollout.close()
        self.reward.close()
        remove_placement_group(self._learners_group)


@contextmanager
def open_orchestrator(run: RunConfig, sft: Path, rewards: RewardSetup, resume_from: Path | None) -> Iterator[Orchestrator]:
    """A fleet for as long as the block lasts; what goes wrong in an actor is raised here as itself.

    Raises:
        ConfigError: the cluster does not hold it. PolicyError: an actor is gone for good.
    """
    fleet = Orchestrator(run, sft, rewards)
    try:
        fleet.open(resume_from)
        yield fleet
    except (RayTaskError, *LOST) as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if not isinstance(cause, RayError) and isinstance(cause, Exception):
            raise cause from error
        if isinstance(cause, RayActorError) and cause.actor_init_failed:
            raise PolicyError(f"a worker could not start: {what_happened(cause)}") from error
        # A call to the learner, or one that should have read weights which are lost with it.
        raise PolicyError(f"the run cannot go on: {what_happened(cause)}; {RESUME}") from error
    finally:
        fleet.close()
