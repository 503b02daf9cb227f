"""The Ray actors of one alignment: where they stand, what happens when one dies or a machine joins, and their calls.

What is shared out to whom is decided by plain functions; drivers see `begin`, `collect` and `learn`.
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

from paras2s.config import AlignConfig, RoleConfig, RunConfig
from paras2s.errors import ConfigError, PolicyError
from paras2s.policy.interface import Prompt, Sampling
from paras2s.records import Reward, Rollout, Unscored
from paras2s.reward.sources.base import AskedQuestion
from paras2s.rollout import actors
from paras2s.rollout.engine import answer_seeds

if TYPE_CHECKING:
    from paras2s.reward.sources.panel import RewardSetup

# A cluster that does not hold the run says so after this long.
PLACEMENT_TIMEOUT_S = 120.0
Rewards = list[list[Reward | Unscored]]


@dataclass(frozen=True)
class Asked:
    """What one step asks: the questions as the policy hears them, as rewards know them, and a seed for every answer [B][G]."""

    step: int
    heard: tuple[Prompt, ...]
    questions: tuple[AskedQuestion, ...]
    seeds: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Underway:
    """Answers that are being sampled and judged: a part's rollouts, and the rewards of each of its slices."""

    asked: Asked
    parts: tuple[tuple[Any, tuple[Any, ...]], ...]


def split(count: int, workers: int) -> list[slice]:
    """Contiguous shares of `count` items, as even as can be; no share is empty."""
    edges = np.linspace(0, count, min(workers, count) + 1).round().astype(int)
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]


def asked_of(
    step: int, rows: Sequence[int], heard: Sequence[Prompt], questions: Sequence[AskedQuestion], seed: int, group: int
) -> Asked:
    """A step's questions with their seeds, which depend on run, step and place alone."""
    seeds = answer_seeds(seed, step, rows, group)
    return Asked(step, tuple(heard), tuple(questions), tuple(tuple(row) for row in seeds))


def cpus_wanted(config: AlignConfig) -> int:
    """Cores that all roles reserve together."""
    roles = ((config.rollout, config.rollout_workers), (config.reward, config.reward_workers))
    return int(np.ceil(sum(role.cpus * count for role, count in (*roles, (config.learner, config.learner_workers)))))


def _free() -> dict[str, float]:
    return dict(ray.available_resources())  # type: ignore[no-untyped-call]


class Fleet:
    """Rollout workers, reward workers and learner ranks, each placed by its role's resources."""

    def __init__(self, run: RunConfig, sft: Path, rewards: RewardSetup, resume_from: Path | None) -> None:
        self.config, self.policy, self.sft = run.align, run.policy, sft
        self._rewards, self._resume_from = rewards, resume_from
        self._groups: list[Any] = []
        config = self.config
        actors.start_ray(config.ray_address, cpus_wanted(config))
        self._bundles("learner", config.learner, config.learner_workers, "PACK")
        self.learners = self._learners()
        self.rollout = self._place("rollout", config.rollout, config.rollout_workers, self._rollout_worker)
        self.reward = self._place("reward", config.reward, config.reward_workers, self._reward_worker)
        self.version = ray.get(self.learners[0].next_step.remote())
        self._weights: Any = None
        self.sync(self.version)

    # -- placement ----------------------------------------------------------------------------------------------------

    def _bundles(self, role: str, wanted: RoleConfig, count: int, strategy: str) -> Any:
        """Reserve what a role's workers need.

        Raises:
            ConfigError: the cluster does not hold it.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        group = placement_group([wanted.bundle for _ in range(count)], strategy=strategy)
        try:
            ray.get(group.ready(), timeout=PLACEMENT_TIMEOUT_S)
        except ray.exceptions.GetTimeoutError:
            remove_placement_group(group)
            free = {name: amount for name, amount in _free().items() if name in ("CPU", "GPU")}
            raise ConfigError(
                f"align.{role}_workers: {count} x {wanted.bundle} do not fit; the cluster has {free or 'nothing'} left. "
                f"Ask for fewer, or change align.{role}"
            ) from None
        self._groups.append(group)
        return group

    def _place(self, role: str, wanted: RoleConfig, count: int, make: Any) -> list[Any]:
        group = self._bundles(role, wanted, count, "SPREAD")
        return [make(self._options(wanted, group, place)) for place in range(count)]

    @staticmethod
    def _options(wanted: RoleConfig, group: Any, place: int) -> dict[str, Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)
        return {"num_cpus": wanted.cpus, "num_gpus": wanted.gpus, "scheduling_strategy": strategy}

    def _threads(self, wanted: RoleConfig) -> int:
        return wanted.threads or actors.threads_for(self.config.rollout_workers)

    def _rollout_worker(self, options: dict[str, Any]) -> Any:
        config = self.config
        made = actors.RolloutWorker.options(**options)  # type: ignore[attr-defined]
        return made.remote(self.sft, self.policy, config, self._threads(config.rollout))

    def _reward_worker(self, options: dict[str, Any]) -> Any:
        made = actors.RewardWorker.options(**options)  # type: ignore[attr-defined]
        return made.remote(self._rewards, self._threads(self.config.reward))

    def _learners(self) -> list[Any]:
        config, ranks = self.config, self.config.learner_workers
        threads = config.learner.threads or actors.threads_for(ranks)
        found = [
            actors.LearnerActor.options(**self._options(config.learner, self._groups[0], rank)).remote(  # type: ignore[attr-defined]
                self.sft, self.policy, config, threads
            )
            for rank in range(ranks)
        ]
        meeting = ray.get(found[0].meeting.remote())
        ray.get([one.open.remote(rank, meeting, self._resume_from) for rank, one in enumerate(found)])
        return found

    def grow(self) -> int:
        """Use a machine that has joined: one more rollout worker, where the config allows it and there is room; how many."""
        config = self.config
        if len(self.rollout) >= (config.rollout_workers_max or config.rollout_workers):
            return 0
        free = _free()
        if any(free.get(name, 0.0) < amount for name, amount in config.rollout.bundle.items()):
            return 0
        self.rollout += self._place("rollout", config.rollout, 1, self._rollout_worker)
        return 1

    # -- the calls ----------------------------------------------------------------------------------------------------

    def sync(self, version: int) -> None:
        """From now on rollout workers sample with the learner's present weights, those after `version` steps."""
        self.version = version
        # Every rank must ask for whole weights; one of them hands them on.
        calls = [learner.weights.remote() for learner in self.learners]
        self._weights = calls[0]

    def begin(self, asked: Asked, group: int, sampling: Sampling) -> Underway:
        """Start sampling; every part goes on to its judges without coming back here."""
        shares = split(len(asked.questions), len(self.rollout))
        judges, parts = itertools.cycle(self.reward), []
        for worker, s in zip(self.rollout, shares, strict=False):
            ids = [question.id for question in asked.questions[s]]
            rollouts = worker.generate.remote(self._weights, self.version, ids, asked.heard[s], group, sampling, asked.seeds[s])
            slices = split(len(ids), -(-len(self.reward) // len(shares)))
            scores = tuple(next(judges).score.remote(rollouts, part, asked.questions[s][part]) for part in slices)
            parts.append((rollouts, scores))
        return Underway(asked, tuple(parts))

    def collect(self, underway: Underway) -> tuple[list[Rollout], Rewards]:
        """Rollouts [B] and rewards [B][G], once all are there."""
        rollouts = [one for part, _ in underway.parts for one in ray.get(part)]
        rewards = [row for _, scores in underway.parts for one in scores for row in ray.get(one)]
        return rollouts, rewards

    def learn(self, asked: Asked, rollouts: Sequence[Rollout], rewards: Rewards) -> dict[str, Any]:
        """One update, on all ranks at once."""
        given = ray.put((asked.heard, list(rollouts), rewards))
        return self._on_all([learner.step.remote(given) for learner in self.learners])

    def save(self, folder: Path) -> None:
        """A checkpoint."""
        self._on_all([learner.save.remote(folder) for learner in self.learners])

    def export(self, folder: Path) -> None:
        """The aligned policy."""
        self._on_all([learner.export.remote(folder) for learner in self.learners])

    def _on_all(self, calls: list[Any]) -> Any:
        """What rank 0 answers; the first rank that fails ends the others, which would wait for it."""
        waiting = list(calls)
        while waiting:
            (ready, *_), waiting = ray.wait(waiting, num_returns=1)
            try:
                ray.get(ready)
            except Exception:
                for learner in self.learners[1:] if len(self.learners) > 1 else ():
                    ray.kill(learner)
                raise
        return ray.get(calls[0])  # type: ignore[no-any-return]

    def close(self) -> None:
        """Give the reserved places back; actors end with them."""
        from ray.util.placement_group import remove_placement_group

        for group in self._groups:
            remove_placement_group(group)


@contextmanager
def fleet_of(run: RunConfig, sft: Path, rewards: RewardSetup, resume_from: Path | None) -> Iterator[Fleet]:
    """A fleet for as long as the block lasts; what goes wrong in an actor is raised here as itself.

    Raises:
        PolicyError: an actor is gone for good.
    """
    fleet: Fleet | None = None
    try:
        fleet = Fleet(run, sft, rewards, resume_from)
        yield fleet
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else PolicyError(str(error)) from error
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
        raise PolicyError(
            f"a learner, or what only its machine had, is lost ({str(error).splitlines()[0]}); `paras2s align CONFIG --resume` "
            "goes on from the newest checkpoint"
        ) from error
    finally:
        if fleet is not None:
            fleet.close()
