"""A bar tells its run what is done and how long the rest takes, now and then; a run's folder has it until the stage ends.

Not covered: how a bar looks on a terminal.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from paras2s.configs.schema.run import RunConfig
from paras2s.run import PROGRESS, Run
from paras2s.utils.io import read_json
from paras2s.utils.progress import open_console, progress_bar


def test_it_tells_every_five_seconds_and_knows_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = [100.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr("paras2s.utils.progress.time", clock)
    with progress_bar(Console(quiet=True), "answers", 10, quiet=True, tell=lambda *one: given.append(one)) as bar:
        for second, done in ((0, 2), (2, 3), (4, 4), (6, 5)):
            now[0] = 100.0 + second
            bar.at(done, 10)
    # Three answers in six seconds since the first call: five more take ten.
    assert given == [("answers", 2, 10, None), ("answers", 5, 10, 10.0)]


def test_a_run_says_what_it_does_until_the_stage_ends(tmp_path: Path) -> None:
    run = Run(RunConfig(name="x", run_dir=tmp_path / "run", cache_dir=tmp_path), Console(quiet=True), quiet=True)
    with run.stage("data"), run.bar("speech", 4) as bar:
        bar.at(1, 4)
        said = read_json(run.folder / PROGRESS)
    assert said == {"name": "speech", "done": 1, "total": 4, "left_s": None}
    assert not (run.folder / PROGRESS).exists()


def test_a_resumed_stage_counts_what_earlier_starts_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps of 2 s each those before the resumed one count: 3 x 2 + 5 s; the step that is done again does not."""
    run = Run(RunConfig(name="x", run_dir=tmp_path / "run", cache_dir=tmp_path), Console(quiet=True), quiet=True)
    assert run.logged_s(before=3) == 0
    for step in range(4):
        run.log_step({"step": step, "seconds": 2.0})
    monkeypatch.setattr("paras2s.run.time.perf_counter", iter([10.0, 15.0]).__next__)
    with run.stage("align", run.logged_s(before=3)):
        pass
    assert run.timings() == {"align": 11.0}


def test_a_disk_that_refuses_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    Run(RunConfig(name="x", run_dir=tmp_path / "run"), Console(quiet=True), quiet=True).save_progress("speech", 1, 4, None)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run").read_text() == "a file where the folder should be"


HOSTILE = "tuned[/v2] '[/INST]' is not a label [bold]x[/bold] :smile:"


def test_foreign_text_is_never_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(RunConfig(name="x", run_dir=tmp_path / "run"), open_console())
    run.say(HOSTILE)
    run.headline(HOSTILE)
    open_console().print(HOSTILE)
    with progress_bar(open_console(), HOSTILE, 10) as bar:
        bar.at(1, 10, HOSTILE)
    said = capsys.readouterr().out
    assert said.startswith(f"{HOSTILE}\n" * 3)
