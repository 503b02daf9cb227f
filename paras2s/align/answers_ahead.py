"""Sampling ahead: the answers of each step, while those of the next `align.max_staleness` steps are sampled and scored."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from paras2s.align.job import GRPOJob
from paras2s.rollout.orchestrator import Orchestrator, PendingBatch, PromptBatch, StepAnswers, make_prompt_batch
from paras2s.rollout.store import FOLDER, read_index
from paras2s.utils.epochs import rows_of_step
from paras2s.utils.seeds import FirstStep, Stream


def answers_ahead(workers: Orchestrator, job: GRPOJob, first: int, stop: int) -> Iterator[StepAnswers]:
    """Yield each step's answers once scored; at most `max_staleness + 1` batches are pending, and none ahead of `stop`."""
    pending: deque[PendingBatch] = deque()
    for step in range(first, stop):
        while len(pending) <= job.config.max_staleness and step + len(pending) < stop:
            pending.append(workers.start(step_batch(job, step + len(pending)), job.sampling))
        yield workers.collect(pending.popleft())


def choose_prompts(step: int, per_step: int, available: int, seed: int) -> list[int]:
    """Return the rows of the RL prompts of a step: every prompt once an epoch, in an order that the seed alone decides."""
    return rows_of_step(step, per_step, available, [seed, Stream.ALIGN_ORDER])


def rows_of(job: GRPOJob, step: int) -> list[int]:
    """Return the rows of the B prompts of a step, by the curriculum if there is one."""
    available, seed = len(job.prompts), job.run.config.seed
    rows = choose_prompts(step, job.config.sampling.queries_per_step, available, seed)
    return with_others(rows, passed_over(job, step), available, seed, step)


def step_batch(job: GRPOJob, step: int) -> PromptBatch:
    """Return the B prompts of a step, newly augmented, with a seed for every answer."""
    batch = prompt_batch(job, step, rows_of(job, step))
    return batch if job.config.sampling.curriculum is None else replace(batch, passed_over=len(passed_over(job, step)))


def prompt_batch(job: GRPOJob, step: int, rows: Sequence[int], sampling_round: int = 0) -> PromptBatch:
    """Return these prompts as a round of sampling asks them; round 0 is the step's own, later ones replace flat groups."""
    seed = job.run.config.seed
    rng = np.random.default_rng([seed, Stream.ALIGN_AUGMENT, step, *([sampling_round] if sampling_round else [])])
    prompts, questions = [job.augment(job.prompts[row], rng) for row in rows], [job.questions[row] for row in rows]
    key = step + sampling_round * FirstStep.RESAMPLING
    return replace(make_prompt_batch(key, rows, prompts, questions, seed, job.config.sampling.group_size), step=step)


# The curriculum: prompts that the policy has learned, or cannot answer yet, are passed over.


def passed_over(job: GRPOJob, step: int) -> set[int]:
    """Return the rows of the prompts whose newest reward, within the memory, is outside the band."""
    band = job.config.sampling.curriculum
    if band is None:
        return set()
    # The newest steps may not be scored yet: so a resumed run asks what the uninterrupted run did.
    known = step - job.config.max_staleness
    # Only the newest steps are read: after 10,000 steps the index of all takes seconds to parse.
    newest = band.memory + job.config.max_staleness
    means = {
        group.query_id: group.mean
        for kept, groups in read_index(job.run.folder / FOLDER, newest).items()
        if known - band.memory <= kept < known
        for group in groups
        if group.mean is not None
    }
    return {
        row
        for row, query in enumerate(job.prompts.queries)
        if (mean := means.get(query.id)) is not None and not band.low <= mean <= band.high
    }


def with_others(rows: Sequence[int], without: Collection[int], available: int, seed: int, step: int) -> list[int]:
    """Return a step's rows with others in place of those in `without`, by seed and step; where none is left they stay."""
    order = np.random.default_rng([seed, Stream.CURRICULUM, step]).permutation(available).tolist()
    others = iter([row for row in order if row not in without and row not in rows])
    return [next(others, row) if row in without else row for row in rows]
