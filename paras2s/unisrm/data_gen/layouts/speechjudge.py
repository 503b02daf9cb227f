"""SpeechJudge-Data as T1 with labels by people: two clips of a text in the voice of a prompt, and which is more natural.

The layout that its card documents: `train-*.parquet`, `dev-*.parquet` and `test-*.parquet`, with the columns index,
language_setting ("en2zh": the prompt's language and the text's), prompt, target_text, audioA, audioB (each a struct with the
encoded `bytes`) and naturalness_label (A, B or Tie). The split `other` is not read. A tie makes no item. The label has no
scores of dimensions, so that an item serves the bench and training without reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paras2s.errors import DataError
from paras2s.unisrm.data_gen.layouts.entries import Dropped, Entry, Layout, Split, require_columns, short_digest
from paras2s.unisrm.reward.tasks import Item, PairRecord
from paras2s.utils.io import reading

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

FILES: dict[Split, str] = {"sft": "train", "rl": "dev", "bench": "test"}
SOUNDS = {"prompt_speech": "prompt", "speech_a": "audioA", "speech_b": "audioB"}
COLUMNS = ("index", "language_setting", "target_text", "naturalness_label", *SOUNDS.values())
LANGUAGE = re.compile(r"(?:en|zh)2(en|zh|mixed)")
# Rows in memory at once: a row has three clips.
BATCH_ROWS = 32


def _tables(root: Path, split: Split) -> Iterator[tuple[Path, ParquetFile]]:
    from pyarrow.parquet import ParquetFile

    paths = sorted(root.glob(f"{FILES[split]}-*.parquet"))
    if not paths:
        raise DataError(f"{root}: no {FILES[split]}-*.parquet; this is not SpeechJudge-Data as published")
    for path in paths:
        with reading(path, "cannot be read as Parquet"):
            table = ParquetFile(path)
        require_columns(str(path), table.schema_arrow.names, COLUMNS)
        yield path, table


def read(root: Path, split: Split) -> Iterator[Entry | Dropped]:
    """Yield the rows of a split as items. Raises DataError: a missing file or column, or a wrong cell; names the row."""
    for path, table in _tables(root, split):
        with reading(path, "cannot be read as Parquet"):
            for batch in table.iter_batches(BATCH_ROWS, columns=list(COLUMNS)):
                for row in batch.to_pylist():
                    yield _entry(row, split, f"{path}: index {row['index']}")


def _entry(row: dict[str, Any], split: Split, where: str) -> Entry | Dropped:
    label, language = row["naturalness_label"], LANGUAGE.fullmatch(str(row["language_setting"]))
    if label == "Tie":
        return Dropped(str(row["index"]), "a tie")
    if label not in ("A", "B"):
        raise DataError(f"{where}: naturalness_label is {label!r}; expected A, B or Tie")
    if language is None:
        raise DataError(f"{where}: language_setting is {row['language_setting']!r}; expected such as en2zh")
    text = str(row["target_text"] or "").strip()
    if not text:
        return Dropped(str(row["index"]), "no text")
    sounds: dict[str, Path | bytes] = {}
    for name, column in SOUNDS.items():
        data = row[column].get("bytes") if isinstance(row[column], dict) else None
        if not data:
            return Dropped(str(row["index"]), f"no audio in {column}")
        sounds[name] = data
    prompt = sounds["prompt_speech"]
    assert isinstance(prompt, bytes)
    # The prompt's speaker is not published: its sound is used in their place.
    item = Item(
        f"speechjudge-{FILES[split]}-{row['index']}", "T1", split, short_digest(text.casefold().encode()),
        (short_digest(prompt),), {"reference_text": text}, dict.fromkeys(SOUNDS, ""), PairRecord(label),
        {"corpus": "speechjudge", "language": language[1]},
    )  # fmt: skip
    return Entry(item, sounds)


SPEECHJUDGE = Layout(
    "speechjudge", "T1", ("sft", "rl", "bench"), read,
    lambda root, split: sum(table.metadata.num_rows for _, table in _tables(root, split)),
)  # fmt: skip
