"""A dataset on disk: three parquet tables and clips, and the dialogues before queries in `histories.jsonl`, if there are any.

A run's also has clip features, tone classifiers and a style check.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from paras2s.audio.clip import Clip, read_clip
from paras2s.data_gen.histories import read_histories, write_histories
from paras2s.errors import DataError
from paras2s.policy.embedded.codec2 import Codec
from paras2s.policy.embedded.frontend import ClipFeatures, stored_features
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Candidate, Demonstration, Query, Role, as_row
from paras2s.utils.io import names_a_file, path_inside, read_json, reading, write_bytes, write_json

Row = TypeVar("Row", Query, Demonstration, Candidate)
# Raised whenever a column of a table is added, dropped or means something else. Version 2 had `heard` for `transcript`.
TABLE_VERSION = 3
AUDIBILITY_FILE = "style_audibility.json"
ROWS_PER_GROUP = 4096


@dataclass(frozen=True)
class ClipFolder:
    """The clips of a dataset by name, and nothing else of it, so that it travels to workers."""

    folder: Path

    def clip(self, relative: str) -> Clip:
        """Read a clip named in the manifest.

        Raises:
            DataError: the name leaves the data folder, or there is no such file. AudioError: it cannot be decoded.
        """
        return read_clip(inside(self.folder, relative))

    def cached_features(self, relative: str) -> bytes | None:
        """Return the features that are stored beside a clip; None if there are none."""
        beside = inside(self.folder, relative).with_suffix(".npz")
        return beside.read_bytes() if beside.is_file() else None


@dataclass(frozen=True)
class Manifest(ClipFolder):
    """Queries, demonstrations and the ledger of candidates. Clips are read on demand."""

    queries: tuple[Query, ...]
    demonstrations: tuple[Demonstration, ...]
    candidates: tuple[Candidate, ...]

    def of_role(self, role: Role) -> list[Query]:
        """Return the queries of one role, in the order of the manifest."""
        return [query for query in self.queries if query.role == role]


@dataclass(frozen=True)
class Dataset(Manifest):
    """The dataset of a run. `audibility` says how often a plain classifier tells a contrast's two styles apart."""

    user_tone: ToneClassifier
    agent_tone: ToneClassifier
    audibility: dict[str, Any]

    def clip_features(self, relative: str, codec: Codec) -> ClipFeatures:
        """Return codes and prosody of a clip: from the file beside it, else computed from the waveform."""
        return stored_features(self, relative, codec)


def inside(folder: Path, relative: str) -> Path:
    """Return the path of a file that the manifest names.

    Raises:
        DataError: it points outside the folder, or nothing is there.
    """
    path = path_inside(folder, relative)
    if path is None:
        linked = next((part for part in (folder / relative).parents if part != folder and part.is_symlink()), None)
        if linked is not None and ".." not in Path(relative).parts:
            raise DataError(f"{linked}: a link that leaves the data folder; copy the files here, or link the whole data folder")
        raise DataError(f"{folder}: the manifest names {relative!r}, which leaves the data folder; fix the manifest")
    if not os.path.isfile(path):
        raise DataError(f"{path}: named in the manifest but missing; run `paras2s data` again to restore it")
    return path


def _columns(kind: type[Any]) -> list[Field[Any]]:
    return [column for column in fields(kind) if column.name != "history"]


def table_schema(kind: type[Any]) -> Any:
    """Return the Arrow schema of a record's table, with the table version in its metadata."""
    import typing

    import pyarrow as pa

    arrow = {str: pa.string(), float: pa.float64(), int: pa.int64()}
    hints = typing.get_type_hints(kind)
    columns = []
    for column in _columns(kind):
        options = [hints[column.name], *typing.get_args(hints[column.name])]
        # Any other type is a closed set of words.
        columns.append(pa.field(column.name, next((arrow[option] for option in options if option in arrow), pa.string())))
    return pa.schema(columns, metadata={"paras2s_schema": str(TABLE_VERSION)})


def _write_table(path: Path, rows: Sequence[Row], kind: type[Row]) -> None:
    import pyarrow as pa

    _write_arrow(path, pa.Table.from_pylist([as_row(row) for row in rows], schema=table_schema(kind)))


def _write_arrow(path: Path, table: Any) -> None:
    import io

    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_bytes(path, buffer.getvalue())


class TableWriter:
    """A table written row by row; it replaces the old file when the block ends without an error, else it is deleted."""

    def __init__(self, path: Path, kind: type[Any]) -> None:
        self._path, self._kind = path, kind
        self._new = path.with_name(f".{path.name}.new")

    def __enter__(self) -> TableWriter:
        import pyarrow.parquet as pq

        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._pending: list[dict[str, Any]] = []
        self._with_history: list[Query] = []
        self._writer = pq.ParquetWriter(self._new, table_schema(self._kind))
        return self

    def write(self, rows: Sequence[Any]) -> None:
        """Add rows; they reach the disk in groups."""
        self._pending += [as_row(row) for row in rows]
        self._with_history += [row for row in rows if isinstance(row, Query) and row.history]
        if len(self._pending) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(self._pending, schema=table_schema(self._kind)))
        self._pending = []

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        if kind is None:
            if self._kind is Query:
                write_histories(self._path.parent, self._with_history)
            self._new.replace(self._path)
        else:
            self._new.unlink(missing_ok=True)


def _read_table(path: Path, kind: type[Row]) -> tuple[Row, ...]:
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"{path}: no such table; run `paras2s data` first")
    with reading(path, "not a parquet table", "; run `paras2s data` again"):
        table = pq.read_table(path)
        rows = table.to_pylist()
    version = int((table.schema.metadata or {}).get(b"paras2s_schema", b"1"))
    if version != TABLE_VERSION:
        raise DataError(
            f"{path}: of schema {version}, this version reads {TABLE_VERSION}; run `paras2s data` into another folder"
        )
    names = {column.name for column in _columns(kind)}
    if rows and set(rows[0]) != names:
        wrong = sorted(set(rows[0]) ^ names)
        raise DataError(f"{path}: columns {', '.join(wrong)} do not fit this version; run `paras2s data` again")
    for row in rows:
        if not isinstance(row.get("clip", ""), str):
            raise DataError(f"{path}: {row['clip']!r} is no clip's name; run `paras2s data` again")
        # Answers are stored under it.
        if not names_a_file(row.get("id", "a")):
            raise DataError(f"{path}: the id {row['id']!r} cannot name a file; run `paras2s data` again")
    return tuple(kind(**row) for row in rows)


class StoredClip(Protocol):
    """A clip as `save_dataset` stores it: bytes of a WAV file, and the features of its sound."""

    @property
    def wav(self) -> bytes:
        """Bytes of the file."""

    @property
    def features(self) -> ClipFeatures:
        """Codes and prosody."""


def save_dataset(
    folder: Path,
    *,
    queries: Sequence[Query],
    demonstrations: Sequence[Demonstration],
    candidates: Sequence[Candidate],
    clips: Mapping[str, StoredClip],
    user_tone: ToneClassifier,
    agent_tone: ToneClassifier,
    audibility: dict[str, Any],
) -> Dataset:
    """Write a run's dataset and load it; `clips` maps a path without suffix to its clip."""
    for name, clip in clips.items():
        write_bytes(folder / f"{name}.wav", clip.wav)
        write_bytes(folder / f"{name}.npz", clip.features.to_bytes())
    user_tone.save(folder / "tone_user.json")
    agent_tone.save(folder / "tone_agent.json")
    write_json(folder / AUDIBILITY_FILE, audibility)
    save_tables(folder, queries, demonstrations, candidates)
    return load_dataset(folder)


def save_tables(
    folder: Path, queries: Sequence[Query], demonstrations: Sequence[Demonstration], candidates: Sequence[Candidate]
) -> None:
    """Write the three tables; the queries come last and mark the dataset as complete."""
    _write_table(folder / "demonstrations.parquet", demonstrations, Demonstration)
    _write_table(folder / "candidates.parquet", candidates, Candidate)
    write_histories(folder, queries)
    _write_table(folder / "queries.parquet", queries, Query)


def data_folder(folder: Path) -> Path:
    """Return the folder of a dataset: the folder itself, or `data` in a run's folder."""
    inner = folder / "data"
    return inner if (inner / "queries.parquet").is_file() and not (folder / "queries.parquet").is_file() else folder


def load_manifest(folder: Path) -> Manifest:
    """Read the tables of a dataset, of a run or of a curation.

    Raises:
        DataError: a table or the file of histories is missing, broken or of another version, or a named clip is missing or
            outside.
    """
    queries = read_histories(folder, _read_table(folder / "queries.parquet", Query))
    demonstrations = _read_table(folder / "demonstrations.parquet", Demonstration)
    for relative in (*(query.clip for query in queries), *(demonstration.clip for demonstration in demonstrations)):
        inside(folder, relative)
    return Manifest(folder, queries, demonstrations, _read_table(folder / "candidates.parquet", Candidate))


def load_dataset(folder: Path | str) -> Dataset:
    """Read the dataset of a run, from its folder `data` or from the run's folder.

    Raises:
        DataError: as `load_manifest`, or a tone classifier or the style check is missing.
    """
    folder = data_folder(Path(folder))
    manifest = load_manifest(folder)
    return Dataset(
        manifest.folder,
        manifest.queries,
        manifest.demonstrations,
        manifest.candidates,
        ToneClassifier.load(folder / "tone_user.json"),
        ToneClassifier.load(folder / "tone_agent.json"),
        read_json(folder / AUDIBILITY_FILE),
    )
