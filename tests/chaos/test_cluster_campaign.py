"""What the campaign on a cluster takes for a failure. The disturbed cluster itself: `make chaos`, with root and its tools."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaos import cluster


def write_run(run: Path) -> Path:
    """A run's folder as far as the campaign reads it."""
    (run / "aligned").mkdir(parents=True)
    (run / "rollouts").mkdir()
    (run / "aligned/model.safetensors").write_bytes(b"weights")
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": n, "seconds": n, "loss": 0.5}) + "\n" for n in range(2)))
    for step in range(2):
        write_answers(run, step, [(f"q{g}", g, a, 100 * g + a) for g in range(2) for a in range(2)])
    return run


def write_answers(run: Path, step: int, rows: list[tuple[Any, ...]], token: int = 7) -> None:
    columns = dict(zip(("query_id", "group", "answer", "seed"), zip(*rows, strict=True), strict=True))
    table = pa.table({name: list(values) for name, values in columns.items()} | {"token": [token] * len(rows)})
    pq.write_table(table, run / f"rollouts/step_{step:06d}.parquet")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    for name, value in (("STEPS", 2), ("QUERIES", 2), ("GROUP", 2)):
        monkeypatch.setattr(cluster, name, value)
    expected = write_run(tmp_path / "undisturbed")
    shutil.copytree(expected, tmp_path / "disturbed")
    return tmp_path / "disturbed", expected


@pytest.mark.parametrize("lost", [False, True])
def test_equal_runs_do_not_differ(runs: tuple[Path, Path], lost: bool) -> None:
    (runs[0] / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "seconds": 9, "loss": 0.5}}\n' for n in range(2)))
    assert cluster.differences(*runs, lost) == []


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([("q0", 0, 0, 0), ("q0", 0, 1, 1), ("q1", 1, 0, 100)], "an answer is missing"),
        ([("q0", 0, 0, 0), ("q0", 0, 0, 0), ("q0", 0, 1, 1), ("q1", 1, 0, 100), ("q1", 1, 1, 101)], "an answer came twice"),
        ([("q0", 0, 0, 0), ("q0", 0, 1, 1), ("q1", 1, 0, 100), ("q1", 1, 1, 999)], "another seed"),
        ([("q0", 0, 0, 0), ("q0", 0, 1, 1), ("q2", 1, 0, 100), ("q2", 1, 1, 101)], "another question"),
    ],
)
@pytest.mark.parametrize("lost", [False, True])
def test_other_answers_are_a_failure_also_where_a_machine_is_lost(
    runs: tuple[Path, Path], rows: list[tuple[Any, ...]], what: str, lost: bool
) -> None:
    write_answers(runs[0], 1, rows)
    assert "step_000001.parquet: other questions, or other numbers of answers" in cluster.differences(*runs, lost), what


def test_other_tokens_weights_and_logs_are_a_failure_while_both_machines_are_there(runs: tuple[Path, Path]) -> None:
    (runs[0] / "aligned/model.safetensors").write_bytes(b"others")
    (runs[0] / "metrics.jsonl").write_text('{"step": 0, "loss": 0.5}\n')
    write_answers(runs[0], 0, [(f"q{g}", g, a, 100 * g + a) for g in range(2) for a in range(2)], token=8)
    assert cluster.differences(*runs, lost=True) == []
    apart = ["aligned/model.safetensors: differs", "rollouts/step_000000.parquet: differs", "metrics.jsonl: differs"]
    assert sorted(cluster.differences(*runs, lost=False)) == sorted(apart)
