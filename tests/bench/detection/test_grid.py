"""The grid of setups and suites: by hand, and all of the paper's Table 1 from its authors' verdicts.

Not covered: judging through a grid with a real audio model; a function stands in for `bench detect`, which has its own test.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict

import pytest
import yaml
from outside import DETECTION
from typer import Typer
from typer.testing import CliRunner

from paras2s.bench.detection import grid as grid_module
from paras2s.bench.detection.grid import GridCell, average, load_grid, run_grid
from paras2s.bench.detection.run import DetectionResult
from paras2s.cli.bench_detection import bench_detect_grid
from paras2s.errors import BudgetError, ConfigError
from paras2s.statistics.resampling import resample
from paras2s.utils.io import write_jsonl
from paras2s.utils.progress import open_console

SUITES = ("pronunciation", "speaking_rate", "speaker_identity", "somos", "tmhintq", "thaimos")
# The paper's Table 1: six suites, then the average.
TABLE_1 = {
    "baseline": (46.0, 46.9, 61.5, 70.5, 70.5, 65.5, 60.2), "asr": (46.5, 41.9, 53.5, 72.5, 71.5, 65.0, 58.5),
    "words": (63.0, 39.1, 51.8, 70.0, 66.0, 64.5, 59.1), "none-2": (41.0, 49.7, 60.5, 66.5, 65.0, 60.0, 57.1),
    "none-4": (46.5, 53.6, 59.5, 68.6, 63.5, 69.5, 60.2), "pair-2": (43.0, 51.4, 62.5, 63.5, 66.0, 56.5, 57.2),
    "pair-4": (47.0, 52.5, 57.9, 64.0, 67.5, 64.0, 58.8), "examples-2": (47.2, 50.3, 59.0, 64.0, 68.0, 62.5, 58.5),
    "examples-4": (58.5, 46.4, 64.5, 63.0, 65.0, 57.5, 59.2), "test-0": (66.0, 54.2, 64.0, 72.5, 70.5, 65.5, 65.4),
    "test-2": (58.0, 51.4, 63.0, 62.5, 67.0, 58.5, 60.1), "test-4": (63.5, 63.7, 59.0, 73.0, 66.5, 55.0, 63.5),
    "both-2": (63.5, 56.4, 74.0, 67.0, 70.5, 62.5, 65.7), "both-4": (66.5, 55.3, 70.0, 71.0, 74.5, 64.0, 66.9),
    "both-6": (66.5, 50.6, 66.0, 73.5, 71.0, 60.5, 64.7), "both-8": (67.5, 51.4, 64.5, 71.0, 70.0, 58.0, 63.7),
}  # fmt: skip
# What the authors' files do not give: none-4 on SOMOS is 68.5 there, speaker identity with 6 and 8 examples is the other way
# round, and one figure is 70.0.
OTHERWISE = {("none-4", "somos"): 68.5, ("both-6", "speaker_identity"): 64.5, ("both-8", "speaker_identity"): 66.0,
             ("both-2", "tmhintq"): 70.0}  # fmt: skip
HEAD = "audio1_path,audio2_path,ground_truth,prediction"


def write_cells(folder, cells):
    """A CSV of the authors' form for each suite and setup, of (id, truth, prediction)."""
    words = {"s": "True", "d": "False"}
    for (suite, setup), rows in cells.items():
        lines = [f"{n}/a.wav,{n}/b.wav,{words.get(truth, truth)},{words.get(said, said)}" for n, truth, said in rows]
        (folder / f"{suite}-{setup}.csv").write_text(
            "\n".join(["audio1_path,audio2_path,ground_truth,prediction", *lines]) + "\n"
        )


def write_grid(folder, suites, setups, **more):
    suites = {name: {"pairs": f"{name}-{next(iter(setups))}.csv"} for name in suites}
    named = {one: {"verdicts": {suite: f"{suite}-{one}.csv" for suite in suites}} for one in setups}
    (folder / "grid.yaml").write_text(yaml.safe_dump({"suites": suites, "setups": named | more}, sort_keys=False))
    return folder / "grid.yaml"


@pytest.fixture
def small(tmp_path):
    base = [(n, "1", "1" if n < 5 else "2") for n in range(10)]
    good = [(n, "1", "1" if n < 9 else "2") for n in range(10)]
    write_cells(
        tmp_path, {(suite, setup): rows for suite in ("somos", "thaimos") for setup, rows in (("base", base), ("good", good))}
    )
    return tmp_path


def run(*words):
    app = Typer()
    app.command()(bench_detect_grid)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_mean_has_one_weight_a_suite_and_none_without_every_suite():
    cell = GridCell({"accuracy": {"value": 0.5}})
    assert average({"a": cell, "b": GridCell({"accuracy": {"value": 1.0}})}) == 0.75
    assert average({"a": cell, "b": GridCell(None, "why")}) is None
    assert average({"a": cell, "b": GridCell({"accuracy": {"value": None}})}) is None


def test_the_verb_shows_cells_means_and_why_one_is_empty(small):
    half = {"half": {"verdicts": {"somos": "somos-good.csv"}}}
    done = run(write_grid(small, ("somos", "thaimos"), ("base", "good"), **half), "--out", small / "out")
    assert done.exit_code == 0, done.output
    rows = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:5]]
        for line in done.stdout.splitlines()
        if "│" in line
    }
    assert (rows["base"], rows["good"]) == (["50.0", "50.0", "50.0"], ["90.0", "90.0", "90.0"])
    assert rows["half"] == ["90.0", "none", "none"]
    assert "half, thaimos: no verdicts recorded on this suite" in done.stdout
    assert json.loads((small / "out/grid.json").read_text())["averages"] == {"base": 0.5, "good": 0.9, "half": None}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("suites: {sommos: {pairs: a.csv}}\nsetups: {a: {judge: detection}}", "sommos: no such suite"),
        ("suites: {somos: {pairs: a.csv}}\nsetups: {a: {}}", "either a judge or recorded verdicts"),
        (
            "suites: {somos: {pairs: a.csv}}\nsetups: {a: {verdicts: {somos: b.csv}, settings: {votes: 3}}}",
            "settings: are a judge's",
        ),
        ("suites: {somos: {pairs: a.csv, x: 1}}\nsetups: {a: {judge: detection}}", "suites.somos.x"),
        ("suites: [", "cannot be read"),
    ],
)
def test_a_wrong_grid_is_refused_by_its_key(tmp_path, text, says):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_grid(tmp_path / "grid.yaml")


def test_cells_without_verdicts_are_judged_until_the_budget_ends(small, monkeypatch):
    """Each judged cell gets the setup's settings and a file of its own; after the end of the budget nobody is asked."""
    calls = []

    def judged(options, console, quiet):
        calls.append((options.suite, options.judge, options.overrides))
        row = {"id": "0/a.wav | 0/b.wav", "truth": "1", "label": "1"}
        write_jsonl(options.out, [row])
        return DetectionResult({}, "", BudgetError("spent") if len(calls) == 2 else None)

    monkeypatch.setattr(grid_module, "run_detection", judged)
    asks = {"asks": {"judge": "detection", "settings": {"strategy": "test"}}, "more": {"judge": "detection"}}
    path = write_grid(small, ("somos", "thaimos"), ("base",), **asks)
    report = run_grid(path, small / "out", open_console(), True)
    assert calls == [("somos", "detection", {"strategy": "test"}), ("somos", "detection", {})]
    assert report.cells["asks"]["somos"].accuracy == 1.0
    assert report.cells["more"]["thaimos"] == GridCell(None, "spent")
    assert (report.averages["base"], report.averages["asks"], str(report.stopped)) == (0.5, None, "spent")


def test_every_cell_and_average_of_table_1(tmp_path, monkeypatch):
    """92 of 96 cells. Intervals are not looked at here, and ten thousand resamples of each cell would take a minute."""
    monkeypatch.setattr("paras2s.statistics.resampling.resample", lambda tables, *_: resample(tables, 20))
    cells = defaultdict(list)
    for row in csv.DictReader(DETECTION.open()):
        for setup in TABLE_1:
            cells[row["suite"], setup].append((row["id"], row["truth"], row[setup]))
    write_cells(tmp_path, cells)
    report = run_grid(write_grid(tmp_path, SUITES, TABLE_1), tmp_path / "out", open_console(), True)
    other, far = {}, {}
    for setup, paper in TABLE_1.items():
        for suite, value in zip(SUITES, paper, strict=False):
            found = round(100 * report.cells[setup][suite].accuracy, 1)
            if found != value:
                other[setup, suite] = found
        if abs(100 * report.averages[setup] - paper[6]) > 0.1:
            far[setup] = round(100 * report.averages[setup], 1)
    assert other == OTHERWISE
    assert far == {"both-2": 65.6, "both-6": 64.4, "both-8": 64.0}
    stars = {setup: report.cells[setup]["pronunciation"].figures["against_baseline"]["stars"] for setup in ("test-0", "both-4")}
    assert stars == {"test-0": "***", "both-4": "***"}
