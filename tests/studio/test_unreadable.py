"""One unreadable file in one run does not take the list of runs away."""

from __future__ import annotations

from pathlib import Path

import pytest

from paras2s.run import RESOLVED
from paras2s.studio import run_state
from paras2s.studio.folders import open_folders
from paras2s.studio.run_state import listed_state


def test_a_run_that_cannot_be_read_is_listed_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fine", "damaged"):
        (tmp_path / name).mkdir()
        (tmp_path / name / RESOLVED).write_text("name: quick\n")
    read = run_state.last_row

    def refuse(path: Path) -> object:
        if path.parent.name == "damaged":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(run_state, "last_row", refuse)
    for name in ("fine", "damaged"):
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 0}\n')
    folders = open_folders([tmp_path])
    states = {run.name: listed_state(folders, run, 0.0) for run in folders.runs()}
    assert states["fine"].steps_done == 1
    assert (states["damaged"].state, states["damaged"].problems) == (
        "unreadable",
        ("cannot be read (PermissionError: [Errno 13] Permission denied)",),
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.jsonl", '{"step": 1' + "0" * 400 + ', "seconds": 1e308}\n'),
        ("origin.json", '{"version": "' + "9" * 5000 + '"}'),
        ("progress.json", '{"name": "a", "done": 1e999, "total": 3}'),
        (RESOLVED, "align: {steps: 1" + "0" * 400 + "}\n"),
        ("timings.json", '{"data": 1' + "0" * 400 + "}"),
    ],
)
def test_odd_numbers_in_a_run_leave_the_list(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RESOLVED).write_text("name: quick\n")
    (tmp_path / "run" / name).write_text(text)
    folders = open_folders([tmp_path])
    assert [listed_state(folders, run, 0.0).name for run in folders.runs()] == ["run"]
