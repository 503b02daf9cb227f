"""`bench styleset` appends its judges' verdicts, so that a kill loses little and a later run keeps what is there.

Not covered: a kill in the middle of a chunk, whose replies the endpoint's cache keeps.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from paras2s.audio.clip import Clip, write_clip
from paras2s.bench.styleset import run as bench
from paras2s.bench.styleset.data import FollowingItem
from paras2s.bench.styleset.dialogue import Output
from paras2s.bench.styleset.metrics import StyleRow, load_rows
from paras2s.bench.styleset.outputs import Made
from paras2s.errors import BudgetError, DataError, StorageError
from paras2s.types import Unscored, Verdict


class Killed(Exception):
    """The end of a run."""


class Judge:
    """Gives every clip a 4; does what `at` says at a chunk by its number, from 1."""

    task = SimpleNamespace(name="style_following")

    def __init__(self, at: dict[int, str] | None = None, version: str = "1") -> None:
        self.at, self.version, self.chunks = at or {}, version, 0

    def score_batch(self, exchanges: Sequence[Any]) -> list[Any]:
        self.chunks += 1
        what = self.at.get(self.chunks)
        if what == "killed":
            raise Killed
        found = {"unread": Unscored("j", "no score", "Hm."), "spent": BudgetError("the budget is spent")}
        return [found.get(what or "", Verdict("j", self.version, "h", 4.0, "why", "[[4]]", 0.1, 1.0)) for _ in exchanges]

    def requests(self, exchanges: Sequence[Any]) -> list[list[Any]]:
        return [[] for _ in exchanges]


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two systems of four outputs each; a chunk is two."""
    monkeypatch.setattr(bench, "CHUNK_OUTPUTS", 2)
    write_clip(tmp_path / "a.wav", Clip(np.full(1600, 0.1, np.float32), 16_000))
    made = {}
    for name in ("one", "two"):
        made[name] = {"following": []}
        for number in range(4):
            item = FollowingItem(id=f"f{number}", text="We won.", style="Laugh.", elements=("laughter",), changes_within=False)
            output = Output(
                item=item.id, system=name, task="following", key="", unscored=None, ended=None, duration_s=0.1, turns=()
            )
            made[name]["following"].append(Made(item, output, tmp_path / "a.wav"))
    return made


def run(path: Path, outputs: dict[str, Any], *judges: Judge, names: Sequence[str] = ("j",)) -> list[StyleRow]:
    opened = [bench.OpenJudge(name, None, judge) for name, judge in zip(names, judges, strict=True)]  # type: ignore[arg-type]
    return bench.judge_outputs(opened, outputs, path, Console(file=io.StringIO()), quiet=True)[0]


@pytest.mark.parametrize("torn", ["", '{"item": "f9", "sys'])
def test_a_killed_run_keeps_its_verdicts_and_goes_on_to_the_file_of_an_uninterrupted_one(
    tmp_path: Path, outputs: dict[str, Any], torn: str
) -> None:
    full, cut = tmp_path / "full.jsonl", tmp_path / "cut.jsonl"
    run(full, outputs, Judge())
    with pytest.raises(Killed):
        run(cut, outputs, Judge({4: "killed"}))
    with cut.open("a") as file:
        file.write(torn)
    # Three chunks of two, the last in the middle of the second system.
    assert [(row.system, row.item) for row in load_rows([cut])] == [("one", f"f{n}") for n in range(4)] + [
        ("two", "f0"), ("two", "f1"),
    ]  # fmt: skip
    run(cut, outputs, Judge())
    assert cut.read_text() == full.read_text()


def test_a_verdict_takes_the_place_of_an_unscored_row_and_of_no_verdict(tmp_path: Path, outputs: dict[str, Any]) -> None:
    path = tmp_path / "v.jsonl"
    run(path, outputs, Judge({1: "unread"}))
    assert [row.score for row in load_rows([path])] == [None, None] + [4.0] * 6
    # Killed after the two that were unscored: the file holds both rows of each, and the verdict counts.
    with pytest.raises(Killed):
        run(path, outputs, Judge({2: "killed"}))
    assert len(path.read_text().splitlines()) == 10
    assert [row.score for row in load_rows([path])] == [4.0] * 8
    # A verdict before another row of the same output is one too many.
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    with pytest.raises(DataError, match="occurs more than once"):
        load_rows([path])


def test_verdicts_stay_when_a_later_run_is_shorter_or_cannot_give_them(tmp_path: Path, outputs: dict[str, Any]) -> None:
    path = tmp_path / "v.jsonl"
    run(path, outputs, Judge())
    before = path.read_text()
    # Fewer systems, then a reply without a score, then the end of the budget: the earlier verdicts are reported and kept.
    assert len(run(path, {"one": outputs["one"]}, Judge())) == 4
    assert [row.score for row in run(path, outputs, Judge({1: "unread", 2: "spent"}))] == [4.0] * 8
    assert path.read_text() == before
    # Another judge's stand behind them; the first one's with other settings are not mixed with its own.
    run(path, outputs, Judge(), names=("k",))
    assert [row.judge for row in load_rows([path])] == ["j"] * 8 + ["k"] * 8
    with pytest.raises(StorageError, match="holds verdicts of j/style_following/1; give another --out, or delete it"):
        run(path, outputs, Judge(version="2"))


def test_what_a_budget_did_not_reach_is_a_row_at_the_end_only(tmp_path: Path, outputs: dict[str, Any]) -> None:
    path = tmp_path / "v.jsonl"
    rows = run(path, outputs, judge := Judge({2: "spent"}))
    assert judge.chunks == 2
    assert [row.unscored for row in rows] == [None, None] + ["not asked: the budget ended before it"] * 6
    assert load_rows([path]) == rows
