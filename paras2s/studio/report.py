"""Figures and answers of a run's report: the table of systems with errors and counts, and contrasts to listen to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from paras2s.bench.results import AnswerRow
from paras2s.bench.stats import contrast_metric, summarise
from paras2s.errors import DataError
from paras2s.statistics.means import Counted, Estimate
from paras2s.studio.folders import Folders
from paras2s.types import CATEGORIES, Category

MAX_CONTRASTS = 48
Systems = Mapping[str, Sequence[AnswerRow]]


@dataclass(frozen=True)
class Cell:
    """One number of the results table as text; `error` and `count` are empty where there is none."""

    value: str
    error: str
    count: str
    best: bool


@dataclass(frozen=True)
class Player:
    """The address of a clip, or the problem that is shown instead."""

    address: str
    problem: str = ""


def categories_of(rows: Sequence[AnswerRow]) -> list[Category]:
    """Return the categories of these rows, in the usual order."""
    present = {row.category for row in rows}
    return [category for category in CATEGORIES if category in present]


def columns_of(rows: Sequence[AnswerRow], independent: Systems | None) -> list[str]:
    """Return the heads of the table's columns."""
    second = ["independent judge"] if independent else []
    return ["overall", *second, *categories_of(rows), "told apart", "word errors", "length"]


def results_table(systems: Systems, independent: Systems | None) -> list[tuple[str, list[Cell]]]:
    """Return the cells of each system. `independent` are the same answers under a judge that taught nothing, as a column."""
    categories = categories_of([row for answers in systems.values() for row in answers])
    summaries = [summarise(answers) for answers in systems.values()]
    nothing = Counted(Estimate(None, None, 0, 0), 0)
    columns = [_column([summary.overall for summary in summaries], _two_digits, max)]
    if independent:
        columns.append(_column([summarise(independent.get(name, [])).overall for name in systems], _two_digits, max))
    for category in categories:
        columns.append(_column([summary.categories.get(category, nothing) for summary in summaries], _two_digits, max))
    columns.append(_column([contrast_metric(answers) for answers in systems.values()], _percent, max, "pairs"))
    columns.append(_column([summary.word_error_rate for summary in summaries], _percent, min))
    lengths = [Counted(summary.duration_s, summary.duration_s.n) for summary in summaries]
    columns.append(_column(lengths, _seconds, None))
    return [(name, [column[index] for column in columns]) for index, name in enumerate(systems)]


def _column(
    counted: Sequence[Counted],
    show: Callable[[float], str],
    best_of: Callable[[list[float]], float] | None,
    unit: str = "",
) -> list[Cell]:
    """Return the cells of one column; the best cells, as far as the digits shown tell, are marked."""
    means = [entry.estimate.mean for entry in counted if entry.estimate.mean is not None]
    best = show(best_of(means)) if best_of is not None and len(means) > 1 else None
    cells = []
    for entry in counted:
        mean, error, wilson = entry.estimate.mean, entry.estimate.standard_error, entry.wilson()
        spread = "" if error is None else f"± {show(error)}"
        value = "–" if mean is None else show(mean)
        cells.append(
            Cell(
                value=value,
                error=spread if wilson is None else f"({show(wilson[0])} to {show(wilson[1])})",
                count=f"{entry.estimate.n} of {entry.n_asked} {unit}".rstrip(),
                best=value == best,
            )
        )
    return cells


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def choose_contrasts(rows: Sequence[AnswerRow], limit: int = MAX_CONTRASTS) -> dict[str, Category]:
    """Return the first `limit` contrasts with their category, taken from the categories in turn, then listed by category."""
    category_of = {row.contrast_id: row.category for row in reversed(rows)}
    queues = [
        [key for key in dict.fromkeys(row.contrast_id for row in rows) if category_of[key] == category]
        for category in categories_of(rows)
    ]
    in_turn = [key for turn in zip_longest(*queues) for key in turn if key is not None]
    chosen = set(in_turn[:limit])
    return {key: category_of[key] for queue in queues for key in queue if key in chosen}


def card_of(contrast_id: str, systems: Systems, player: Callable[[str], Player]) -> dict[str, Any]:
    """Return a contrast with its questions and every system's answers to each."""
    mine = {name: [row for row in answers if row.contrast_id == contrast_id] for name, answers in systems.items()}
    questions = {row.query_id: row for answers in mine.values() for row in answers}
    return {
        "id": contrast_id,
        "category": next(iter(questions.values())).category,
        "questions": [
            {
                "row": question,
                "player": player(question.question_clip),
                "systems": [
                    (name, [_answer(row, player) for row in answers if row.query_id == query_id])
                    for name, answers in mine.items()
                ],
            }
            for query_id, question in questions.items()
        ],
    }


def _answer(row: AnswerRow, player: Callable[[str], Player]) -> dict[str, Any]:
    return {
        "row": row,
        "player": player(row.answer_clip),
        # Half a point rounds up, where Python's round would go to the even colour.
        "colour": None if row.score is None else math.floor(row.score + 0.5),
        "tone_share": row.tone_scores.get(row.tone) if row.tone is not None else None,
    }


def player_of(folders: Folders, run: Path, name: str) -> Player:
    """Return the address of a clip that a row of a run names."""
    try:
        root, below = folders.locate(run / name)
        path = folders.path(root, below)
    except DataError as error:
        return Player("", str(error))
    return Player(f"/clip?{urlencode({'run': root, 'name': below})}" if path.is_file() else "", f"clip missing: {name}")
