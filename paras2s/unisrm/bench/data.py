"""The items of UniSRM-Bench as a judge gets them: as they are, and changed into each control."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from paras2s.audio.clip import Clip, read_clip
from paras2s.errors import DataError
from paras2s.unisrm.reward.items import ITEMS, read_items
from paras2s.unisrm.reward.messages import SILENCE
from paras2s.unisrm.reward.tasks import TASKS, Item, PairRecord, TaskId
from paras2s.utils.cache import key_of

# own: as it is. swapped: the candidates exchanged. shuffled: another item's clips. text_only: silence in place of all clips.
Condition = Literal["own", "swapped", "shuffled", "text_only"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
# The columns of Table 1, the language being that of an item's factors, English where it names none; then those of Table 7.
Column = Literal["T1", "T2", "T3-en", "T3-zh", "T4", "bvcc", "somos-clean", "somos-full"]
COLUMNS: tuple[Column, ...] = get_args(Column)
# Quality by people on data of other origin, with the overall score alone.
CROSS_DATASET: tuple[Column, ...] = ("bvcc", "somos-clean", "somos-full")
RATINGS: tuple[Column, ...] = ("T2", *CROSS_DATASET)
SHUFFLE_SEED = 18
# Distances tried: each takes time as the number of items.
MAX_DISTANCES = 256


@dataclass(frozen=True)
class Sample:
    """An item as a judge gets it. `clips` maps an input's name to its file, or to the sound itself."""

    item: Item
    condition: Condition
    clips: Mapping[str, Path | Clip]

    def read(self) -> dict[str, Clip]:
        """Read the clips by name. Raises AudioError: a clip cannot be read."""
        return {name: clip if isinstance(clip, Clip) else read_clip(clip) for name, clip in self.clips.items()}


@dataclass(frozen=True)
class BenchData:
    """A split of a data set. `digest` changes with any item of it and with the sound of any clip."""

    folder: Path
    items: tuple[Item, ...]
    digest: str
    split: str = "bench"

    def of_task(self, task_id: TaskId) -> list[Item]:
        """Return the items of a task."""
        return [item for item in self.items if item.task == task_id]

    def samples(self, condition: Condition, limit: int | None = None) -> list[Sample]:
        """Return the items under a condition, the first `limit` of each task; none if the task lacks the condition."""
        make: Mapping[Condition, Callable[[Sequence[Item], Path], list[Sample]]] = {
            "own": _own, "swapped": _swapped, "shuffled": _shuffled, "text_only": _text_only,
        }  # fmt: skip
        return [sample for task_id in TASKS for sample in make[condition](self.of_task(task_id), self.folder)[:limit]]


def load_bench(folder: Path, split: str = "bench") -> BenchData:
    """Read a split of a data set. Raises DataError: no file, a wrong item, an id that occurs twice, or an empty split."""
    items = tuple(read_items(folder, [split]))
    if not items:
        raise DataError(f"{folder / ITEMS}: no item is of the split {split!r}; `paras2s unisrm data` makes some")
    if len({item.id for item in items}) < len(items):
        raise DataError(f"{folder / ITEMS}: an id occurs twice")
    return BenchData(folder, items, _digest(folder, items), split)


def _digest(folder: Path, items: Sequence[Item]) -> str:
    names = sorted({path for item in items for path in item.clips.values()})
    sounds = [hashlib.sha256(path.read_bytes()).hexdigest() if (path := folder / name).is_file() else "" for name in names]
    return key_of([*map(asdict, items), *sounds])[:8]


def column_of(item: Item) -> Column:
    """Return the column of Table 1 or 7 in which an item counts."""
    for column in CROSS_DATASET:
        if item.factors.get("corpus") == column:
            return column
    if item.task != "T3":
        return item.task
    return "T3-zh" if item.factors.get("language", "en").startswith("zh") else "T3-en"


def _files(item: Item, folder: Path) -> dict[str, Path | Clip]:
    return {name: folder / path for name, path in item.clips.items()}


def _own(items: Sequence[Item], folder: Path) -> list[Sample]:
    return [Sample(item, "own", _files(item, folder)) for item in items]


def _swapped(items: Sequence[Item], folder: Path) -> list[Sample]:
    samples = []
    for item in items:
        if TASKS[item.task].pairwise:
            clips = _files(item, folder)
            clips["speech_a"], clips["speech_b"] = clips["speech_b"], clips["speech_a"]
            samples.append(Sample(item, "swapped", clips))
    return samples


def _shuffled(items: Sequence[Item], folder: Path) -> list[Sample]:
    """Give each item the clips of another one, whose label says as little as possible about its own.

    All are put in a random order and each gets the clips of the item n positions further. Of few items an arbitrary
    distance may pair like with like, and then a judge that listens would not fall to chance. An item that would get a clip
    of its own, since items may share clips, is left out.
    """
    if len(items) < 2:
        return []
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(items))
    labels = np.array([_label(items[index]) for index in order])
    clips = [set(item.clips.values()) for item in items]

    def left_out_and_covariance(far: int) -> tuple[int, float]:
        shared = sum(bool(clips[this] & clips[other]) for this, other in zip(order, np.roll(order, -far), strict=True))
        return shared, abs(float(np.mean(labels * np.roll(labels, -far)) - labels.mean() ** 2))

    donors = np.roll(order, -min(range(1, min(len(items), MAX_DISTANCES)), key=left_out_and_covariance))
    donor = dict(zip(order.tolist(), donors.tolist(), strict=True))
    return [
        Sample(item, "shuffled", _files(items[donor[index]], folder))
        for index, item in enumerate(items)
        if not clips[index] & clips[donor[index]]
    ]


def _label(item: Item) -> float:
    return float(item.record.better == "A") if isinstance(item.record, PairRecord) else item.record.scores[-1]


def _text_only(items: Sequence[Item], folder: Path) -> list[Sample]:
    return [
        replace(sample, condition="text_only", clips=dict.fromkeys(sample.clips, SILENCE)) for sample in _own(items, folder)
    ]
