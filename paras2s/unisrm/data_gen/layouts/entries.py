"""The records that every layout yields: an item with the sounds of its clips, or a row that makes none and the reason."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paras2s.errors import DataError
from paras2s.unisrm.reward.tasks import Item, TaskId
from paras2s.utils.io import path_inside

Split = Literal["sft", "rl", "bench"]


@dataclass(frozen=True)
class Entry:
    """An item, and the sound of each of its clips: a file of the data set, or encoded bytes. `id` is its row's there."""

    item: Item
    sounds: Mapping[str, Path | bytes]


@dataclass(frozen=True)
class Dropped:
    """A row that makes no item, with the reason; rows are counted by it."""

    id: str
    reason: str


@dataclass(frozen=True)
class Layout:
    """A layout: its task, its splits, and their reader. `count` gives a split's rows without reading any audio."""

    name: str
    task: TaskId
    splits: tuple[Split, ...]
    read: Callable[[Path, Split], Iterator[Entry | Dropped]]
    count: Callable[[Path, Split], int]


def require_columns(where: str, columns: Sequence[str], required: Sequence[str]) -> None:
    """Check the columns of a table. Raises DataError: one is missing; names it."""
    if missing := [name for name in required if name not in columns]:
        raise DataError(f"{where}: no column {', '.join(missing)}; there are {', '.join(columns) or 'none'}")


def rating(where: str, column: str, value: Any) -> float:
    """Return a score from 1 to 5. Raises DataError: no number, or out of range; names file:line."""
    try:
        score = float(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {column} is no number: {value!r}") from error
    if not 1 <= score <= 5:
        raise DataError(f"{where}: {column} is {score:g}, which is not from 1 to 5")
    return score


def clip_of(folder: Path, name: str, where: str) -> Path | None:
    """Return the file of a clip that a table names, None if it is missing. Raises DataError: it leaves the folder."""
    path = path_inside(folder, name)
    if path is None:
        raise DataError(f"{where}: {name!r} leads out of {folder}")
    return path if os.path.isfile(path) else None


def short_digest(data: bytes) -> str:
    """Return a hash of these bytes, 16 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:16]
