"""The answers that a run keeps as it learns, to be looked at and listened to afterwards (`paras2s studio`, `paras2s rollouts`).

A step is one Parquet file, `RUN/rollouts/step_000012.parquet`, a row an answer: its text, seed, reward by source or the reason
why it has none, its advantage, and its tokens with their log-probs. Sound is not kept: codes are, and give the same samples
whenever they are decoded. `index.jsonl` beside the files has a row a step, by which a query is found through training.

Left out: the KL of single tokens, which only the learner knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, FiniteFloat

from paras2s.errors import DataError, StorageError, one_line
from paras2s.train.advantages import Values
from paras2s.types import Block, Reward, Rollout, Unscored
from paras2s.utils.io import append_jsonl, drop_steps_from, read_jsonl, reading, write_bytes

FOLDER, INDEX = "rollouts", "index.jsonl"
VERSION = 1
# Columns that a list of answers needs; the others are read of one answer at a time.
LISTED = (
    "group", "answer", "query_id", "text", "seed", "policy_version", "finish_reason", "steps", "reward", "parts", "unscored",
    "advantage",
)  # fmt: skip
SCHEMA = pa.schema(
    [
        ("group", pa.int32()),
        ("answer", pa.int32()),
        ("query_id", pa.string()),
        ("text", pa.string()),
        ("seed", pa.int64()),
        ("policy_version", pa.int32()),
        ("finish_reason", pa.string()),
        ("steps", pa.int32()),
        ("reward", pa.float64()),
        ("parts", pa.map_(pa.string(), pa.float64())),
        ("unscored", pa.string()),
        ("advantage", pa.float64()),
        # Of each block: the number of steps and of slots. Tokens, log-probs and streams follow it, block after block.
        ("shape", pa.list_(pa.int32())),
        ("tokens", pa.list_(pa.int32())),
        # None: a token that was forced, not sampled.
        ("logprobs", pa.list_(pa.float32())),
        ("streams", pa.list_(pa.int8())),
        ("codes", pa.list_(pa.int32())),
        ("codebooks", pa.int32()),
    ]
)
Rewards = Sequence[Sequence[Reward | Unscored]]


@dataclass(frozen=True)
class KeptAnswer:
    """An answer of a step as it is listed: group b of B, answer g of G. `unscored` says why there is no reward.

    `steps` T is its length; `advantage` is None if nothing was learned from it.
    """

    group: int
    answer: int
    query_id: str
    text: str
    seed: int
    policy_version: int
    finish_reason: str
    steps: int
    reward: float | None
    parts: dict[str, float]
    unscored: str | None
    advantage: float | None


@dataclass(frozen=True)
class KeptTokens:
    """The tokens of an answer, a list a block of [T, S] arrays: `tokens`, `logprobs` (NaN: forced), `streams` (TEXT, AUDIO).

    `codes` [T, K] are those of the codec `code_format`.
    """

    tokens: tuple[np.ndarray, ...]
    logprobs: tuple[np.ndarray, ...]
    streams: tuple[np.ndarray, ...]
    slots: tuple[tuple[str, ...], ...]
    codes: np.ndarray
    code_format: str


@dataclass(frozen=True)
class IndexedGroup:
    """A group of a step in the index: mean and standard deviation of its rewards (None: none scored), answers unscored."""

    query_id: str
    mean: float | None
    spread: float | None
    unscored: int


class _IndexRow(BaseModel):
    """A line of the index: a step, and of each group the fields of an `IndexedGroup` in their order."""

    step: int
    groups: list[tuple[str, FiniteFloat | None, FiniteFloat | None, int]]


class RolloutKeeper:
    """Keeps every n-th step of a run. A disk that refuses ends the keeping and nothing else, with one warning."""

    def __init__(self, run_folder: Path, every: int, say: Callable[[str], None]) -> None:
        self.folder, self.every, self._say = run_folder / FOLDER, every, say
        self._refused = False

    def keep(self, step: int, rollouts: Sequence[Rollout], rewards: Rewards, advantages: Values) -> None:
        """Keep a step's rollouts [B], rewards and advantages [B, G], if its turn has come."""
        if self._refused or not self.every or step % self.every:
            return
        try:
            write_step(self.folder, step, rollouts, rewards, advantages)
        # Whatever a judge's reason or a disk holds: training goes on.
        except (StorageError, pa.ArrowException, ValueError) as error:
            self._refused = True
            self._say(f"  rollouts are not kept from step {step} on: {one_line(error)}")

    def discard_from(self, step: int) -> None:
        """Remove steps that are about to be done again; where that fails nothing more is kept."""
        try:
            for number, path in steps_kept(self.folder).items():
                if number >= step:
                    path.unlink(missing_ok=True)
            drop_steps_from(self.folder / INDEX, step)
        except (DataError, StorageError, OSError) as error:
            self._refused = True
            self._say(f"  rollouts are not kept from step {step} on: {one_line(error)}")


def step_path(folder: Path, step: int) -> Path:
    """Return the file of a step in the folder of rollouts."""
    return folder / f"step_{step:06d}.parquet"


def steps_kept(folder: Path) -> dict[int, Path]:
    """Return the files of the steps that are kept, in order."""
    steps = {int(number): path for path in folder.glob("step_*.parquet") if (number := path.stem[5:]).isdecimal()}
    return dict(sorted(steps.items()))


def write_step(folder: Path, step: int, rollouts: Sequence[Rollout], rewards: Rewards, advantages: Values) -> None:
    """Write a step's file, then its row of the index; advantage None: nothing was learned. Raises StorageError."""
    values = [[reward.value if isinstance(reward, Reward) else None for reward in row] for row in rewards]
    rows = [
        _row(group, answer, rollout, rewards[group][answer], advantages[group][answer])
        for group, rollout in enumerate(rollouts)
        for answer in range(rollout.size)
    ]
    first = rollouts[0]
    meta = {
        "version": str(VERSION),
        "code_format": first.code_format,
        "slots": json.dumps([block.slots for block in first.blocks]),
    }
    table = pa.Table.from_arrays([_column(rows, field) for field in SCHEMA], schema=SCHEMA.with_metadata(meta))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=["query_id", "text", "finish_reason", "unscored"])
    write_bytes(step_path(folder, step), sink.getvalue().to_pybytes())
    groups = [indexed(rollout.query_id, row) for rollout, row in zip(rollouts, values, strict=True)]
    append_jsonl(
        folder / INDEX,
        {"step": step, "groups": [[group.query_id, group.mean, group.spread, group.unscored] for group in groups]},
    )


def indexed(query_id: str, values: Sequence[float | None]) -> IndexedGroup:
    """Return a group's entry in the index."""
    scored = [value for value in values if value is not None]
    if not scored:
        return IndexedGroup(query_id, None, None, len(values))
    # The mean of equal numbers may be off by a rounding, and the spread then not 0.
    spread = 0.0 if min(scored) == max(scored) else pstdev(scored)
    return IndexedGroup(query_id, fmean(scored), spread, len(values) - len(scored))


def _row(group: int, answer: int, rollout: Rollout, reward: Reward | Unscored, advantage: float | None) -> dict[str, Any]:
    blocks = [_trimmed(block, answer) for block in rollout.blocks]
    codes = rollout.codes[answer]
    return {
        "group": group,
        "answer": answer,
        "query_id": rollout.query_id,
        "text": rollout.texts[answer],
        "seed": rollout.seeds[answer],
        "policy_version": rollout.policy_version,
        "finish_reason": rollout.finish_reason[answer],
        "steps": sum(len(tokens) for tokens, *_ in blocks),
        "reward": reward.value if isinstance(reward, Reward) else None,
        "parts": list(reward.parts.items()) if isinstance(reward, Reward) else [],
        "unscored": f"{reward.judge}: {reward.reason}" if isinstance(reward, Unscored) else None,
        "advantage": advantage,
        "shape": [size for tokens, *_ in blocks for size in tokens.shape],
        "tokens": _joined([tokens for tokens, *_ in blocks], np.int32),
        # NaN becomes null in the file.
        "logprobs": _joined([logp for _, logp, _ in blocks], np.float32),
        "streams": _joined([streams for *_, streams in blocks], np.int8),
        "codes": codes.reshape(-1).astype(np.int32),
        "codebooks": codes.shape[1] if codes.ndim == 2 else 0,
    }


def _column(rows: Sequence[dict[str, Any]], field: pa.Field) -> pa.Array:
    """Make a column of the rows; lists by their offsets, since a Python number for every token would take longer."""
    values = [row[field.name] for row in rows]
    if not pa.types.is_list(field.type):
        return pa.array(values, field.type)
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    flat = np.concatenate([np.asarray(value) for value in values])
    return pa.ListArray.from_arrays(offsets, pa.array(flat, field.type.value_type, from_pandas=True))


def _joined(parts: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([part.reshape(-1) for part in parts]).astype(dtype) if parts else np.zeros(0, dtype)


def _trimmed(block: Block, answer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens, log-probs (NaN: forced) and streams [T, S] of one answer, without the padding after its end."""
    sampled = block.sampled[answer]
    steps = int(np.flatnonzero(sampled.any(1)).max(initial=-1)) + 1
    logp = np.where(sampled, block.behaviour_logp[answer], np.nan)
    return block.tokens[answer, :steps], logp[:steps], np.asarray(block.streams)[answer, :steps]


# -- reading ----------------------------------------------------------------------------------------------------------


def open_step(path: Path) -> pq.ParquetFile:
    """Return the file of a step, columns unread. Raises DataError: no such file, broken, or of another version."""
    if not path.is_file():
        raise DataError(f"{path.name}: the answers of this step are not kept")
    with reading(path.name, "cannot be read", "; delete it to have it left out"):
        file = pq.ParquetFile(path)
    version = (file.schema_arrow.metadata or {}).get(b"version", b"").decode()
    if version != str(VERSION):
        raise DataError(
            f"{path.name}: is of version {version or 'none'} of the records of rollouts, this program reads {VERSION}"
        )
    if missing := [field.name for field in SCHEMA if field not in file.schema_arrow]:
        raise DataError(f"{path.name}: has no column {missing[0]}, or one of another type; delete it to have it left out")
    return file


def _read_columns(path: Path, columns: Sequence[str]) -> pa.Table:
    file = open_step(path)
    with reading(path.name, "cannot be read", "; delete it to have it left out"):
        return file.read(columns=list(columns))


def read_answers(path: Path) -> list[KeptAnswer]:
    """Return the answers of a step, group after group, without tokens. Raises DataError: missing, broken, another version."""
    return [KeptAnswer(**{**row, "parts": dict(row["parts"])}) for row in _read_columns(path, LISTED).to_pylist()]


def read_tokens(path: Path, group: int, answer: int) -> KeptTokens:
    """Return the tokens and codes of one answer. Raises DataError: no such file or answer, broken, or of another version."""
    return read_all_tokens(path, [(group, answer)])[0]


def read_all_tokens(path: Path, keys: Sequence[tuple[int, int]]) -> list[KeptTokens]:
    """Return tokens and codes of answers by group and number, in order. Raises DataError: no such answer, or a broken file."""
    # A filter of Parquet would read the same pages; a step is small.
    table = _read_columns(path, ("group", "answer", "shape", "tokens", "logprobs", "streams", "codes", "codebooks"))
    numbers = list(zip(table.column("group").to_pylist(), table.column("answer").to_pylist(), strict=True))
    if missing := [key for key in keys if key not in numbers]:
        raise DataError(f"{path.name}: has no answer {missing[0][1]} in group {missing[0][0]}")
    rows = table.take([numbers.index(key) for key in keys]).to_pylist()
    return [_tokens(row, table.schema.metadata) for row in rows]


def _tokens(row: dict[str, Any], meta: Mapping[bytes, bytes]) -> KeptTokens:
    shapes = list(zip(row["shape"][::2], row["shape"][1::2], strict=True))
    ends = np.cumsum([0, *(steps * slots for steps, slots in shapes)])
    columns = [np.array(row["tokens"]), np.array(row["logprobs"], dtype=np.float64), np.array(row["streams"])]
    parts = [
        tuple(column[ends[n] : ends[n + 1]].reshape(shape) for n, shape in enumerate(shapes)) for column in columns
    ]  # fmt: skip
    slots = tuple(tuple(names) for names in json.loads(meta[b"slots"]))
    codes = np.array(row["codes"], dtype=np.int64).reshape(-1, max(1, row["codebooks"]))
    return KeptTokens(parts[0], parts[1], parts[2], slots, codes, meta[b"code_format"].decode())


def read_codes(path: Path) -> tuple[list[np.ndarray], str]:
    """Return codes [T, K] of a step's answers, ordered as by `read_answers`, and their codec. Raises DataError: broken."""
    table = _read_columns(path, ("codes", "codebooks"))
    codes = [np.array(row["codes"], dtype=np.int64).reshape(-1, max(1, row["codebooks"])) for row in table.to_pylist()]
    return codes, table.schema.metadata[b"code_format"].decode()


def read_index(folder: Path, newest: int | None = None) -> dict[int, list[IndexedGroup]]:
    """Return the groups of the kept steps, or of the `newest`, by step; {} without any. Raises DataError: a broken index."""
    path = folder / INDEX
    if not path.is_file():
        return {}
    with reading(INDEX, "holds another kind of rows"):
        rows = [_IndexRow.model_validate(row) for row in read_jsonl(path, newest)]
    return dict(sorted((row.step, [IndexedGroup(*group) for group in row.groups]) for row in rows))


def step_summary(step: int, groups: Sequence[IndexedGroup]) -> dict[str, Any]:
    """Summarise a step: mean reward, widest standard deviation, groups without spread, unscored answers; None is not known."""
    means = [group.mean for group in groups if group.mean is not None]
    spreads = [group.spread for group in groups if group.spread is not None]
    return {
        "step": step,
        "groups": len(groups),
        "mean": fmean(means) if means else None,
        "widest": max(spreads, default=None),
        "flat": sum(spread == 0 for spread in spreads),
        "unscored": sum(group.unscored for group in groups),
    }
