"""The dialogues before queries: `histories.jsonl` beside the tables of a dataset, a row a query that has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from paras2s.errors import DataError, checking
from paras2s.types import PastTurn, Query
from paras2s.utils.io import path_inside, read_rows, write_jsonl

FILE = "histories.jsonl"


class _Turn(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    speaker: Literal["user", "assistant"]
    text: str = ""
    clip: str | None = None


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    query_id: str
    turns: list[_Turn] = Field(min_length=1)


def write_histories(folder: Path, queries: Iterable[Query]) -> None:
    """Write the histories of queries; without any, there is no file."""
    rows = [_row(query) for query in queries if query.history]
    if rows:
        write_jsonl(folder / FILE, rows)
    else:
        (folder / FILE).unlink(missing_ok=True)


def _row(query: Query) -> dict[str, Any]:
    turns = [{key: value for key, value in asdict(turn).items() if value is not None} for turn in query.history]
    return {"query_id": query.id, "turns": turns}


def read_histories(folder: Path, queries: Sequence[Query]) -> tuple[Query, ...]:
    """Return the queries with their histories, where the folder has any.

    Raises DataError: a wrong row, a clip that is missing or outside, or a query that is unknown or occurs twice; names the line
    and the key.
    """
    path = folder / FILE
    if not path.is_file():
        return tuple(queries)
    known = {query.id for query in queries}
    histories: dict[str, tuple[PastTurn, ...]] = {}
    for name, query_id, turns in rows_of(path):
        if query_id not in known:
            raise DataError(f"{name}: query_id: queries.parquet has no {query_id!r}; take the row out, or fix the id")
        if query_id in histories:
            raise DataError(f"{name}: query_id: {query_id!r} has a history already; leave one row of it")
        for number, turn in enumerate(turns):
            _check_turn(f"{name}: turns.{number}", turn, folder)
        histories[query_id] = turns
    return tuple(replace(query, history=histories.get(query.id, ())) for query in queries)


def rows_of(path: Path) -> Iterator[tuple[str, str, tuple[PastTurn, ...]]]:
    """Yield the rows of a file of histories: file and line, query, turns. Raises DataError: a wrong row; names line and key."""
    for line, values in read_rows(path):
        name = f"{path}:{line}"
        with checking(name):
            row = _Row.model_validate(values)
        yield name, row.query_id, tuple(PastTurn(turn.speaker, turn.text, turn.clip) for turn in row.turns)


def _check_turn(name: str, turn: PastTurn, folder: Path) -> None:
    if turn.clip is None:
        if not turn.text.strip():
            raise DataError(f"{name}: has neither text nor clip; give its words, or leave the turn out")
        return
    path = path_inside(folder, turn.clip)
    if path is None:
        raise DataError(f"{name}.clip: {turn.clip!r} leaves the data folder; copy the clip into it")
    if not path.is_file():
        raise DataError(f"{name}.clip: {turn.clip}: no such file in {folder}; give its words as text, or add the clip")
