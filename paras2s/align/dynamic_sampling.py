"""Dynamic sampling (DAPO, section 3.2): queries whose groups are flat teach nothing, so others replace them.

Queries, augmentation and seeds depend on the run's seed, the step and the round alone: at `align.max_staleness` 0 a resumed run
samples what the uninterrupted run did. Unscored answers are no reason to sample again; they are counted as everywhere. Later
steps are unchanged: they sample every prompt once an epoch, replacements included.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from paras2s.align.answers_ahead import prompt_batch, rows_of
from paras2s.align.job import GRPOJob
from paras2s.rollout.orchestrator import Orchestrator, StepAnswers
from paras2s.train.advantages import is_flat, scored_only
from paras2s.train.algorithm import rule_of
from paras2s.types import Reward, Unscored
from paras2s.utils.seeds import Stream

Item = TypeVar("Item")


def resample(workers: Orchestrator, job: GRPOJob, first: StepAnswers) -> StepAnswers:
    """Replace the queries of a step whose groups are flat, if `align.sampling.resample` asks for it."""
    settings, step, seed = job.config.sampling.resample, first.prompts.step, job.run.config.seed
    if settings is None:
        return first
    used, by_source = rows_of(job, step), rule_of(job.config.objective) == "sources"

    def flat(row: Sequence[Reward | Unscored]) -> bool:
        return is_flat(scored_only([row])[0], by_source, job.config.sampling.flat_std)

    def sample(sampling_round: int, count: int) -> StepAnswers:
        rows = replacement_rows(used, count, len(job.prompts), seed, step, sampling_round)
        used.extend(rows)
        return workers.collect(workers.start(prompt_batch(job, step, rows, sampling_round), job.sampling))

    return replace_flat_groups(first, flat, settings.rounds, sample)


def replace_flat_groups(
    first: StepAnswers,
    flat: Callable[[Sequence[Reward | Unscored]], bool],
    rounds: int,
    sample: Callable[[int, int], StepAnswers],
) -> StepAnswers:
    """Sample others for flat groups, round after round; return the step's answers and the number of groups replaced.

    `sample` takes the round's number, from 1, and the number of queries. Groups that are flat after the last round stay.
    """
    answers, replaced = first, 0
    for sampling_round in range(1, rounds + 1):
        groups = [group for group, row in enumerate(answers.rewards) if flat(row)]
        if not groups:
            break
        answers = with_groups(answers, groups, sample(sampling_round, len(groups)))
        replaced += len(groups)
    return replace(answers, replaced=replaced)


def with_groups(answers: StepAnswers, groups: Sequence[int], others: StepAnswers) -> StepAnswers:
    """Return the same step with the groups of `others` in the place of these groups, in order."""
    new = dict(zip(groups, range(len(groups)), strict=True))

    def swapped(own: Sequence[Item], other: Sequence[Item]) -> list[Item]:
        return [other[new[group]] if group in new else item for group, item in enumerate(own)]

    prompts = replace(
        answers.prompts,
        prompts=tuple(swapped(answers.prompts.prompts, others.prompts.prompts)),
        questions=tuple(swapped(answers.prompts.questions, others.prompts.questions)),
        seeds=tuple(swapped(answers.prompts.seeds, others.prompts.seeds)),
    )
    rollouts, rewards = swapped(answers.rollouts, others.rollouts), swapped(answers.rewards, others.rewards)
    return StepAnswers(prompts, rollouts, rewards)


def replacement_rows(used: Sequence[int], count: int, available: int, seed: int, step: int, sampling_round: int) -> list[int]:
    """Return the rows of the prompts for a round of a step: first those that the step has not sampled, then all again."""
    rng = np.random.default_rng([seed, Stream.REPLACEMENTS, step, sampling_round])
    order = [int(row) for row in rng.permutation(available)]
    known = set(used)
    fresh = [row for row in order if row not in known]
    return list(itertools.islice(itertools.chain(fresh, itertools.cycle(order)), count))
