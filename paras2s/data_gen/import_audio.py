"""Import of an audio dataset as queries of ours: tables of the `datasets` library, its columns named by the user.

Read are parquet files (as on the hub), arrow files (as `save_to_disk` writes) and an audio folder's metadata.csv or
metadata.jsonl, all by pyarrow. A cell of audio is a struct of bytes and path, bytes, or a path beside the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet as pq

from paras2s.audio.asr import transcribe
from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.data_gen.candidates import make_query, prompt_name, reject_broken_contrasts
from paras2s.data_gen.dataset import Manifest, load_manifest, save_tables
from paras2s.errors import AudioError, ConfigError, DataError, StorageError
from paras2s.types import Candidate, Demonstration, Role
from paras2s.utils.io import path_inside, reading, write_bytes
from paras2s.utils.suggest import did_you_mean, nearest_file

# What a column can be: the spoken query and its labels, and an answer to it.
PARTS = (
    *("audio", "text", "style", "speaker", "contrast", "category", "topic", "role"),
    *("answer_audio", "answer_text", "answer_tone"),
)
METADATA = ("metadata.csv", "metadata.jsonl")
ROWS_PER_BATCH = 64
# Clips in memory; one by one takes three times as long.
TRANSCRIBED_TOGETHER = 32
# Splits of other datasets, and the role that their rows have here.
SPLITS: dict[str, Role] = {"train": "preference", "dev": "validation", "valid": "validation"}


@dataclass(frozen=True)
class Source:
    """The tables of a dataset: their files, the names of their columns, and the number of rows."""

    files: tuple[Path, ...]
    columns: tuple[str, ...]
    rows: int


def open_source(folder: Path, split: str | None = None) -> Source:
    """Find the tables of a folder, or of one split: files or folders whose name begins with it.

    Raises:
        DataError: no tables, or they have different columns.
    """
    if not folder.exists():
        raise DataError(f"{folder}: no such folder{nearest_file(folder)}")
    patterns = ("*.parquet", "*.arrow", *METADATA)
    # `datasets` keeps computed tables beside its own.
    tables = [path for pattern in patterns for path in sorted(folder.rglob(pattern)) if not path.name.startswith("cache-")]
    files = [folder] if folder.is_file() else tables
    if split is not None:
        names = re.compile(rf"{re.escape(split)}([-_.]|$)")
        files = [path for path in files if any(names.match(part) for part in path.relative_to(folder).parts)]
    if not files:
        named = "" if split is None else f" of a split {split!r}"
        raise DataError(f"{folder}: no tables{named}; expected *.parquet, *.arrow (of save_to_disk) or {METADATA[0]}")
    heads = [_head(path) for path in files]
    for path, (columns, _) in zip(files, heads, strict=True):
        if columns != heads[0][0]:
            raise DataError(f"{path}: its columns are not those of {files[0]}; import each split by --split")
    return Source(tuple(files), heads[0][0], sum(rows for _, rows in heads))


def check_columns(source: Source, columns: Mapping[str, str]) -> None:
    """Compare the named columns with those of the tables.

    Raises:
        ConfigError: an unknown part, a column that the tables lack, or no audio.
    """
    listed = ", ".join(source.columns)
    for part, name in columns.items():
        if part not in PARTS:
            near = did_you_mean(part, PARTS)
            raise ConfigError(f"--columns {part}={name}: no part {part!r}{near}; parts: {', '.join(PARTS)}")
        if name not in source.columns:
            near = did_you_mean(name, source.columns)
            raise ConfigError(f"--columns {part}={name}: no column {name!r}{near}; columns: {listed}")
    if "audio" not in columns:
        raise ConfigError(f"--columns: give audio=COLUMN, the column of the spoken queries; the tables have {listed}")
    if ("answer_audio" in columns) != ("answer_text" in columns):
        raise ConfigError("--columns: an answer needs both answer_audio and answer_text")


def import_dataset(
    folder: str | Path,
    out: str | Path,
    columns: Mapping[str, str],
    *,
    role: Role | None = None,
    category: str = "emotion",
    split: str | None = None,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Write an audio dataset as a dataset folder of ours. `columns` maps audio, text, style, speaker ... to their columns.

    `role` None: that of the column "role", else of the split's name, else "test". Without a text each clip is
    transcribed. Rows whose sound cannot be read are in the ledger with the reason, as are held-out contrasts with one style.

    Raises:
        ConfigError: a wrong column or role. DataError: no tables, or nothing in them can be read. StorageError: `out` exists.
    """
    folder, out = Path(folder), Path(out)
    source = open_source(folder, split)
    check_columns(source, columns)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"{out}: exists already; give another folder, or delete it")
    total = source.rows if limit is None else min(limit, source.rows)
    fallback = role or role_of(split, "test")
    if "answer_audio" in columns and fallback != "demonstration" and (role is not None or "role" not in columns):
        raise ConfigError(
            f"--columns: answers are kept of demonstrations alone, and all rows would be of role {fallback}; give --role "
            "demonstration, a column of roles, or leave the answers out"
        )
    candidates: list[Candidate] = []
    lengths: dict[str, float] = {}
    demonstrations: list[Demonstration] = []
    untranscribed: dict[int, Clip] = {}
    for number, (table, row) in zip(range(total), _rows(source, columns), strict=False):
        candidate = _candidate(row, f"q{number:06d}", category, role or role_of(row.get("role"), fallback))
        try:
            clip = _clip(row["audio"], table)
            answer = _clip(row["answer_audio"], table) if row.get("answer_audio") and row.get("answer_text") else None
        except AudioError as error:
            candidates.append(replace(candidate, rejected_by="audio", rejected=str(error)))
            continue
        if not candidate.text:
            untranscribed[number] = clip
        candidates.append(replace(candidate, transcript=candidate.text))
        lengths[candidate.id] = clip.duration_s
        write_bytes(out / f"queries/{_query_id(candidate)}.wav", encode_clip(clip))
        if answer is not None and candidate.role == "demonstration":
            name = f"answers/{candidate.id}.wav"
            write_bytes(out / name, encode_clip(answer))
            tone = str(row.get("answer_tone") or "neutral")
            demonstrations.append(Demonstration(candidate.id, str(row["answer_text"]), tone, name))
        if len(untranscribed) == TRANSCRIBED_TOGETHER:
            _add_transcripts(candidates, untranscribed)
        if progress is not None:
            progress(number + 1, total)
    if untranscribed:
        _add_transcripts(candidates, untranscribed)
    if not lengths:
        reason = f"the first: {candidates[0].rejected}" if candidates else "they have no rows"
        raise DataError(f"{folder}: not one row can be read; {reason}")
    candidates = reject_broken_contrasts(candidates)
    made = [
        make_query(candidate, candidate.role, _query_id(candidate), lengths[candidate.id])
        for candidate in candidates
        if candidate.rejected_by is None
    ]
    # An empty cell is no label.
    queries = [replace(query, text=query.text or None, style=query.style or None) for query in made]
    save_tables(out, queries, demonstrations, candidates)
    return load_manifest(out)


def _add_transcripts(candidates: list[Candidate], clips: dict[int, Clip]) -> None:
    """Transcribe the clips of these candidates together, which gives each the words that it has alone, and empty `clips`."""
    for index, transcript in zip(clips, transcribe([*clips.values()]), strict=True):
        candidates[index] = replace(candidates[index], transcript=transcript.text)
    clips.clear()


def role_of(value: object, fallback: Role) -> Role:
    """Return the role that a cell or a split names; `fallback` for none.

    Raises:
        ConfigError: no role, and no split that has one here.
    """
    if value is None:
        return fallback
    known: dict[str, Role] = {**{role: role for role in get_args(Role)}, **SPLITS}
    if str(value) not in known:
        raise ConfigError(f"role {value!r}: is none of {', '.join(known)}; give --role for all rows")
    return known[str(value)]


def _query_id(candidate: Candidate) -> str:
    return prompt_name(candidate.id, 1) if candidate.role == "rl" else candidate.id


def _candidate(row: Mapping[str, Any], name: str, category: str, role: Role) -> Candidate:
    def cell(part: str, missing: str = "") -> str:
        return missing if row.get(part) is None else str(row[part])

    return Candidate(
        id=name,
        contrast_id=cell("contrast", name),
        category=cell("category", category),
        topic=cell("topic"),
        role=role,
        style=cell("style"),
        speaker=cell("speaker"),
        text=cell("text"),
        transcript=None,
        word_error_rate=None,
        style_probability=None,
        rejected_by=None,
        rejected=None,
    )


def _clip(cell: Any, table: Path) -> Clip:
    """Decode a cell: a struct of bytes and path, bytes, or a path beside the table.

    Raises:
        AudioError: empty, outside the folder of the table, or no audio.
    """
    if isinstance(cell, dict):
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, bytes):
        return read_clip(cell, name=f"{table}: a clip")
    if not isinstance(cell, str):
        raise AudioError(f"{table}: a cell without audio (bytes, or a path beside the table)")
    path = path_inside(table.parent, cell)
    if path is None:
        raise AudioError(f"{table}: names {cell!r}, which leaves its folder")
    return read_clip(path)


def _head(path: Path) -> tuple[tuple[str, ...], int]:
    """Return the names of a table's columns and its number of rows.

    Raises:
        DataError: no such table.
    """
    with reading(path, "not a table of a dataset"):
        if path.suffix == ".parquet":
            about = pq.ParquetFile(path)
            return tuple(about.schema_arrow.names), about.metadata.num_rows
        table = _table(path)
        return tuple(table.column_names), table.num_rows


def _table(path: Path) -> pa.Table:
    if path.suffix == ".csv":
        return pyarrow.csv.read_csv(path)
    if path.suffix == ".jsonl":
        return pyarrow.json.read_json(path)
    # Mapped, not read.
    return pyarrow.ipc.open_stream(pa.memory_map(str(path))).read_all()


def _rows(source: Source, columns: Mapping[str, str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the file of each row, and the row by the names of its parts."""
    names = sorted(set(columns.values()))
    for path in source.files:
        with reading(path, "not a table of a dataset"):
            if path.suffix == ".parquet":
                batches = pq.ParquetFile(path).iter_batches(ROWS_PER_BATCH, columns=names)
            else:
                batches = iter(_table(path).select(names).to_batches(ROWS_PER_BATCH))
            for batch in batches:
                for row in batch.to_pylist():
                    yield path, {part: row[name] for part, name in columns.items()}
