"""Every name that a benchmark imports from the package exists, and the documents' tables are those of figures.json.

Not covered: that benchmarks run, which takes minutes each.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


def test_there_are_benchmarks() -> None:
    assert len(BENCHMARKS) > 5


def submodule(package: ModuleType, name: str) -> bool:
    return importlib.util.find_spec(f"{package.__name__}.{name}") is not None


def test_a_name_that_is_not_there_is_missed() -> None:
    package = importlib.import_module("paras2s.rollout")
    assert submodule(package, "workers")
    assert not submodule(package, "actors")


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paras2s"):
            module = importlib.import_module(str(node.module))
            missing += [name.name for name in node.names if not hasattr(module, name.name) and not submodule(module, name.name)]
    assert missing == []


# -- figures and tables -----------------------------------------------------------------------------------------------


@pytest.fixture
def every(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script all.py, which imports its neighbours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS[0].parent))
    return importlib.import_module("all")


def test_the_tables_are_those_of_the_figures(every: ModuleType) -> None:
    """`python benchmarks/all.py --render` renews them."""
    for path, text in every.tables.rendered(every.load_runs(), every.TITLES).items():
        assert path.read_text() == text, f"{path.name} was edited by hand between its comments"


def test_every_script_is_run_by_all(every: ModuleType) -> None:
    helpers = {"all.py", "figures.py", "operations.py", "speaking.py", "tables.py", "twins.py"}
    run = {one.script for one in every.BENCHMARKS.values()}
    assert {path.name for path in BENCHMARKS} - helpers - run == set()
    assert run - {path.name for path in BENCHMARKS} == set()


def test_a_benchmark_that_needs_what_is_not_given_is_not_run(every: ModuleType) -> None:
    one = every.BENCHMARKS["blueprint"]
    assert one.command({}) is None
    command = one.command({"TRACE": "there", "TRACE_PYTHON": "python"})
    assert command[0] == "benchmarks/blueprint.py"
    assert command[-4:] == ["--trace", "there", "--trace-python", "python"]
    assert sum(word.endswith(".flac") for word in command) == 4
    assert one.shown.endswith("--trace TRACE --trace-python TRACE_PYTHON")


def figure(**changes: Any) -> dict[str, Any]:
    return {"name": "a step", "unit": "s", "ours": [1.0, 3.0, 2.0], **changes}


def test_ratios_and_aims(every: ModuleType) -> None:
    tables = every.tables
    assert tables.ratio_of(figure()) is None
    assert tables.ratio_of(figure(other=[5.0])) == 2.5
    assert tables.ratio_of(figure(other=[5.0], more_is_better=True)) == 0.4
    assert tables.aim_of(figure(other=[5.0], least_ratio=3.0)) == "ratio at least 3.00: missed"
    assert tables.aim_of(figure(at_most=2.0)) == "at most 2.00: met"
    assert tables.aim_of(figure(at_least=2.5)) == "at least 2.50: missed"
    assert [tables.number(value) for value in (4835.2, 26.84, 1.234, 0.0125, 0.0, 1.9e-6)] == [
        "4,835", "26.8", "1.23", "0.013", "0", "1.9e-06"
    ]  # fmt: skip


def test_the_table_of_fields_has_the_spread_and_what_is_missing(every: ModuleType) -> None:
    run = {
        "command": "python it",
        "clips": 11,
        "taken": {"commit": "abc"},
        # Of 0 to 10 the median is 5 and the ninetieth percentile 9.
        "figures": [
            figure(name="Pitch", unit="Hz", ours=[float(one) for one in range(11)]),
            figure(name="MOS", unit="", ours=[1e-7]),
        ],
        "largest": {"Pitch": "one, stereo", "MOS": "one, whole"},
        "left_out": {"MOS": {"theirs stops: TypeError": 10}},
        "not_compared": {"agent_accent": "no weights"},
    }
    lines = every.tables.fields_part(run).splitlines()
    assert lines[0] == "`python it`, 11 clips, commit abc."
    assert lines[-3:] == [
        "| Pitch, Hz | 5.00 | 9.00 | 10.0 | stereo | 11 |  |",
        "| MOS | under 0.001 | under 0.001 | under 0.001 |  | 1 | 10: theirs stops: TypeError |",
        "| agent_accent | | | | | 0 | no weights |",
    ]


SCRIPT = """
import argparse
from figures import Figure, add_json_option, write_figures
parser = argparse.ArgumentParser()
parser.add_argument("--fails", action="store_true")
add_json_option(parser)
options = parser.parse_args()
if options.fails:
    raise SystemExit(1)
write_figures(options.json, [Figure("a step", "s", [1.0, 3.0, 2.0]), Figure("a share", "", [0.25], at_most=0.0)], note="more")
"""


def test_a_run_is_stored_with_what_it_belongs_to_and_not_taken_again(
    every: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, stored = tmp_path / "script.py", tmp_path / "figures.json"
    script.write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS[0].parent))
    one = every.Benchmark("A script", "script.py")
    assert every.take(one, [str(script), "--fails"], 0) is None
    run = every.take(one, [str(script)], 1)
    assert run["command"] == "python benchmarks/script.py"
    assert run["figures"] == [
        {"name": "a step", "unit": "s", "ours": [1.0, 3.0, 2.0]},
        {"name": "a share", "ours": [0.25], "at_most": 0.0},
    ]
    assert run["note"] == "more"
    assert run["busy_share_of_cores"] >= 0
    assert {"commit", "package", "machine", "versions"} == run["taken"].keys()
    table = every.tables.figures_part({"script": {"0": run}}, {"script": "A script"})
    assert "| a step, s | 2.00 (1.00 to 3.00) |" in table
    assert "| a share | 0.250 |" in table
    every.save_run("script", 1, run, stored)
    every.save_run("script", 0, run, stored)
    runs = every.load_runs(stored)
    assert list(runs["script"]) == ["0", "1"]
    assert json.loads(stored.read_text())["schema"] == 1
    package = run["taken"]["package"]
    assert every.is_done(runs, "script", 1, package)
    assert not every.is_done(runs, "script", 1, package + "+edited")
    assert not every.is_done(runs, "script", 2, package)


def test_what_a_benchmark_wrote_by_itself_is_taken_over(every: ModuleType, tmp_path: Path) -> None:
    written, stored = tmp_path / "written.json", tmp_path / "figures.json"
    taken = {"commit": "1234567", "package": "p", "machine": "2 cores", "versions": {}}
    written.write_text(json.dumps({"taken": taken, "figures": [{"name": "demo", "unit": "s", "ours": [3.0], "other": [6.0]}]}))
    every.import_figures("demo_clock", written, stored)
    run = every.load_runs(stored)["demo_clock"]["0"]
    assert run["taken"] == taken
    assert run["command"] == every.BENCHMARKS["demo_clock"].shown
    run["figures"][0]["other_name"] = "theirs"
    table = every.tables.figures_part({"demo_clock": {"0": run}}, {"demo_clock": "The demo"})
    assert "commit 1234567, load average not noted." in table
    assert "| demo, s | 3.00 | 6.00, theirs | 2.00 |" in table


def test_what_no_benchmark_wrote_is_not_taken_over(every: ModuleType, tmp_path: Path) -> None:
    written, stored = tmp_path / "written.json", tmp_path / "figures.json"
    with pytest.raises(SystemExit, match=r"written\.json: cannot be read"):
        every.import_figures("rank", written, stored)
    written.write_text("{}")
    with pytest.raises(SystemExit, match=r"written\.json: has no figures; give what benchmarks/rank\.py wrote"):
        every.import_figures("rank", written, stored)
    assert not stored.exists()


def test_figures_of_two_packages_are_not_set_against_each_other(every: ModuleType) -> None:
    def run(seconds: float, package: str) -> dict[str, Any]:
        return {"taken": {"package": package}, "figures": [{"name": "a step", "unit": "s", "ours": [seconds]}]}

    runs = {"script": {"0": run(2.0, "new"), "1": run(4.0, "old"), "2": run(8.0, "old")}}
    assert every.tables.busy_part(runs, {"script": ""}).endswith("| 2.00 | 4.00 | 8.00 | not of one version |")
    runs["script"]["0"] = run(2.0, "old")
    assert every.tables.busy_part(runs, {"script": ""}).endswith("| 2.00 | 4.00 | 8.00 | 50 %, 25 % |")


def test_busy_processes_end_with_their_block(every: ModuleType) -> None:
    with every.busy_processes(2) as burners:
        assert [burner.poll() for burner in burners] == [None, None]
    assert all(burner.poll() is not None for burner in burners)


def test_processor_time_counts_children_that_have_ended_and_not_those_of_others(every: ModuleType) -> None:
    """A child that used a quarter of a second, and a process that is no more."""
    before_s = every.processor_s([os.getpid()])
    work = "import time\nwhile time.process_time() < 0.25: pass"
    child = subprocess.Popen([sys.executable, "-c", work])
    child.wait(60)
    assert 0.24 <= every.processor_s([os.getpid()]) - before_s < 5
    assert every.processor_s([child.pid]) == 0


@pytest.mark.parametrize(
    ("there", "name", "complaint"),
    [
        (["cache"], "empty", "cache: is not empty"),
        ([], "filled", "cache: is not filled"),
        (["empty"], "empty", "stopped is no measure"),
    ],
)
def test_a_demo_is_not_timed_with_another_cache_or_half(
    every: ModuleType, there: list[str], name: str, complaint: str, tmp_path: Path
) -> None:
    clock = importlib.import_module("demo_clock")
    for folder in there:
        (tmp_path / folder).mkdir()
    with pytest.raises(SystemExit, match=complaint):
        clock.run_demo(tmp_path / "no checkout", "demo", 0, tmp_path / "cache", tmp_path / name)


def test_exponents_and_bends(every: ModuleType) -> None:
    growth = importlib.import_module("growth")
    row = growth.Row("a stage", "queries", (2, 4, 8), "2")
    points = [{"size": n, "wall_s": n, "processor_s": n**2, "peak_mib": 10 * n} for n in row.sizes]
    found = growth.fit(row, points)
    assert (found["exponent_s"], found["exponent_mib"], found["bend"]) == (pytest.approx(2), pytest.approx(1), "")
    points[2]["processor_s"] = 4 * points[1]["processor_s"] * 2
    assert growth.fit(row, points)["bend"] == "at 4: 2.0, then 3.0"
    run = {"command": "python benchmarks/growth.py", "taken": {"machine": "m", "commit": "c"}, "growth": [found]}
    line = every.tables.growth_part(run).splitlines()[-1]
    assert line.split(" | ")[2:6] == ["2 / 4 / 8", "2.00 / 4.00 / 8.00", "4.00 / 16.0 / 128", "20.0 / 40.0 / 80.0"]
    assert line.endswith("| 2.00 (2) | 1.00 |  |")
    assert all(one.sizes == tuple(sorted(one.sizes)) for one in growth.ROWS)
