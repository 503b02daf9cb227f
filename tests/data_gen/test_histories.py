"""Dialogues before queries on disk: the round trip, no file and no byte more without one, and wrong rows by line and key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paras2s.data_gen.dataset import TableWriter, load_manifest, save_tables
from paras2s.data_gen.histories import FILE, read_histories
from paras2s.errors import DataError
from paras2s.types import PastTurn, Query

ALONE = Query("q1", "", None, None, "rl", "", "queries/q1.wav", 0.5, "hello", None, None)
BEHIND = replace(
    ALONE,
    id="q2",
    history=(
        PastTurn("user", "One.", "queries/q2-0.wav"),
        PastTurn("assistant", "Two ‘ü’."),
    ),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("q1", "q2-0"):
        path = tmp_path / f"data/queries/{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"wav")
    (tmp_path / "secret.wav").write_bytes(b"wav")
    return tmp_path / "data"


def test_histories_come_back_and_leave_the_tables_as_they_were(folder: Path) -> None:
    save_tables(folder, [ALONE, replace(ALONE, id="q2")], [], [])
    tables = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    assert sorted(tables) == ["candidates.parquet", "demonstrations.parquet", "queries.parquet"]
    save_tables(folder, [ALONE, BEHIND], [], [])
    assert load_manifest(folder).queries == (ALONE, BEHIND)
    assert {name: (folder / name).read_bytes() for name in tables} == tables
    assert json.loads((folder / FILE).read_text()) == {
        "query_id": "q2",
        "turns": [
            {"speaker": "user", "text": "One.", "clip": "queries/q2-0.wav"},
            {"speaker": "assistant", "text": "Two ‘ü’."},
        ],
    }
    assert BEHIND.clips == ("queries/q1.wav", "queries/q2-0.wav")
    # A dataset of single questions that takes its place has no old dialogue.
    save_tables(folder, [ALONE], [], [])
    assert not (folder / FILE).exists()


def test_a_table_that_grows_writes_them_too(folder: Path) -> None:
    with TableWriter(folder / "queries.parquet", Query) as table:
        table.write([ALONE])
        table.write([BEHIND])
    assert read_histories(folder, [ALONE, replace(BEHIND, history=())]) == (ALONE, BEHIND)
    writer = TableWriter(folder / "queries.parquet", Query)
    writer.__enter__()
    writer.__exit__(KeyError)
    assert (folder / FILE).is_file()


TURN: dict[str, Any] = {"speaker": "user", "text": "Hi."}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"query_id": "q1", "turns": []}, r"histories\.jsonl:1: turns: List should have at least 1 item"),
        ({"query_id": "q1"}, r":1: turns: Field required"),
        ({"query_id": "q1", "turns": [TURN | {"speaker": "agent"}]}, r":1: turns\.0\.speaker: Input should be 'user' or"),
        ({"query_id": "q1", "turns": [TURN, {"text": "Hi."}]}, r":1: turns\.1\.speaker: Field required"),
        ({"query_id": "q1", "turns": [TURN | {"sound": "a"}]}, r":1: turns\.0\.sound: Extra inputs are not permitted"),
        ({"query_id": "q1", "turns": [TURN | {"text": " "}]}, r":1: turns\.0: has neither text nor clip"),
        ({"query_id": "q1", "turns": [TURN | {"clip": "queries/x.wav"}]}, r":1: turns\.0\.clip: queries/x\.wav: no such file"),
        ({"query_id": "q1", "turns": [TURN | {"clip": "../secret.wav"}]}, r":1: turns\.0\.clip: .* leaves the data folder"),
        ({"query_id": "q1", "turns": [TURN | {"clip": 7}]}, r":1: turns\.0\.clip: Input should be a valid string"),
        ({"query_id": "q9", "turns": [TURN]}, r":1: query_id: queries\.parquet has no 'q9'"),
        ([], r":1: row: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_row_is_named_by_line_and_key(folder: Path, row: Any, said: str) -> None:
    save_tables(folder, [ALONE], [], [])
    (folder / FILE).write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=said):
        load_manifest(folder)


def test_a_second_history_and_a_broken_line_are_named(folder: Path) -> None:
    save_tables(folder, [ALONE], [], [])
    line = json.dumps({"query_id": "q1", "turns": [TURN]}) + "\n"
    (folder / FILE).write_text(line * 2)
    with pytest.raises(DataError, match=r"histories\.jsonl:2: query_id: 'q1' has a history already"):
        load_manifest(folder)
    (folder / FILE).write_text(line + "{")
    with pytest.raises(DataError, match=r"histories\.jsonl:2"):
        load_manifest(folder)
