"""The driver: place, rollout, reward, learn, sync, evaluate.

After ParaS2S, section 4.3. Left out: several updates on one batch of rollouts, and sampling while learning; both are
another driver's business. One machine: `paras2s align CONFIG`. A cluster: set `align.ray_address`.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray

from paras2s.errors import PolicyError
from paras2s.policy.checkpoint import latest_checkpoint
from paras2s.policy.interface import Prompt, Sampling
from paras2s.records import Reward
from paras2s.reward.sources.base import AskedQuestion
from paras2s.rollout import actors as ray_actors
from paras2s.rollout.engine import answer_seeds
from paras2s.stages.run import Run

Blur = Callable[[Prompt, np.random.Generator], Prompt]
Validation = tuple[Sequence[Prompt], Sequence[AskedQuestion]]


def pick_queries(step: int, per_step: int, available: int, seed: int) -> list[int]:
    """Which RL prompts a step asks: every prompt once an epoch, in an order that the seed alone decides."""
    epochs = range(step * per_step // available, ((step + 1) * per_step - 1) // available + 1)
    order = np.concatenate([np.random.default_rng([seed, 3, epoch]).permutation(available) for epoch in epochs])
    start = step * per_step - epochs[0] * available
    return [int(row) for row in order[start : start + per_step]]


def split(count: int, workers: int) -> list[slice]:
    """Contiguous shares of `count` items, as even as can be; no share is empty."""
    edges = np.linspace(0, count, min(workers, count) + 1).round().astype(int)
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]


def _remote(actor: Any, *arguments: Any) -> Any:
    """Start an actor; Ray's decorator hides `remote` from type checkers."""
    return actor.remote(*arguments)


class Actors:
    """The Ray actors of one alignment, and the calls that spread work over them."""

    def __init__(self, run: Run, resume: bool) -> None:
        config = run.config.align
        ray_actors.start_ray(config.ray_address)
        found = latest_checkpoint(run.folder / "checkpoints" / "align") if resume else None
        sft, steps = run.sft_dir.resolve(), run.config.policy.max_answer_steps
        threads = ray_actors.threads_for(config.rollout_workers)
        self.rollout = [_remote(ray_actors.RolloutWorker, sft, threads) for _ in range(config.rollout_workers)]
        self.reward = [_remote(ray_actors.RewardWorker, run.reward_setup(), threads) for _ in range(config.reward_workers)]
        self.learner = _remote(ray_actors.LearnerActor, sft, config, steps, found and found.resolve())
        self.weights: Any = self.learner.weights.remote()

    def sync(self) -> None:
        """From now on the rollout workers sample with the learner's present weights."""
        self.weights = self.learner.weights.remote()

    def ask(
        self, version: int, heard: Sequence[Prompt], questions: Sequence[AskedQuestion], group: int,
        sampling: Sampling, seeds: Sequence[Sequence[int]],
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        """Rollouts [B] and rewards [B][G] of queries, spread over the workers.

        The policy answers what it heard; the reward is for the question as it was.
        """
        ids = [question.id for question in questions]
        shares = split(len(ids), len(self.rollout))
        parts = [
            worker.generate.remote(self.weights, version, ids[s], heard[s], group, sampling, seeds[s])
            for worker, s in zip(self.rollout, shares, strict=False)
        ]
        rollouts = [rollout for part in ray.get(parts) for rollout in part]
        shares = split(len(ids), len(self.reward))
        scores = [worker.score.remote(rollouts[s], questions[s]) for worker, s in zip(self.reward, shares, strict=False)]
        return rollouts, [row for part in ray.get(scores) for row in part]


def align(
    run: Run,
    prompts: Sequence[Prompt],
    questions: Sequence[AskedQuestion],
    validation: Validation,
    blur: Blur,
    resume: bool,
) -> None:
    """Move the SFT policy toward its better answers; leaves the aligned policy in the run folder.

    `prompts` are what the policy reads of the RL queries, `questions` what the reward knows of them. `blur` is what
    happens to a question on its way to the policy's ears (see `policy.augment`).

    Raises:
        PolicyError: too many unscored answers, a loss that is not finite, or an actor that could not be kept alive.
    """
    config, seed = run.config.align, run.config.seed
    sampling = Sampling(config.temperature, config.temperature, run.config.policy.max_answer_steps)
    checkpoints = run.folder / "checkpoints" / "align"
    with run.stage("align"), run.bar("GRPO steps", config.steps) as bar:
        try:
            actors = Actors(run, resume)
            first = ray.get(actors.learner.next_step.remote())
            run.drop_steps_from(first)
            if first == 0:
                # Checkpoints of an earlier try would be taken for this one's by a later --resume.
                shutil.rmtree(checkpoints, ignore_errors=True)
            for step in range(first, config.steps):
                started = time.perf_counter()
                rows = pick_queries(step, config.queries_per_step, len(prompts), seed)
                rng = np.random.default_rng([seed, 5, step])
                heard, asked = [blur(prompts[row], rng) for row in rows], [questions[row] for row in rows]
                seeds = answer_seeds(seed, step, rows, config.group_size)
                rollouts, rewards = actors.ask(step, heard, asked, config.group_size, sampling, seeds)
                metrics = ray.get(actors.learner.step.remote(heard, rollouts, rewards))
                actors.sync()
                if step % config.evaluate_every == 0 or step + 1 == config.steps:
                    looked = evaluate(actors, step + 1, validation, sampling, seed)
                    metrics["validation_reward"], metrics["validation_unscored"] = looked
                metrics["seconds"] = time.perf_counter() - started
                run.log_step(metrics)
                bar.at(step + 1, config.steps, f"reward {metrics['reward_mean']:.2f} KL {metrics.get('kl', 0):.3f}")
                if (step + 1) % config.checkpoint_every == 0:
                    ray.get(actors.learner.save.remote((checkpoints / f"step_{step + 1:06d}").resolve()))
            ray.get(actors.learner.save.remote(run.aligned_dir.resolve()))
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else PolicyError(str(error)) from error
        except ray.exceptions.RayActorError as error:
            raise PolicyError(f"an actor died and could not be started again ({error}); run with --resume") from error


def evaluate(actors: Actors, version: int, validation: Validation, sampling: Sampling, seed: int) -> tuple[float | None, int]:
    """Mean reward of one answer to each validation query, None if none was scored, and how many were not.

    For the curve, not for the table. A pairwise source has nobody to compare a lone answer with and scores none.
    """
    prompts, questions = validation
    seeds = answer_seeds(seed, 3_000_000, range(len(prompts)), 1)
    _, rewards = actors.ask(version, prompts, questions, 1, sampling, seeds)
    scored = [reward.value for row in rewards for reward in row if isinstance(reward, Reward)]
    return float(np.mean(scored)) if scored else None, sum(map(len, rewards)) - len(scored)
