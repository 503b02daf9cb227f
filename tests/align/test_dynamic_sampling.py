"""Queries with flat groups are replaced: by which, how often, what is left; and the same ones when a run is resumed.

Workers are stand-ins that score by the row of a prompt. Not covered: real sampling (tests/integration/test_drivers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny.job import QUERIES, tiny_job

from paras2s.align.answers_ahead import choose_prompts, step_batch
from paras2s.align.dynamic_sampling import replace_flat_groups, replacement_rows, resample
from paras2s.align.job import GRPOJob
from paras2s.rollout.engine import answer_seeds
from paras2s.rollout.orchestrator import PromptBatch, StepAnswers
from paras2s.types import Reward, Unscored
from paras2s.utils.seeds import FirstStep

FLAT, SPREAD = [Reward(2.0, {}), Reward(2.0, {})], [Reward(1.0, {}), Reward(3.0, {})]


def rounds_of(*rows: list[Any]) -> StepAnswers:
    """Groups named by their rewards' first value and their place."""
    names = tuple(f"{row[0].value:g}-{place}" for place, row in enumerate(rows))
    batch = PromptBatch(5, names, names, tuple((place,) for place in range(len(rows))))  # type: ignore[arg-type]
    return StepAnswers(batch, list(names), list(rows))  # type: ignore[arg-type]


def is_flat(row: Sequence[Reward | Unscored]) -> bool:
    return len({one.value for one in row if isinstance(one, Reward)}) == 1


def test_flat_groups_are_replaced_in_their_places() -> None:
    wanted: list[tuple[int, int]] = []
    given = [
        rounds_of([Reward(7.0, {}), Reward(7.0, {})], [Reward(8.0, {}), Reward(9.0, {})]),
        rounds_of([Reward(6.0, {}), Reward(5.0, {})]),
    ]

    def sample(number: int, count: int) -> StepAnswers:
        wanted.append((number, count))
        return given[number - 1]

    found = replace_flat_groups(rounds_of(FLAT, SPREAD, FLAT), is_flat, 5, sample)
    assert (wanted, found.replaced) == ([(1, 2), (2, 1)], 3)
    assert [row[0].value for row in found.rewards] == [6, 1, 8]  # type: ignore[union-attr]
    # Prompts, questions, seeds and rollouts go with their rewards; the step stays.
    assert found.prompts.prompts == found.prompts.questions == tuple(found.rollouts) == ("6-0", "1-1", "8-1")
    assert (found.prompts.step, found.prompts.seeds) == (5, ((0,), (1,), (1,)))


def test_what_is_flat_after_the_last_round_stays() -> None:
    found = replace_flat_groups(rounds_of(FLAT, SPREAD), is_flat, 3, lambda *_: rounds_of(FLAT))
    assert found.replaced == 3
    assert [is_flat(row) for row in found.rewards] == [True, False]


def test_without_a_flat_group_nothing_is_sampled() -> None:
    first = rounds_of(SPREAD, SPREAD)
    assert replace_flat_groups(first, is_flat, 3, lambda *_: pytest.fail("sampled")) == replace(first, replaced=0)


def test_replacements_are_others_while_there_are_any() -> None:
    used = [0, 1, 2]
    found = replacement_rows(used, 5, 8, seed=3, step=4, sampling_round=1)
    assert sorted(found) == [3, 4, 5, 6, 7]
    assert found == replacement_rows(used, 5, 8, 3, 4, 1)
    assert found != replacement_rows(used, 5, 8, 3, 4, 2)
    assert found != replacement_rows(used, 5, 8, 3, 5, 1)
    more = replacement_rows(used, 20, 8, 3, 4, 1)
    assert more[:5] == found
    assert set(more) == set(range(8))


class Workers:
    """Collects what was started; every group is flat but those of even prompts."""

    def __init__(self, job: GRPOJob) -> None:
        self.job, self.batches = job, []  # type: ignore[var-annotated]

    def start(self, batch: PromptBatch, *_: Any) -> PromptBatch:
        self.batches.append(batch)
        return batch

    def collect(self, batch: PromptBatch) -> StepAnswers:
        numbers: list[Any] = [int(question.id[1:]) for question in batch.questions]
        return StepAnswers(batch, numbers, [SPREAD if number % 2 == 0 else FLAT for number in numbers])  # type: ignore[misc]


def resampled(folder: Path, step: int, **settings: Any) -> tuple[StepAnswers, Workers]:
    job = tiny_job(folder, queries_per_step=4, resample={"rounds": 2}, **settings)
    workers: Any = Workers(job)
    return resample(workers, job, workers.collect(step_batch(job, step))), workers


@pytest.mark.parametrize("step", range(3))
def test_a_job_replaces_what_is_flat_by_prompts_that_step_and_seed_choose(step: int, tmp_path: Path) -> None:
    found, workers = resampled(tmp_path / "a", step)
    rows = choose_prompts(step, 4, QUERIES, 0)
    kept = [place for place, row in enumerate(rows) if row % 2 == 0]
    assert [found.rollouts[place] for place in kept] == [rows[place] for place in kept]
    assert found.replaced == sum(len(batch.questions) for batch in workers.batches) >= 4 - len(kept)
    first = [int(question.id[1:]) for question in workers.batches[0].questions]
    assert not set(first) & set(rows)
    # Seeds are of a step that no run reaches, and the update's own step is unchanged.
    assert workers.batches[0].seeds == tuple(map(tuple, answer_seeds(0, step + FirstStep.RESAMPLING, first, 3)))
    assert {batch.step for batch in workers.batches} == {step} == {found.prompts.step}
    again, others = resampled(tmp_path / "b", step)
    assert (again.rollouts, again.replaced) == (found.rollouts, found.replaced)
    for one, other in zip(workers.batches, others.batches, strict=True):
        assert one.seeds == other.seeds
        for left, right in zip(one.prompts, other.prompts, strict=True):
            np.testing.assert_array_equal(left.features, right.features)


def test_the_deviation_up_to_which_a_group_is_flat_is_the_configs(tmp_path: Path) -> None:
    assert resampled(tmp_path, 0, flat_std=1.0)[0].replaced == 8


def test_unscored_groups_are_no_reason_to_sample_again(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, resample={"rounds": 2})
    silent = Unscored("rubric", "silent")
    first = StepAnswers(step_batch(job, 0), [], [[silent, silent, silent], [silent, Reward(2.0, {}), silent]])
    workers: Any = SimpleNamespace(start=lambda *_: pytest.fail("sampled"))
    assert resample(workers, job, first) == replace(first, replaced=0)


def test_without_the_setting_nothing_is_replaced_or_logged(tmp_path: Path) -> None:
    first = rounds_of(FLAT)
    assert resample(None, tiny_job(tmp_path), first) is first  # type: ignore[arg-type]
