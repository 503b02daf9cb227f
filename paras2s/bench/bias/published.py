"""Shares that AudioJudge prints of its judges' biases (Figs. 3 to 6), as data, to compare with those measured here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

FILE = Path(__file__).with_name("published.yaml")


class PublishedRow(BaseModel):
    """Shares of one group of one judge on one suite of data, in per cent; of other labels the paper prints none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: str
    task: str
    group: tuple[str, ...]
    shares: dict[str, float]


class PublishedFigure(BaseModel):
    """One figure: where it is printed, how it was measured there, and the probe here that measures the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    figure: str
    note: str
    probe: str
    rows: tuple[PublishedRow, ...]

    def share(self, judge: str, task: str, group: tuple[str, ...], label: str) -> float | None:
        """Return the share, from 0 to 1, of a label in a group of a judge on the same data; None if none is printed."""
        for row in self.rows:
            if (row.judge, row.task, row.group) == (judge, task, group) and label in row.shares:
                return row.shares[label] / 100
        return None


@cache
def published_figures() -> tuple[PublishedFigure, ...]:
    """Return every figure of the file, in its order."""
    adapter = TypeAdapter(tuple[PublishedFigure, ...])
    return adapter.validate_python(yaml.safe_load(FILE.read_text(encoding="utf-8")))
