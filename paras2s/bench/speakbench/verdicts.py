"""Recorded pair verdicts, one JSON object a line: a judge's verdict on each pair, or why there is none."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from paras2s.bench.made_from import MadeFrom
from paras2s.bench.verdict_file import read_rows, rows_by_key
from paras2s.types import DIMENSIONS, Dimension, Label, PairVerdict, Unscored


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
    """Return a verdict as a line of the file."""
    if isinstance(verdict, Unscored):
        row = {"index": index, "judge": verdict.judge, "unscored": verdict.reason, "reply": verdict.reply}
    else:
        row = {"index": index, **asdict(verdict)}
    return {**row, "made_from": made_from.to_json()}


def load_verdicts(path: Path) -> dict[int, VerdictRow]:
    """Return verdicts by the pair's index, as `rows_by_key`. Raises DataError: no file, or a wrong row; names the line."""
    return rows_by_key(read_rows(path, VerdictRow), lambda row: row.index, lambda row: row.labels is not None, "pair")
