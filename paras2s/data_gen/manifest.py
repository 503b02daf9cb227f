"""A dataset on disk: three tables (parquet), clips with their percepts, two tone classifiers, the hearing check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from paras2s.audio import Clip, read_clip
from paras2s.errors import DataError, one_line
from paras2s.policy.codec import Codec
from paras2s.policy.perception import Percept, perceive
from paras2s.records import Candidate, Demonstration, Query, Role, as_row
from paras2s.reward.tone import ToneClassifier
from paras2s.storage import read_json, write_bytes, write_json

Row = TypeVar("Row", Query, Demonstration, Candidate)


@dataclass(frozen=True)
class Dataset:
    """What the data stage made. Clips are read when asked for."""

    folder: Path
    queries: tuple[Query, ...]
    demonstrations: tuple[Demonstration, ...]
    candidates: tuple[Candidate, ...]
    user_tone: ToneClassifier
    agent_tone: ToneClassifier
    hearing: dict[str, Any]

    def of_role(self, role: Role) -> list[Query]:
        """Queries of one role, in the order of the manifest."""
        return [query for query in self.queries if query.role == role]

    def clip(self, relative: str) -> Clip:
        """A clip named in the manifest.

        Raises:
            DataError: the name leaves the data folder, or there is no such file. AudioError: it cannot be decoded.
        """
        return read_clip(inside(self.folder, relative))

    def percept(self, relative: str, codec: Codec) -> Percept:
        """Codes and prosody of a clip: from the file beside it, else made from the waveform."""
        path = inside(self.folder, relative)
        beside = path.with_suffix(".npz")
        if beside.is_file():
            return Percept.from_bytes(beside.read_bytes(), str(beside))
        return perceive(read_clip(path), codec)


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


def _write_table(path: Path, rows: Sequence[Row]) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([as_row(row) for row in rows]), buffer)
    write_bytes(path, buffer.getvalue())


def _read_table(path: Path, kind: type[Row]) -> tuple[Row, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"{path}: no such table; run `paras2s data` first")
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a parquet table ({one_line(error)}); run `paras2s data` again") from error
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
    _write_table(folder / "demonstrations.parquet", demonstrations)
    _write_table(folder / "candidates.parquet", candidates)
    # Last, as the sign that the dataset is whole.
    _write_table(folder / "queries.parquet", queries)
    return load_dataset(folder)


def load_dataset(folder: Path) -> Dataset:
    """Read a dataset.

    Raises:
        DataError: a table is missing, broken or of another version, or a named clip is missing or outside.
    """
    queries = _read_table(folder / "queries.parquet", Query)
    demonstrations = _read_table(folder / "demonstrations.parquet", Demonstration)
    for relative in (*(query.clip for query in queries), *(one.clip for one in demonstrations)):
        inside(folder, relative)
    return Dataset(
        folder,
        queries,
        demonstrations,
        _read_table(folder / "candidates.parquet", Candidate),
        ToneClassifier.load(folder / "tone_user.json"),
        ToneClassifier.load(folder / "tone_agent.json"),
        read_json(folder / "hearing.json"),
    )
