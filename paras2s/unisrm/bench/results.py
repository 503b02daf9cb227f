"""Rows of `bench unisrm`, the only input of metrics and report: one judgement of one item under one condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict

from paras2s.bench.verdict_file import read_rows
from paras2s.errors import DataError
from paras2s.types import PairLabel
from paras2s.unisrm.bench.data import Condition, Sample
from paras2s.unisrm.reward.rewards import preferences
from paras2s.unisrm.reward.tasks import TASKS, PairRecord, Record, TaskId

Better = Literal["A", "B", "tie"]
LABELS: dict[str, Better] = {"1": "A", "2": "B", "tie": "tie"}


@dataclass(frozen=True)
class Judgement:
    """A judge's answer to a sample: the better candidate or the overall score; `dimensions`: sign of A less B, or scores."""

    better: Better | None = None
    overall: float | None = None
    dimensions: Mapping[str, float] = field(default_factory=dict)
    reply: str = ""


@dataclass(frozen=True)
class NoJudgement:
    """A sample without a judgement. `malformed` names the rule of the format that the reply breaks; "" for other reasons."""

    reason: str
    malformed: str = ""
    reply: str = ""


@dataclass(frozen=True)
class BenchRow:
    """A judgement as stored; a swapped pair's is turned back. Raises DataError: both or neither of judgement and reason."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    item: str
    task: TaskId
    condition: Condition
    judge: str
    version: str
    better: Better | None
    overall: float | None
    dimensions: dict[str, float]
    unscored: str | None
    malformed: str
    reply: str

    def __post_init__(self) -> None:
        if (self.better is None and self.overall is None) == (self.unscored is None):
            raise DataError("unscored: give either a judgement or the reason why there is none")

    @property
    def key(self) -> tuple[str, str]:
        """Key: item and condition."""
        return self.item, self.condition


def row_of(sample: Sample, judge: str, version: str, result: Judgement | NoJudgement) -> BenchRow:
    """Return the row of a judgement; one on exchanged candidates is turned back."""
    item, shared = sample.item, (judge, version)
    if isinstance(result, NoJudgement):
        return BenchRow(
            item.id, item.task, sample.condition, *shared, None, None, {}, result.reason, result.malformed, result.reply
        )
    turned = sample.condition == "swapped"
    better = {"A": "B", "B": "A", "tie": "tie"}[result.better] if turned and result.better else result.better
    dimensions = {key: -value if turned else value for key, value in result.dimensions.items()}
    return BenchRow(
        item.id, item.task, sample.condition, *shared, better, result.overall, dimensions, None, "", result.reply  # type: ignore[arg-type]
    )  # fmt: skip


def judgement_of(record: Record, task_id: TaskId, reply: str) -> Judgement:
    """Return the judgement of a parsed reply."""
    keys = TASKS[task_id].keys
    if isinstance(record, PairRecord):
        signs = () if record.sides is None else preferences(record)
        return Judgement(record.better, None, dict(zip(keys, map(float, signs), strict=bool(signs))), reply)
    return Judgement(None, record.scores[-1], dict(zip(keys, record.scores, strict=True)), reply)


def judgement_of_label(label: PairLabel, reply: str) -> Judgement:
    """Return the judgement of a judge that labels a pair, without dimensions."""
    return Judgement(LABELS[label], reply=reply)


def load_rows(path: Path) -> list[BenchRow]:
    """Read rows. Raises DataError: no file, or a wrong row; names file and line."""
    return [row for _, row in read_rows(path, BenchRow, "; run the benchmark again")]
