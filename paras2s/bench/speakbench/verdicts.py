"""Recorded pair verdicts, one JSON object a line: a judge's verdict on each pair, or why there is none."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from paras2s.bench.made_from import MadeFrom
from paras2s.errors import DataError, first_problem
from paras2s.types import DIMENSIONS, Dimension, Label, PairVerdict, Unscored
from paras2s.utils.io import read_jsonl


class VerdictRow(BaseModel):
    """One pair's verdict. `labels` or the reason in `unscored`, never both; the rest may be missing in others' files."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    index: int
    labels: dict[Dimension, Label] | None = None
    unscored: str | None = None
    judge: str = "unknown"
    version: str = ""
    prompt_hash: str = ""
    reason: str = ""
    reply: str = ""
    consistent: bool | None = None
    text_in_tokens: int | None = None
    audio_in_tokens: int | None = None
    text_out_tokens: int | None = None
    cost_usd: float | None = None
    latency_s: float | None = None
    local_s: float | None = None
    cost_estimated: bool = False
    made_from: MadeFrom | None = None

    @model_validator(mode="after")
    def _check(self) -> VerdictRow:
        if (self.labels is None) == (self.unscored is None):
            raise ValueError("give either labels or the reason in 'unscored', and not both")
        if self.labels is not None and set(self.labels) != set(DIMENSIONS):
            raise ValueError(f"labels: expected one for each of {', '.join(DIMENSIONS)}")
        return self


def as_verdict_row(index: int, verdict: PairVerdict | Unscored, made_from: MadeFrom) -> dict[str, Any]:
    """A verdict as a line of the file."""
    if isinstance(verdict, Unscored):
        row = {"index": index, "judge": verdict.judge, "unscored": verdict.reason, "reply": verdict.reply}
    else:
        row = {"index": index, **asdict(verdict)}
    return {**row, "made_from": made_from.to_json()}


def load_verdicts(path: Path) -> dict[int, VerdictRow]:
    """Verdicts by the pair's index. A later row takes the place of an unscored one, as a run that was cut off leaves both.

    Raises:
        DataError: no file, a wrong row, or a pair with two verdicts; names the line.
    """
    rows: dict[int, VerdictRow] = {}
    for number, values in enumerate(read_jsonl(path), 1):
        try:
            row = VerdictRow.model_validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            raise DataError(f"{path}:{number}: {first_problem(error)}") from error
        if row.index in rows and rows[row.index].labels is not None:
            raise DataError(f"{path}:{number}: pair {row.index} is judged twice")
        rows[row.index] = row
    return rows
