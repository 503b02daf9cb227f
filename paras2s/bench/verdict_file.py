"""A file of verdicts, one JSON object a line: judge what is missing in chunks, append, stop at the budget, go on later.

Verdicts are appended as they come, and at the end of a run the file is written once. A killed run leaves at most half a line,
which reading skips and the next row replaces. Replies are cached as they come, so that a new start repeats no call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from paras2s.errors import BudgetError, DataError, first_problem
from paras2s.reward.judges.base import Progress
from paras2s.types import Unscored
from paras2s.utils.io import append_jsonl, read_jsonl, write_jsonl

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")
Item = TypeVar("Item")
Result = TypeVar("Result")
JudgeChunk = Callable[[Sequence[Item], Progress], Sequence[Row | BudgetError]]


@dataclass
class VerdictFile(Generic[Key, Row]):
    """The rows of a file by item; a verdict replaces earlier rows, and an unscored row never replaces a verdict."""

    path: Path
    rows: dict[Key, Row]
    key: Callable[[Row], Key]
    has_verdict: Callable[[Row], bool]
    to_json: Callable[[Row], dict[str, Any]]

    def is_judged(self, key: Key) -> bool:
        """Return whether the item has a verdict."""
        return key in self.rows and self.has_verdict(self.rows[key])

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows on items without a verdict; `rewrite` replaces earlier verdicts by later ones. Raises StorageError."""
        for row in rows:
            was_judged = self.is_judged(self.key(row))
            if self.has_verdict(row) or not was_judged:
                self.rows[self.key(row)] = row
            # Of an item that was unscored the file holds two rows until the end; the later one counts.
            if not was_judged:
                append_jsonl(self.path, self.to_json(row))

    def judge(
        self, items: Sequence[Item], size: int, judge_chunk: JudgeChunk[Item, Row], on_progress: Progress
    ) -> BudgetError | None:
        """Judge items in chunks of `size` and add their rows; return the error if the budget ended before the items did."""
        return judge_in_chunks(items, size, judge_chunk, on_progress, self.add)

    def rewrite(self) -> None:
        """Write the file once, a row an item. Raises StorageError: the disk refused."""
        write_jsonl(self.path, map(self.to_json, self.rows.values()))


def judge_in_chunks(
    items: Sequence[Item],
    size: int,
    judge_chunk: JudgeChunk[Item, Row],
    on_progress: Progress,
    keep: Callable[[Sequence[Row]], None],
) -> BudgetError | None:
    """Judge items in chunks of `size`; `keep` is given every chunk's rows. Return the error if the budget ended first."""
    for start in range(0, len(items), size):
        chunk = items[start : start + size]

        def within(now: int, total: int, start: int = start, n: int = len(chunk)) -> None:
            # A judge counts calls, and an item may take several.
            on_progress(start + now * n // max(total, 1), len(items))

        outcomes = judge_chunk(chunk, within)
        keep([row for row in outcomes if not isinstance(row, BudgetError)])
        on_progress(start + len(chunk), len(items))
        if stopped := next((outcome for outcome in outcomes if isinstance(outcome, BudgetError)), None):
            return stopped
    return None


def judge_readable(
    items: Sequence[Item | Unscored], judge: Callable[[list[Item]], Iterable[Result]]
) -> list[Result | Unscored]:
    """Return the judge's result of every item that could be read, and the reason of every other one, in order."""
    results = iter(judge([item for item in items if not isinstance(item, Unscored)]))
    return [item if isinstance(item, Unscored) else next(results) for item in items]


def read_rows(path: Path, kind: type[Row], hint: str = "") -> Iterator[tuple[str, Row]]:
    """Yield the rows of a file with their file:line; `hint` ends the message. Raises DataError: no file, or a wrong row."""
    adapter = TypeAdapter(kind)
    for number, values in enumerate(read_jsonl(path), 1):
        try:
            row = adapter.validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            raise DataError(f"{path}:{number}: {first_problem(error)}{hint}") from error
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}{hint}") from error
        yield f"{path}:{number}", row


def rows_by_key(
    rows: Iterable[tuple[str, Row]], key: Callable[[Row], Key], has_verdict: Callable[[Row], bool], what: str
) -> dict[Key, Row]:
    """Return rows by item; a later row replaces an unscored one. Raises DataError: an item is judged twice; names file:line."""
    known: dict[Key, Row] = {}
    for where, row in rows:
        if key(row) in known and has_verdict(known[key(row)]):
            raise DataError(f"{where}: {what} {key(row)} is judged twice")
        known[key(row)] = row
    return known
