"""Answers with their scores in one file: a reward model's training answers, so that it can be trained again on more.

The file is NumPy's: the codes of all answers one after another, and a row of JSON for each.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paras2s.errors import DataError
from paras2s.reward.reward_model.teachers import Scores
from paras2s.types import Unscored
from paras2s.utils.io import parse_json, reading, write_bytes

VERSION = 1
# In the folder of the reward model.
LEARNED_FILE = "learned.npz"
# Parts of a reward model's answers: answers and degenerate ones to learn from, and answers that are kept out, with
# the policy's own codes and with those that their sound is coded into.
LEARNED, DEGENERATE, KEPT_OUT, KEPT_OUT_AGAIN = "learned", "degenerate", "kept out", "kept out, coded again"


@dataclass(frozen=True)
class AnswerRow:
    """An answer's codes [T, K] of the embedded codec, and its scores by name or why none; `query_id` None: no query's."""

    part: str
    query_id: str | None
    codes: np.ndarray
    scores: Scores | Unscored


@dataclass(frozen=True)
class AnswerFile:
    """Answers in their order, and the queries that a reward model is asked with, in theirs."""

    queries: tuple[str, ...]
    answers: tuple[AnswerRow, ...]

    def of(self, part: str) -> list[AnswerRow]:
        """Return the answers of one part."""
        return [row for row in self.answers if row.part == part]


def write_answers(path: Path, answers: Sequence[AnswerRow], queries: Sequence[str] = ()) -> None:
    """Write the file in one step. Raises StorageError: the disk refused."""
    rows = [
        {"part": answer.part, "query_id": answer.query_id}
        | ({"unscored": vars(answer.scores)} if isinstance(answer.scores, Unscored) else {"scores": answer.scores})
        for answer in answers
    ]
    described = json.dumps({"version": VERSION, "queries": list(queries), "rows": rows}, allow_nan=False)
    width = max((answer.codes.shape[1] for answer in answers if len(answer.codes)), default=1)
    flat = np.concatenate(
        [np.zeros((0, width), np.int16), *(answer.codes.astype(np.int16) for answer in answers if len(answer.codes))]
    )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, described=np.array(described), steps=[len(answer.codes) for answer in answers], codes=flat)
    write_bytes(path, buffer.getvalue())


def read_answers(path: Path) -> AnswerFile:
    """Read what `write_answers` wrote. Raises DataError: missing, broken, or of another version."""
    with reading(path, "cannot be read", "; run the stage that writes it again"), np.load(path) as held:
        described = parse_json(str(held["described"]), path)
        if described["version"] != VERSION:
            raise DataError(f"{path}: is of version {described['version']} of answers, this program reads {VERSION}")
        ends = np.cumsum(held["steps"], dtype=np.int64)
        codes = np.split(held["codes"].astype(np.int64), ends)[: len(ends)]
        answers = tuple(
            AnswerRow(
                row["part"], row["query_id"], answer_codes, row["scores"] if "scores" in row else Unscored(**row["unscored"])
            )
            for row, answer_codes in zip(described["rows"], codes, strict=True)
        )  # fmt: skip
        return AnswerFile(tuple(described["queries"]), answers)
