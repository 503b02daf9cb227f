"""Items of a UniSRM data set on disk: items.jsonl beside its clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paras2s.errors import DataError, one_line
from paras2s.unisrm.reward.messages import clip_order
from paras2s.unisrm.reward.tasks import TASKS, Item, PairRecord, QualityRecord, Record, SideScores
from paras2s.utils.io import read_jsonl, write_jsonl

ITEMS = "items.jsonl"
# Of data that is made: each clip's split, text and traits, by construction.
TAKES = "takes.jsonl"


def write_items(folder: Path, items: Sequence[Item], file: str = ITEMS) -> None:
    """Write a data set's items; their clips are there already."""
    write_jsonl(folder / file, [asdict(item) for item in items])


def read_items(folder: Path, splits: Sequence[str] = ("sft", "rl", "bench"), file: str = ITEMS) -> list[Item]:
    """Read the items of some splits. Raises DataError: the file is missing, or an item is not valid; names its line."""
    items = []
    for number, row in enumerate(read_jsonl(folder / file), 1):
        try:
            item = Item(**row | {"record": _record(row["record"]), "speakers": tuple(row["speakers"])})
            _check(item)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder / file}:{number}: no valid item ({one_line(error)})") from error
        items.append(item)
    return [item for item in items if item.split in splits]


def _record(row: dict[str, Any]) -> Record:
    if "better" not in row:
        return QualityRecord(tuple(row["scores"]), tuple(row["descriptions"]), row["description"])
    sides = row["sides"]
    if sides is not None:
        first, second = (SideScores(tuple(side["scores"]), tuple(side["explanations"])) for side in sides)
        return PairRecord(row["better"], (first, second), row["summary"])
    return PairRecord(row["better"], None, row["summary"])


def _check(item: Item) -> None:
    task = TASKS[item.task]
    if isinstance(item.record, PairRecord) != task.pairwise or item.split not in ("sft", "rl", "bench"):
        raise ValueError(f"{item.id}: record or split do not fit {item.task}")
    if isinstance(item.record, QualityRecord) and len(item.record.scores) not in (1, len(task.dimensions)):
        raise ValueError(f"{item.id}: {len(item.record.scores)} scores; expected {len(task.dimensions)}, or the overall one")
    clip_order(item.task, item.clips)
