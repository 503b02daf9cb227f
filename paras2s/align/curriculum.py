"""A curriculum (`align.sampling.curriculum`): prompts that the policy has learned, or cannot answer yet, are passed over.

A prompt's reward is the mean of its newest group, as kept in RUN/rollouts. At `align.max_staleness` n the newest n steps do not
count, since they may not be scored yet: so a resumed run asks what the uninterrupted run did.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from paras2s.align.job import GRPOJob
from paras2s.rollout.store import FOLDER, read_index
from paras2s.utils.seeds import Stream


def passed_over(job: GRPOJob, step: int) -> set[int]:
    """Return the rows of the prompts whose newest reward, within the memory, is outside the band."""
    band = job.config.sampling.curriculum
    if band is None:
        return set()
    known = step - job.config.max_staleness
    means = {
        group.query_id: group.mean
        for kept, groups in read_index(job.run.folder / FOLDER).items()
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
