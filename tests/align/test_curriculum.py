"""The curriculum: which prompts are passed over, what takes their place, and the same when a run is resumed.

Not covered: whether a band helps a real run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny.job import QUERIES, tiny_job
from tiny.settings import align_config

from paras2s.align.answers_ahead import choose_prompts, passed_over, rows_of, step_batch, with_others
from paras2s.align.job import GRPOJob
from paras2s.utils.io import append_jsonl


@pytest.mark.parametrize(
    ("rows", "without", "kept", "new"),
    [
        ([0, 1, 2], set(), [0, 1, 2], 0),
        ([0, 1, 2], {5}, [0, 1, 2], 0),
        ([0, 1, 2], {1}, [0, None, 2], 1),
        ([0, 1, 2], {0, 1, 2, 3}, [None, None, None], 3),
        # Five others are outside as well, so that one is left.
        ([0, 1], {0, 1, 3, 4, 5, 6, 7}, [None, 1], 1),
        ([0, 1], set(range(8)), [0, 1], 0),
    ],
)
def test_what_is_outside_gives_its_place_to_others(
    rows: list[int], without: set[int], kept: list[int | None], new: int
) -> None:
    found = with_others(rows, without, 8, seed=0, step=3)
    assert [row if row == own else None for row, own in zip(found, rows, strict=True)] == kept
    others = [row for row in found if row not in rows]
    assert len(others) == len(set(others)) == new
    assert not set(others) & without
    assert found == with_others(rows, without, 8, seed=0, step=3)


def test_others_depend_on_seed_and_step() -> None:
    orders = {tuple(with_others([0], {0}, 50, seed, step)) for seed, step in [(0, 1), (0, 2), (1, 1)]}
    assert len(orders) == 3


def curriculum_job(folder: Path, means: dict[int, dict[int, float | None]], **settings: Any) -> GRPOJob:
    """A job whose kept steps gave these means, by step and row."""
    job = tiny_job(folder, curriculum={"low": 2.0, "high": 4.0, "memory": 3}, **settings)
    for step, groups in means.items():
        rows = [[f"q{row}", mean, None, 0] for row, mean in groups.items()]
        append_jsonl(job.run.folder / "rollouts" / "index.jsonl", {"step": step, "groups": rows})
    queries: Any = [SimpleNamespace(id=f"q{row}") for row in range(QUERIES)]
    return replace(job, prompts=replace(job.prompts, queries=queries))


MEANS: dict[int, dict[int, float | None]] = {
    0: {0: 5.0, 1: 3.0, 2: 1.0},
    1: {0: 4.0, 1: None, 3: 4.1},
    2: {1: 1.9, 3: 3.9, 4: None},
}


@pytest.mark.parametrize(
    ("step", "staleness", "expected"),
    [
        (0, 0, set()),
        (1, 0, {0, 2}),
        # The newest reward counts; an unscored group tells nothing; the ends of the band are inside it.
        (2, 0, {2, 3}),
        (3, 0, {1, 2}),
        # After three steps a reward is forgotten.
        (4, 0, {1}),
        (6, 0, set()),
        # Answers that are sampled ahead may not know the newest steps, so none does.
        (3, 1, {2, 3}),
    ],
)
def test_prompts_outside_the_band_are_passed_over(step: int, staleness: int, expected: set[int], tmp_path: Path) -> None:
    job = curriculum_job(tmp_path, MEANS, max_staleness=staleness, tis_cap=2.0)
    assert passed_over(job, step) == expected
    chosen, planned = rows_of(job, step), choose_prompts(step, 4, QUERIES, 0)
    assert not set(chosen) & expected
    assert [row for row in chosen if row in planned] == [row for row in planned if row not in expected]
    batch = step_batch(job, step)
    assert ([question.id for question in batch.questions], batch.passed_over) == ([f"q{row}" for row in chosen], len(expected))


def test_without_it_every_prompt_is_asked_and_nothing_is_counted(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    assert rows_of(job, 3) == choose_prompts(3, 4, QUERIES, 0)
    assert step_batch(job, 3).passed_over is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"curriculum": {"low": 4, "high": 4}}, "low 4 must be below high 4"),
        ({"curriculum": {"low": 0}}, "greater than or equal to 1"),
        ({"curriculum": {}, "keep_rollouts_every": 2}, "set keep_rollouts_every to 1"),
        ({"curriculum": {}, "preferences": {"file": "x.jsonl"}}, "preferences: nothing is sampled"),
        ({"entropy_weight": 0.1, "preferences": {"file": "x.jsonl"}}, "preferences: nothing is sampled"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        align_config(**settings)
