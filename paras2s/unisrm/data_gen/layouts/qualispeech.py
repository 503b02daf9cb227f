"""QualiSpeech as T2: seven aspects scored by people, and their descriptions as the reasoning.

The layout of its release: `train.csv`, `val.csv` and `test.csv`, whose column `id` names a file in `wav/train`, `wav/val` or
`wav/test`; the numbers Speed, Naturalness, Background noise, Distortion, Listening effort, Continuity and Overall quality; the
words Noise description, Distortion description, Unnatural pause, Feeling of voice and Natural language description. The case
of column names differs between its tables and is ignored. An aspect without words gets "none"; a row without the paragraph
gets no reasoning, so that it serves the bench and training without reasoning. The splits are the published ones; texts and
speakers are not published, and an item's clip is used for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paras2s.unisrm.data_gen.layouts.entries import (
    Dropped,
    Entry,
    Layout,
    Split,
    clip_of,
    rating,
    require_columns,
    short_digest,
)
from paras2s.unisrm.reward.reply import plain_words
from paras2s.unisrm.reward.tasks import ASPECT_DESCRIPTIONS, TASKS, Item, QualityRecord
from paras2s.utils.io import read_csv

FILES: dict[Split, str] = {"sft": "train", "rl": "val", "bench": "test"}
ASPECTS = {
    "noise": "background noise", "distortion": "distortion", "speed": "speed", "continuity": "continuity",
    "naturalness": "naturalness", "listening_effort": "listening effort", "overall": "overall quality",
}  # fmt: skip
PARAGRAPH = "natural language description"
# Text of an empty cell: nothing of the kind to describe.
NOTHING = "none"


def _rows(root: Path, split: Split) -> Iterator[tuple[str, dict[str, Any]]]:
    path = root / f"{FILES[split]}.csv"
    required = ("id", *ASPECTS.values(), *(name.lower() for name in ASPECT_DESCRIPTIONS), PARAGRAPH)
    for line, row in read_csv(path):
        lower = {str(name).strip().lower(): value for name, value in row.items()}
        require_columns(f"{path}:1", list(lower), required)
        yield f"{path}:{line}", lower


def read(root: Path, split: Split) -> Iterator[Entry | Dropped]:
    """Yield the rows of a split as items. Raises DataError: a table, column or score is wrong, or a name leaves the folder."""
    for where, row in _rows(root, split):
        name = str(row["id"])
        scores = tuple(rating(where, ASPECTS[key], row[ASPECTS[key]]) for key in TASKS["T2"].keys)
        clip = clip_of(root / "wav" / FILES[split], name, where)
        if clip is None:
            yield Dropped(name, "no such clip")
            continue
        paragraph = plain_words(str(row[PARAGRAPH] or ""))
        said = tuple(plain_words(str(row[aspect.lower()] or "")) or NOTHING for aspect in ASPECT_DESCRIPTIONS)
        record = QualityRecord(scores, said if paragraph else (), paragraph)
        same = short_digest(clip.read_bytes())
        item = Item(
            f"qualispeech-{FILES[split]}-{name}", "T2", split, same, (same,), {}, {"speech": ""}, record,
            {"corpus": "qualispeech"},
        )  # fmt: skip
        yield Entry(item, {"speech": clip})


QUALISPEECH = Layout("qualispeech", "T2", ("sft", "rl", "bench"), read, lambda root, split: sum(1 for _ in _rows(root, split)))
