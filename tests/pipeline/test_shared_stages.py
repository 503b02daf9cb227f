"""Which runs share a stage, where it lies, and how long it took.

Not covered: two commands that make the same stage at the same moment.
"""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paras2s.configs.schema.ablation import AblationConfig, AblationRow
from paras2s.experiments import results
from paras2s.pipeline.ablate import row_config
from paras2s.pipeline.shared_stages import share_stages, shared_folder, stage_keys
from paras2s.run import Run
from paras2s.utils.io import read_json


def ablation(tmp_path: Path, *rows: AblationRow) -> AblationConfig:
    return AblationConfig(name="grid", base="quick", run_dir=tmp_path / "ablations", rows=rows)


@pytest.mark.parametrize(
    ("key", "value", "shared"),
    [
        ("align.sampling.group_size", 4, {"data", "sft", "reward"}),
        ("reward.sources", [{"kind": "rubric"}], {"data", "sft", "reward"}),
        ("distill.steps", 5, {"data", "sft"}),
        # What is trained again lies in the row's own folder.
        ("distill.refresh_every", 120, {"data", "sft", "reward"}),
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
    """The seed is said to have taken what its stages took, whoever made them, and its folder holds them all."""
    grid = ablation(tmp_path, AblationRow(name="a"))
    row = Run(row_config(grid, grid.rows[0], 1), Console(), True)
    share_stages(row, shared_folder(tmp_path / "results"))
    monkeypatch.setattr("paras2s.run.time.perf_counter", iter([0.0, 60.0, 100.0, 130.0, 200.0, 207.0]).__next__)
    with row.stage("warmup"):
        (row.sft_dir / "weights").write_text("learned")
    ran: list[Run] = []

    def distil(run: Run, resume: bool) -> None:
        assert not run.reward_dir.exists()
        run.reward_dir.mkdir()
        with run.stage("distill"):
            (run.reward_dir / "weights").write_text("distilled")
        with run.stage("bench"):
            pass
        ran.append(run)

    monkeypatch.setattr(results, "run_demo", distil)
    # Begun by the row, and not finished: the data is to be made by the seed as well.
    assert row.data_dir.exists()
    results.run_seeds("quick", [1], tmp_path / "results", Console(), True)
    seed = ran[0]
    assert not any(path.is_symlink() for path in seed.folder.iterdir())
    assert (seed.sft_dir / "weights").read_text() == "learned"
    assert seed.timings() == {"warmup": 60.0, "distill": 30.0, "bench": 7.0}
    assert not seed.data_dir.exists()
    # The row had begun its reward model where others look for one, and the seed's does not go in its place.
    assert list(row.reward_dir.iterdir()) == []
    assert row.timings() == {"warmup": 60.0}


def test_an_ablation_starts_from_what_a_seed_of_the_results_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def distil(run: Run, resume: bool) -> None:
        for name, folder in (("data", run.data_dir), ("distill", run.reward_dir)):
            folder.mkdir(parents=True, exist_ok=True)
            with run.stage(name):
                (folder / "made").write_text(name)
        # Not finished.
        run.sft_dir.mkdir(exist_ok=True)

    monkeypatch.setattr(results, "run_demo", distil)
    for _ in range(2):
        results.run_seeds("quick", [1], tmp_path / "results", Console(), True)
    grid = ablation(tmp_path, AblationRow(name="a"), AblationRow(name="b", set={"distill.steps": 5}))
    rows = [Run(row_config(grid, row, 1), Console(), True) for row in grid.rows]
    for row in rows:
        share_stages(row, shared_folder(tmp_path / "results"))
    assert (rows[0].data_dir / "made").read_text() == "data"
    assert (rows[0].reward_dir / "made").read_text() == "distill"
    assert list(rows[0].sft_dir.iterdir()) == []
    assert list(rows[1].reward_dir.iterdir()) == []


def test_a_disk_that_refuses_a_copy_fails_the_seed_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = ablation(tmp_path, AblationRow(name="a"))
    row = Run(row_config(grid, grid.rows[0], 1), Console(), True)
    share_stages(row, shared_folder(tmp_path / "results"))
    with row.stage("warmup"):
        pass
    monkeypatch.setattr(results, "run_demo", lambda run, resume: pytest.fail("the seed goes on"))
    monkeypatch.setattr("paras2s.pipeline.shared_stages.shutil.copytree", refuse)
    results.run_seeds("quick", [1], tmp_path / "results", Console(), True)
    reason = read_json(tmp_path / "results/seed1" / results.FAILED)["reason"]
    assert reason.startswith(f"StorageError: cannot copy {row.sft_dir.resolve()} to")
    assert "no space" in reason


def refuse(*_: object) -> None:
    raise OSError(28, "no space")
