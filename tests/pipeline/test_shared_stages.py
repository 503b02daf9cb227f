"""Which runs share a stage, where it lies, and how long it took.

Not covered: two commands that make the same stage at the same moment.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paras2s.configs.schema.ablation import AblationConfig, AblationRow
from paras2s.pipeline import results
from paras2s.pipeline.ablate import row_config
from paras2s.pipeline.shared_stages import share_stages, shared_folder, stage_keys
from paras2s.run import Run


def ablation(tmp_path: Path, *rows: AblationRow) -> AblationConfig:
    return AblationConfig(name="grid", base="quick", run_dir=tmp_path / "ablations", rows=rows)


@pytest.mark.parametrize(
    ("key", "value", "shared"),
    [
        ("align.sampling.group_size", 4, {"data", "sft", "reward"}),
        ("reward.sources", [{"kind": "rubric"}], {"data", "sft", "reward"}),
        ("distill.steps", 5, {"data", "sft"}),
        # What is trained again lies in the row's own folder.
        ("distill.refresh_every", 20, {"data", "sft", "reward"}),
        ("warmup.steps", 5, {"data"}),
        ("policy.hidden_size", 64, {"data"}),
        ("data.test_contrasts", 1, set()),
        ("seed", 1, set()),
    ],
)
def test_rows_share_what_they_would_make_alike(tmp_path: Path, key: str, value: Any, shared: set[str]) -> None:
    grid = ablation(tmp_path, AblationRow(name="a"))
    seed = value if key == "seed" else 0
    changed = AblationRow(name="b", set={} if key == "seed" else {key: value})
    base, other = stage_keys(row_config(grid, grid.rows[0], 0)), stage_keys(row_config(grid, changed, seed))
    assert {stage for stage in base if base[stage] == other[stage]} == shared


def test_shared_stages_are_one_folder_and_linking_again_changes_nothing(tmp_path: Path) -> None:
    grid = ablation(tmp_path, AblationRow(name="a"), AblationRow(name="b", set={"distill.steps": 5}))
    runs = [Run(row_config(grid, row, 0), Console(), True) for row in grid.rows]
    for run in (*runs, *runs):
        share_stages(run, tmp_path / "ablations/shared")
    assert runs[0].sft_dir.resolve() == runs[1].sft_dir.resolve()
    assert runs[0].reward_dir.resolve() != runs[1].reward_dir.resolve()
    assert len(list((tmp_path / "ablations/shared").iterdir())) == 4


def test_a_seed_of_the_results_starts_from_what_an_ablation_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is said to have taken what its stages took, whoever made them; the ablation's row is not."""
    grid = ablation(tmp_path, AblationRow(name="a"))
    row = Run(row_config(grid, grid.rows[0], 1), Console(), True)
    share_stages(row, shared_folder(tmp_path / "results"))
    monkeypatch.setattr("paras2s.run.time.perf_counter", iter([10.0, 70.0, 100.0, 130.0]).__next__)
    with row.stage("warmup"):
        pass
    ran: list[Run] = []
    monkeypatch.setattr(results, "run_demo", lambda run, resume: ran.append(run))
    results.run_seeds("quick", [1], tmp_path / "results", Console(), True)
    assert ran[0].sft_dir.resolve() == row.sft_dir.resolve()
    assert ran[0].timings() == {"warmup": 60.0}
    with ran[0].stage("bench"):
        pass
    assert ran[0].timings() == {"warmup": 60.0, "bench": 30.0}
    assert json.loads((ran[0].folder / "timings.json").read_text()) == ran[0].timings()
    assert row.timings() == {"warmup": 60.0}
