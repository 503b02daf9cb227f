"""What the soak decides: what grew, whether files are bounded, what two runs do not have in common, and where it goes on.

Not covered: the runs themselves, which take minutes (benchmarks/soak.py).
"""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from paras2s.utils.io import write_jsonl


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script soak.py, which imports its neighbours."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("soak")


def looks(name: str, values: Sequence[float], first: int = 0) -> list[dict[str, Any]]:
    """A look every fifth step."""
    return [{"step": first + 5 * number, "of": name, "mib": value} for number, value in enumerate(values)]


def test_growth_is_of_the_settled_steps(soak: ModuleType) -> None:
    """20 looks until step 100, which may be anything, then 20 of which the first two and the last two count."""
    filling = [float(value) for value in range(20)]
    rows = [
        *looks("flat", [*filling, *[200.0] * 20]),
        *looks("leaks", [*filling, *[200.0 + value for value in range(20)]]),
        # A process that came late has steps of its own in which it settles.
        *looks("late", [*filling, *[100.0] * 10, *[90.0] * 10], first=300),
        *looks("tiny", [*filling, *[0.5] * 10, *[1.5] * 10]),
        *looks("too short", [*filling, *[1.0] * 9]),
        {"step": 500, "of": "files", "bytes": 7},
    ]
    assert soak.growth_of(rows, "mib") == {
        "flat": 0.0,
        "leaks": pytest.approx(218.5 / 200.5 - 1),
        "late": pytest.approx(-0.1),
        # Measured against 20 MiB.
        "tiny": pytest.approx(0.05),
    }
    assert soak.growth_of(rows, "open") == {}


def test_one_outlier_is_no_growth(soak: ModuleType) -> None:
    values = [100.0] * 120
    values[-1] = 500.0
    assert soak.growth_of(looks("once", values), "mib") == {"once": 0.0}


def test_files_that_may_grow_are_left_out_and_others_count(soak: ModuleType, tmp_path: Path) -> None:
    for name, size in (
        ("metrics.jsonl", 1000), ("timeline.jsonl", 1000), ("rollouts/step_000001.parquet", 1000), ("validation/a.wav", 1000),
        ("progress.json", 3), ("checkpoints/align/step_000025/trainer.json", 1000), ("sft/rollouts", 500),
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    assert soak.bounded_bytes(tmp_path) == 503


def test_files_grow_from_the_settled_steps_on(soak: ModuleType) -> None:
    """What comes before stays; a third checkpoint is the best, a fourth would be one too many."""
    sizes = [(95, 900, 9), (100, 10, 2), (105, 40, 2), (110, 10, 3), (115, 40, 2)]
    rows = [{"step": step, "of": "files", "bytes": size, "checkpoints": count} for step, size, count in sizes]
    assert soak.files_of(rows) == (0.0, 3)
    rows += [{"step": 120, "of": "files", "bytes": 50, "checkpoints": 4}]
    assert soak.files_of(rows) == (0.25, 4)
    assert soak.files_of(rows[:2]) is None


def run_folder(folder: Path, rows: Sequence[dict[str, Any]], **tensors: np.ndarray) -> Path:
    (folder / "aligned").mkdir(parents=True)
    write_jsonl(folder / "metrics.jsonl", rows)
    save_file(tensors, folder / "aligned" / "model.safetensors")
    return folder


def test_runs_are_compared_by_their_logs_and_weights(soak: ModuleType, tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 0.1 * step, "seconds": step, "seconds_answers": step} for step in range(3)]
    one = run_folder(tmp_path / "one", rows, a=np.ones(3), b=np.zeros(2))
    later = [row | {"seconds": 9, "seconds_answers": 9} for row in rows]
    assert soak.differences(one, run_folder(tmp_path / "same", later, a=np.ones(3), b=np.zeros(2))) == []
    later[1] |= {"loss": 0.1 + 1e-12}
    other = run_folder(tmp_path / "other", later[:2], a=np.ones(3) + 1e-12, c=np.zeros(2))
    assert soak.differences(one, other) == ["step 1", "step 2", "a", "b", "c"]


def test_runs_that_lost_a_worker_are_compared_by_their_answers(soak: ModuleType, tmp_path: Path) -> None:
    def run(name: str, *steps: list[tuple[str, int, int, int]]) -> Path:
        (tmp_path / name / "rollouts").mkdir(parents=True)
        for step, rows in enumerate(steps):
            columns = dict(zip(("query_id", "group", "answer", "seed"), map(list, zip(*rows, strict=True)), strict=True))
            pq.write_table(
                pa.table(columns | {"reward": [0.1] * len(rows)}), tmp_path / name / f"rollouts/step_{step:06}.parquet"
            )
        return tmp_path / name

    one, two = ("a", 0, 0, 7), ("b", 0, 0, 8)
    right = run("right", [one, two], [one])
    assert soak.unequal_steps(right, run("same", [two, one], [one])) == []
    other_seed = ("a", 0, 0, 9)
    assert soak.unequal_steps(right, run("seed", [one, two], [other_seed])) == ["step_000001.parquet"]
    assert soak.unequal_steps(right, run("twice", [one, two, two], [one])) == ["step_000000.parquet"]
    assert soak.unequal_steps(right, run("missing", [one, two])) == ["step_000001.parquet"]


def test_stops_lie_behind_checkpoints(soak: ModuleType) -> None:
    assert soak.stops_of(2000, 5) == [328, 653, 1003, 1328, 1653]
    assert all(step % soak.CHECKPOINT_EVERY == 3 for step in soak.stops_of(400, 5))


class Children:
    """In place of the processes: each notes its stop, or ends the run; the first may die of something else."""

    def __init__(self, dies: bool = False) -> None:
        self.calls: list[int | None] = []
        self._dies = dies

    def __call__(self, command: Sequence[str], **_: Any) -> SimpleNamespace:
        folder = Path(command[command.index("--child") + 1])
        stop = int(command[-1]) if "--stop" in command else None
        self.calls.append(stop)
        if self._dies:
            return SimpleNamespace(returncode=0 if stop else 1)
        if stop is None:
            done = folder / "run/aligned/trainer.json"
            done.parent.mkdir(parents=True)
            done.write_text("{}")
        else:
            with (folder / "stops.jsonl").open("a") as log:
                log.write(json.dumps({"step": stop}) + "\n")
        return SimpleNamespace(returncode=0 if stop is None else 1)


OPTIONS = argparse.Namespace(steps=100, prompts=10, resumes=2, kill_every=0)


def test_a_soak_goes_on_with_what_is_there(soak: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children()
    monkeypatch.setattr(soak.subprocess, "run", children)
    for run in ("straight", "stopped"):
        (tmp_path / run).mkdir()
    # It was stopped behind its first stop.
    (tmp_path / "stopped/stops.jsonl").write_text('{"step": 28}\n')
    soak.run_both(tmp_path / "straight", tmp_path / "stopped", OPTIONS)
    assert children.calls == [None, 53, None]
    soak.run_both(tmp_path / "straight", tmp_path / "stopped", OPTIONS)
    assert len(children.calls) == 3
    other = argparse.Namespace(**vars(OPTIONS) | {"resumes": 5})
    with pytest.raises(SystemExit, match=r"soak\.json: this soak is of .*\"resumes\": 2"):
        soak.run_both(tmp_path / "straight", tmp_path / "stopped", other)


def test_a_run_that_ends_otherwise_ends_the_soak(soak: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails without a stop, and one that goes past its stop."""
    monkeypatch.setattr(soak.subprocess, "run", Children(dies=True))
    for stops, said in (([], "step 100 ended with 1"), ([53], "step 53 ended with 0")):
        with pytest.raises(SystemExit, match=said):
            soak.run_through(tmp_path, OPTIONS, stops)


@pytest.mark.parametrize(
    ("grown", "apart", "files", "within"),
    [
        (4.0, [], (0.04, 3), True),
        (6.0, [], (0.04, 3), False),
        (4.0, ["a"], (0.04, 3), False),
        (4.0, [], (0.06, 3), False),
        (4.0, [], (0.04, 4), False),
    ],
    ids=["flat", "memory", "differs", "files", "checkpoints"],
)
def test_what_is_over_its_bound_fails(
    soak: ModuleType, tmp_path: Path, grown: float, apart: list[str], files: tuple[float, int], within: bool
) -> None:
    rows = looks("one", [1.0] * 20 + [100.0] * 10 + [100.0 + grown] * 10)
    options = argparse.Namespace(resumes=1, json=tmp_path / "figures.json")
    assert soak.report(options, rows, files, apart) is within
    found = {one["name"]: one["ours"] for one in json.loads(options.json.read_text())["figures"]}
    assert found["most that the memory of a process grew"] == [pytest.approx(grown)]
    assert found["differences"] == [len(apart)]
    # Of two runs that have not ended nothing is said of what they have in common.
    soak.report(options, rows, files, None)
    assert "differences" not in options.json.read_text()


def test_a_look_sees_this_process_and_the_files(soak: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text("{}")
    (tmp_path / "checkpoints/align/step_000025").mkdir(parents=True)
    rows = {row["of"]: row for row in soak.look(tmp_path)}
    own = next(row for name, row in rows.items() if name.endswith(f" {os.getpid()}"))
    with (tmp_path / "progress.json").open():
        # Pages of its own: an array may get memory that an earlier test left with the allocator.
        held = mmap.mmap(-1, 2**25, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.write(b"x" * len(held))
        again = next(row for row in soak.look(tmp_path) if row["of"] == own["of"])
    assert own["mib"] + 30 < again["mib"] < own["mib"] + 40
    held.close()
    assert again["open"] == own["open"] + 1
    assert rows["files"] == {"of": "files", "bytes": 2, "checkpoints": 1}
