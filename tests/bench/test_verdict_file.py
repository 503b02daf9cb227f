"""The file of verdicts that all benchmarks share: what is appended, what stays, where a budget ends, and what a kill leaves.

What single benchmarks write is in test_appending.py and their own tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from paras2s.bench.verdict_file import VerdictFile, judge_in_chunks, judge_readable, read_rows, rows_by_key
from paras2s.errors import BudgetError, DataError
from paras2s.types import Unscored
from paras2s.utils.io import read_jsonl


@dataclass(frozen=True)
class Row:
    """A verdict on an item, or none."""

    item: str
    label: str | None


def open_file(path: Path) -> VerdictFile[str, Row]:
    rows = {}
    if path.is_file():
        rows = rows_by_key(read_rows(path, Row), lambda row: row.item, lambda row: row.label is not None, "item")
    return VerdictFile(path, rows, lambda row: row.item, lambda row: row.label is not None, asdict)


def judge(file: VerdictFile[str, Row], items: str, ends_at: str = "", unscored: str = "") -> BudgetError | None:
    def judge_chunk(chunk: Sequence[str], at: object) -> list[Row | BudgetError]:
        return [
            BudgetError("spent") if item in ends_at else Row(item, None if item in unscored else item.upper()) for item in chunk
        ]

    return file.judge(items, 2, judge_chunk, lambda *_: None)


def test_a_stopped_run_goes_on_to_the_file_of_an_uninterrupted_one(tmp_path: Path) -> None:
    full, cut = open_file(tmp_path / "full.jsonl"), open_file(tmp_path / "cut.jsonl")
    assert judge(full, "abcde") is None
    full.rewrite()
    # The budget ends within the second chunk, whose other item is kept; the third is not asked.
    assert str(judge(cut, "abcde", ends_at="c")) == "spent"
    assert list(cut.rows) == ["a", "b", "d"]
    # A kill before the file was rewritten leaves half a line.
    with cut.path.open("a") as log:
        log.write('{"item": "e", "lab')
    again = open_file(cut.path)
    assert list(again.rows) == ["a", "b", "d"]
    assert judge(again, [item for item in "abcde" if not again.is_judged(item)]) is None  # type: ignore[arg-type]
    again.rows = dict(sorted(again.rows.items()))
    again.rewrite()
    assert again.path.read_text() == full.path.read_text()


def test_a_verdict_replaces_an_unscored_row_and_no_unscored_row_a_verdict(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    judge(open_file(path), "ab", unscored="a")
    file = open_file(path)
    judge(file, "ab", unscored="b")
    # Only the item that had no verdict is appended, and the later row counts.
    assert [row["item"] for row in read_jsonl(path)] == ["a", "b", "a"]
    assert file.rows == open_file(path).rows == {"a": Row("a", "A"), "b": Row("b", "B")}
    file.rewrite()
    assert [row["item"] for row in read_jsonl(path)] == ["a", "b"]


def test_a_row_after_a_verdict_and_a_wrong_row_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"item": "a", "label": "A"}\n{"item": "a", "label": null}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:2: item a is judged twice"):
        open_file(path)
    path.write_text('{"item": "a", "label": "A"}\n{"item": 3, "label": null}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:2: item: .*string"):
        open_file(path)


def test_progress_scales_a_judges_calls_to_items() -> None:
    progress: list[tuple[int, int]] = []

    def judge_chunk(chunk: Sequence[str], at: object) -> list[str | BudgetError]:
        at(2, 4)  # type: ignore[operator]
        return list(chunk)

    kept: list[str] = []
    assert judge_in_chunks("abcdef", 4, judge_chunk, lambda *now: progress.append(now), kept.extend) is None
    assert progress == [(2, 6), (4, 6), (5, 6), (6, 6)]
    assert kept == list("abcdef")


def test_what_cannot_be_read_keeps_its_reason_and_is_not_judged() -> None:
    gone = Unscored("audio", "no such file")
    items: list[str | Unscored] = ["a", gone, "b"]
    assert judge_readable(items, lambda read: [item.upper() for item in read]) == ["A", gone, "B"]
