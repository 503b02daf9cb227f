"""A second judge of a run's answers that taught nothing, and its agreement with the judge that did.

A policy that is paid by a judge can learn the judge. So every answer is scored again by the independent judge, from the same
clip, and a gain that only the teacher sees is flagged (after Gao et al., 2023: a proxy rises where the true score does not).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from paras2s.audio.clip import read_clip
from paras2s.bench.paras2s.judges import Answer, AnswerJudge
from paras2s.bench.paras2s.metrics import summary
from paras2s.bench.results import AnswerRow
from paras2s.bench.stats import paired_difference
from paras2s.bench.systems import Progress, Response, SpokenQuestion
from paras2s.errors import AudioError
from paras2s.statistics.means import CERTAIN_FROM
from paras2s.types import PastTurn, Query

Item = TypeVar("Item", Query, AnswerRow)
Histories = Mapping[str, tuple[PastTurn, ...]]
NO_HISTORIES: Histories = MappingProxyType({})


def judge_again(
    rows: Sequence[AnswerRow], root: Path, judge: AnswerJudge, on_progress: Progress, histories: Histories = NO_HISTORIES
) -> list[AnswerRow]:
    """Return the same rows under another judge, which hears the clips that the rows name below `root`."""
    judged = judge.judge_all(answers_of(rows, root, histories), on_progress)
    return [replace(row, **verdict.row_fields(row.text_stream, judge.name)) for row, verdict in zip(rows, judged, strict=True)]


def take_evenly(items: Sequence[Item], limit: int | None) -> list[Item]:
    """Return `limit` queries or rows at most, in their order: full contrasts, of each category in turn; None: all."""
    if limit is None or len(items) <= limit:
        return list(items)
    contrasts: dict[str, dict[str, list[int]]] = {}
    for index, item in enumerate(items):
        contrasts.setdefault(item.category or "", {}).setdefault(item.contrast_id, []).append(index)
    turns = zip_longest(*(list(own.values()) for own in contrasts.values()))
    taken = [index for turn in turns for indices in turn if indices is not None for index in indices]
    return [items[index] for index in sorted(taken[:limit])]


def answers_of(rows: Sequence[AnswerRow], root: Path, histories: Histories = NO_HISTORIES) -> list[Answer]:
    """Return the questions and answers of rows, whose clips are below `root`; `histories` are turns before questions, by id."""
    return [(_question(row, root, histories.get(row.query_id, ())), _response(row, root)) for row in rows]


def _question(row: AnswerRow, root: Path, history: tuple[PastTurn, ...]) -> SpokenQuestion:
    clip = root / row.question_clip
    return SpokenQuestion(row.query_id, clip, "", row.question_text, row.style, row.category, history)


def _response(row: AnswerRow, root: Path) -> Response:
    try:
        clip = read_clip(root / row.answer_clip)
    except AudioError as error:
        return Response(row.text_stream, failed=str(error))
    return Response(row.text_stream, clip)


def agreement(first: Sequence[AnswerRow], second: Sequence[AnswerRow]) -> dict[str, Any]:
    """Compare two judges' scores of the same `n` answers by shares and Pearson's correlation, None if a side is constant."""
    pairs = [(own.score, two.score) for own, two in zip(first, second, strict=True) if own.score and two.score]
    scores: np.ndarray = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    apart = np.abs(scores[:, 0] - scores[:, 1])
    varies = len(scores) > 1 and bool((scores.std(axis=0) > 0).all())
    return {
        "n": len(scores),
        "asked": len(first),
        "exact": float(np.mean(apart == 0)) if len(scores) else None,
        "within_one": float(np.mean(apart <= 1)) if len(scores) else None,
        "pearson": float(np.corrcoef(scores.T)[0, 1]) if varies else None,
    }


def compare_judges(first: Mapping[str, Sequence[AnswerRow]], second: Mapping[str, Sequence[AnswerRow]]) -> dict[str, Any]:
    """Return the second judge's summary of systems, agreement by system and over the policies, and whose gain is seen by whom.

    `only_teacher` is True where the teacher's gain of aligned over SFT is above 0 by its interval, and the other's is not.
    """
    policies = [name for name in ("sft", "aligned") if name in first]
    both = [[row for name in policies for row in side[name]] for side in (first, second)]
    report: dict[str, Any] = {
        "summary": summary(second),
        "agreement": {name: agreement(rows, second[name]) for name, rows in first.items()},
        "policies": agreement(*both) if policies else None,
        "only_teacher": None,
    }
    if len(policies) == 2:
        teacher, other = (_is_gain(side["aligned"], side["sft"]) for side in (first, second))
        report["only_teacher"] = teacher and not other
    return report


def _is_gain(treated: Sequence[AnswerRow], before: Sequence[AnswerRow]) -> bool:
    gain = paired_difference(treated, before).difference.estimate
    return gain.mean is not None and gain.standard_error is not None and gain.mean > CERTAIN_FROM * gain.standard_error


def describe_agreement(report: Mapping[str, Any], judge: str = "independent judge") -> list[str]:
    """Agreement of the judges on the policies' answers, and the warning, in a line each."""
    lines = []
    if (over := report["policies"]) is not None and over["n"]:
        pearson = "unknown (a side is constant)" if over["pearson"] is None else f"{over['pearson']:.3f}"
        lines.append(
            f"  {judge} and teacher agree on {100 * over['exact']:.0f} % of the policies' {over['n']} answers, "
            f"on {100 * over['within_one']:.0f} % within a point (Pearson {pearson})"
        )
    if report["only_teacher"]:
        lines.append(f"  WARNING: only the teacher sees a gain; by the {judge} it is within chance")
    return lines
