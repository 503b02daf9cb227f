"""`paras2s rollouts`: the kept rollouts of a run as one table, for notebooks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from paras2s.errors import ConfigError, DataError, StorageError, one_line
from paras2s.rollout.store import FOLDER, open_step, read_index, step_summary, steps_kept
from paras2s.utils.io import reading

SUFFIXES = (".parquet", ".csv")
# Lists, which a CSV file cannot hold.
LISTS = ("shape", "tokens", "logprobs", "streams", "codes")


def list_steps(run_folder: Path) -> list[dict[str, Any]]:
    """Return a row for each kept step. Raises DataError: the run kept none, or its index is broken."""
    index = read_index(run_folder / FOLDER)
    return [step_summary(step, index.get(step, ())) for step in kept(run_folder)]


def kept(run_folder: Path) -> dict[int, Path]:
    """Return the files of a run's kept steps. Raises DataError: there is none."""
    steps = steps_kept(run_folder / FOLDER)
    if not steps:
        raise DataError(f"{run_folder / FOLDER}: no rollouts are kept; align.keep_rollouts_every says which steps are")
    return steps


def export_rollouts(run_folder: Path, step: int | None, out: Path) -> int:
    """Write the answers of one step or of all, a row an answer, with the question's words; return their number.

    The reward of each source has a column, `reward/NAME`. A CSV file has no tokens.

    Raises:
        ConfigError: an ending that is neither .parquet nor .csv, or a step that is not kept.
        DataError: a broken file. StorageError: the disk refused.
    """
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out {out}: give a file that ends in {' or '.join(SUFFIXES)}")
    files = kept(run_folder)
    if step is not None and step not in files:
        raise ConfigError(f"--step {step}: is not kept; the kept steps are {min(files)} to {max(files)}")
    chosen = files if step is None else {step: files[step]}
    questions = _questions(run_folder)
    try:
        names = sorted({name for path in chosen.values() for name in _sources(path)})
        return _write(chosen, names, questions, out)
    except pa.ArrowException as error:
        raise DataError(f"{run_folder / FOLDER}: {one_line(error)}") from error
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}") from error


def read_rollouts(run_folder: Path) -> list[dict[str, Any]]:
    """Return the kept answers of all steps, a row an answer as `export_rollouts` writes them, without tokens.

    Raises:
        DataError: none is kept, or a broken file.
    """
    files, questions = kept(run_folder), _questions(run_folder)
    try:
        names = sorted({name for path in files.values() for name in _sources(path)})
        tables = [_without_lists(_table(step, path, names, questions)) for step, path in files.items()]
    except pa.ArrowException as error:
        raise DataError(f"{run_folder / FOLDER}: {one_line(error)}") from error
    return [row for table in tables for row in table.to_pylist()]


def _without_lists(table: pa.Table) -> pa.Table:
    return table.drop_columns([name for name in LISTS if name in table.column_names])


def _write(files: dict[int, Path], names: Sequence[str], questions: dict[str, str], out: Path) -> int:
    temporary, count, writer = out.with_name(f".{out.name}"), 0, None
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for step, path in files.items():
            table = _table(step, path, names, questions)
            if out.suffix == ".csv":
                table = _without_lists(table)
            if writer is None:
                make = pyarrow.csv.CSVWriter if out.suffix == ".csv" else pq.ParquetWriter
                writer = make(temporary, table.schema)
            writer.write_table(table)
            count += table.num_rows
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        if writer is not None:
            writer.close()
    os.replace(temporary, out)
    return count


def _table(step: int, path: Path, names: Sequence[str], questions: dict[str, str]) -> pa.Table:
    table = open_step(path).read().replace_schema_metadata(None)
    parts = table.column("parts").combine_chunks()
    words = pa.array([questions.get(name) for name in table.column("query_id").to_pylist()], pa.string())
    table = table.drop_columns(["parts"]).add_column(0, "step", pa.array([step] * table.num_rows, pa.int32()))
    table = table.append_column("question", words)
    for name in names:
        table = table.append_column(f"reward/{name}", pc.map_lookup(parts, name, "first"))
    return table


def _sources(path: Path) -> set[str]:
    rows = open_step(path).read(columns=["parts"]).column("parts").to_pylist()
    return {name for row in rows for name, _ in row}


def _questions(run_folder: Path) -> dict[str, str]:
    """Return the words of the run's queries; {} if its data is missing."""
    path = run_folder / "data" / "queries.parquet"
    if not path.is_file():
        return {}
    with reading(path):
        rows = pq.read_table(path, columns=["id", "transcript"]).to_pylist()
    return {row["id"]: row["transcript"] for row in rows}
