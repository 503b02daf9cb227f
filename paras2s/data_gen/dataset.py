"""A dataset on disk: three tables (parquet) and clips; that of a run also has percepts, tone classifiers, a hearing check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from paras2s.audio.clip import Clip, read_clip
from paras2s.errors import DataError, one_line
from paras2s.policy.embedded.codec2 import Codec
from paras2s.policy.embedded.frontend import ClipFeatures, stored_features
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Candidate, Demonstration, Query, Role, as_row
from paras2s.utils.io import read_json, write_bytes, write_json

Row = TypeVar("Row", Query, Demonstration, Candidate)
# Raised whenever a column of a table is added, dropped or means something else.
TABLE_VERSION = 2
ROWS_PER_GROUP = 4096


@dataclass(frozen=True)
class Manifest:
    """Queries, demonstrations and the ledger of candidates. Clips are read when asked for."""

    folder: Path
    queries: tuple[Query, ...]
    demonstrations: tuple[Demonstration, ...]
    candidates: tuple[Candidate, ...]

    def of_role(self, role: Role) -> list[Query]:
        """Queries of one role, in the order of the manifest."""
        return [query for query in self.queries if query.role == role]

    def clip(self, relative: str) -> Clip:
        """A clip named in the manifest.

        Raises:
            DataError: the name leaves the data folder, or there is no such file. AudioError: it cannot be decoded.
        """
        return read_clip(inside(self.folder, relative))


@dataclass(frozen=True)
class Dataset(Manifest):
    """What the data stage of a run made."""

    user_tone: ToneClassifier
    agent_tone: ToneClassifier
    hearing: dict[str, Any]

    def cached_features(self, relative: str) -> bytes | None:
        """The features that are stored beside a clip, None where there are none."""
        beside = inside(self.folder, relative).with_suffix(".npz")
        return beside.read_bytes() if beside.is_file() else None

    def percept(self, relative: str, codec: Codec) -> ClipFeatures:
        """Codes and prosody of a clip: from the file beside it, else computed from the waveform."""
        return stored_features(self, relative, codec)


def inside(folder: Path, relative: str) -> Path:
    """The path of a manifest's file.

    Raises:
        DataError: it points outside the folder, or nothing is there.
    """
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise DataError(f"{folder}: the manifest names {relative!r}, which leaves the data folder; mend the manifest")
    if not path.is_file():
        raise DataError(f"{path}: named in the manifest but missing; run `paras2s data` again to restore it")
    return path


def table_schema(kind: type[Any]) -> Any:
    """The columns of a record's table, and which version of the records they are of."""
    import typing

    import pyarrow as pa

    arrow = {str: pa.string(), float: pa.float64(), int: pa.int64()}
    hints = typing.get_type_hints(kind)
    columns = []
    for column in fields(kind):
        options = [hints[column.name], *typing.get_args(hints[column.name])]
        # What is none of these is a closed set of words.
        columns.append(pa.field(column.name, next((arrow[one] for one in options if one in arrow), pa.string())))
    return pa.schema(columns, metadata={"paras2s_schema": str(TABLE_VERSION)})


def _write_table(path: Path, rows: Sequence[Row], kind: type[Row]) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([as_row(row) for row in rows], schema=table_schema(kind)), buffer)
    write_bytes(path, buffer.getvalue())


class TableWriter:
    """A table that grows by rows; it takes its place when the block ends well, and is gone when it does not."""

    def __init__(self, path: Path, kind: type[Any]) -> None:
        self._path, self._kind = path, kind
        self._new = path.with_name(f".{path.name}.new")

    def __enter__(self) -> TableWriter:
        import pyarrow.parquet as pq

        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._waiting: list[dict[str, Any]] = []
        self._writer = pq.ParquetWriter(self._new, table_schema(self._kind))
        return self

    def write(self, rows: Sequence[Any]) -> None:
        """Add rows; they reach the disk in groups."""
        self._waiting += [as_row(row) for row in rows]
        if len(self._waiting) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(self._waiting, schema=table_schema(self._kind)))
        self._waiting = []

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        if kind is None:
            self._new.replace(self._path)
        else:
            self._new.unlink(missing_ok=True)


def _read_table(path: Path, kind: type[Row]) -> tuple[Row, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"{path}: no such table; run `paras2s data` first")
    try:
        table = pq.read_table(path)
        rows = table.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a parquet table ({one_line(error)}); run `paras2s data` again") from error
    version = (table.schema.metadata or {}).get(b"paras2s_schema", b"1").decode()
    if version != str(TABLE_VERSION):
        raise DataError(
            f"{path}: of schema {version}, this version reads {TABLE_VERSION}; run `paras2s data` into another folder"
        )
    names = {field.name for field in fields(kind)}
    if rows and set(rows[0]) != names:
        wrong = sorted(set(rows[0]) ^ names)
        raise DataError(f"{path}: columns {', '.join(wrong)} do not fit this version; run `paras2s data` again")
    for row in rows:
        if not isinstance(row.get("clip", ""), str):
            raise DataError(f"{path}: {row['clip']!r} is no clip's name; run `paras2s data` again")
    return tuple(kind(**row) for row in rows)


def save_dataset(
    folder: Path,
    *,
    queries: Sequence[Query],
    demonstrations: Sequence[Demonstration],
    candidates: Sequence[Candidate],
    clips: dict[str, Any],
    user_tone: ToneClassifier,
    agent_tone: ToneClassifier,
    hearing: dict[str, Any],
) -> Dataset:
    """Write everything; `clips` maps a path without suffix to something with `wav` bytes and a `percept`."""
    for name, one in clips.items():
        write_bytes(folder / f"{name}.wav", one.wav)
        write_bytes(folder / f"{name}.npz", one.percept.to_bytes())
    user_tone.save(folder / "tone_user.json")
    agent_tone.save(folder / "tone_agent.json")
    write_json(folder / "hearing.json", hearing)
    save_tables(folder, queries, demonstrations, candidates)
    return load_dataset(folder)


def save_tables(
    folder: Path, queries: Sequence[Query], demonstrations: Sequence[Demonstration], candidates: Sequence[Candidate]
) -> None:
    """Write the three tables, the queries last, as the sign that the dataset is whole."""
    _write_table(folder / "demonstrations.parquet", demonstrations, Demonstration)
    _write_table(folder / "candidates.parquet", candidates, Candidate)
    _write_table(folder / "queries.parquet", queries, Query)


def load_manifest(folder: Path) -> Manifest:
    """Read the tables of a dataset, whoever made it.

    Raises:
        DataError: a table is missing, broken or of another version, or a named clip is missing or outside.
    """
    queries = _read_table(folder / "queries.parquet", Query)
    demonstrations = _read_table(folder / "demonstrations.parquet", Demonstration)
    for relative in (*(query.clip for query in queries), *(one.clip for one in demonstrations)):
        inside(folder, relative)
    return Manifest(folder, queries, demonstrations, _read_table(folder / "candidates.parquet", Candidate))


def load_dataset(folder: Path) -> Dataset:
    """Read the dataset of a run.

    Raises:
        DataError: as `load_manifest`, or a classifier or the hearing check is missing.
    """
    found = load_manifest(folder)
    return Dataset(
        found.folder,
        found.queries,
        found.demonstrations,
        found.candidates,
        ToneClassifier.load(folder / "tone_user.json"),
        ToneClassifier.load(folder / "tone_agent.json"),
        read_json(folder / "hearing.json"),
    )
