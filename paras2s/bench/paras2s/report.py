"""One static page that shows a whole run: scores with errors, training curves, and every answer to listen to.

Nothing is loaded from elsewhere and every word on the page is escaped: questions and answers were written by models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from paras2s.audio.clip import read_clip
from paras2s.bench.players import Player, player_of
from paras2s.bench.plots.base import svg_of
from paras2s.bench.plots.curves import Curves
from paras2s.bench.results import AnswerRow
from paras2s.bench.stats import contrast_metric, paired_difference, summarise
from paras2s.errors import AudioError, DataError
from paras2s.statistics.means import Counted, Estimate
from paras2s.types import CATEGORIES, Category
from paras2s.utils.html import page_template
from paras2s.utils.io import path_inside, write_text

TREATED, BASELINE = "aligned", "sft"


@dataclass(frozen=True)
class Cell:
    """One number of the results table as text; `error` and `count` are empty where there is none."""

    value: str
    error: str
    count: str
    best: bool


@dataclass(frozen=True)
class PanelSpec:
    """One training panel: metric keys with their labels, and the key of a spread around the first line."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    spread: str | None = None


PANELS = (
    PanelSpec(
        "Reward",
        "mean, and one standard deviation around it",
        (("reward_mean", "reward"), ("validation_reward", "validation queries")),
        "reward_std",
    ),
    PanelSpec("KL to the reference policy", "nats", (("kl_text", "text"), ("kl_audio", "audio"))),
    PanelSpec("Answer length", "steps", (("length_steps", "length"),)),
    PanelSpec(
        "Parity",
        "largest log-probability difference of sampler and learner",
        (("parity_text_max", "text"), ("parity_audio_max", "audio")),
    ),
    PanelSpec("Without a signal", "count a step", (("zero_spread_groups", "groups without spread"), ("unscored", "unscored"))),
)


def write_report(
    path: Path,
    *,
    title: str,
    subtitle: str,
    facts: list[tuple[str, str]],
    systems: dict[str, list[AnswerRow]],
    metrics: list[dict[str, Any]],
    run_dir: Path,
    notes: list[str],
    independent: Mapping[str, Sequence[AnswerRow]] | None = None,
    played: Collection[str] | None = None,
    max_contrasts: int = 48,
) -> None:
    """Write the page. `systems` maps a name to its rows, in the order to show; `metrics` has one row a training step.

    `independent` are the same answers under a judge that taught nothing, for a column beside the teacher's scores and a gain of
    its own. `played` are the systems whose answers are on the cards; all by default.
    Clips are read from `run_dir` and embedded; a clip that is missing or unreadable is named on its card. At most
    `max_contrasts` contrasts are shown, taken from the categories in turn; numbers are always over all rows.

    Raises:
        DataError: a clip's path leaves `run_dir`, or `contrast_metric` refused the rows.
        StorageError: the disk refused.
    """
    rows = [row for answers in systems.values() for row in answers]
    chosen = _choose_contrasts(rows, max_contrasts)
    shown = {name: answers for name, answers in systems.items() if played is None or name in played}
    page = page_template(Path(__file__).with_name("report.html.j2")).render(
        title=title,
        subtitle=subtitle,
        facts=facts,
        notes=notes,
        columns=_columns(rows, independent),
        table=_results_table(systems, independent),
        judges=sorted({row.judge for row in rows}),
        gain=_gain(systems),
        second_gain=_gain(independent or {}),
        panels=[panel for spec in PANELS if (panel := _panel(spec, metrics)) is not None],
        cards=[_card(contrast_id, shown, run_dir) for contrast_id in chosen],
        categories=[category for category in _categories(rows) if any(chosen[key] == category for key in chosen)],
        n_contrasts=len({row.contrast_id for row in rows}),
    )
    write_text(path, page)


def _categories(rows: Sequence[AnswerRow]) -> list[Category]:
    present = {row.category for row in rows}
    return [category for category in CATEGORIES if category in present]


def _columns(rows: Sequence[AnswerRow], independent: Mapping[str, Sequence[AnswerRow]] | None) -> list[str]:
    second = ["independent judge"] if independent else []
    return ["overall", *second, *_categories(rows), "told apart", "word errors", "length"]


def _results_table(
    systems: Mapping[str, Sequence[AnswerRow]], independent: Mapping[str, Sequence[AnswerRow]] | None
) -> list[tuple[str, list[Cell]]]:
    categories = _categories([row for answers in systems.values() for row in answers])
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
    """Cells of one column; the best ones, as far as the digits shown tell, are marked."""
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


def _gain(systems: Mapping[str, Sequence[AnswerRow]]) -> dict[str, str] | None:
    if TREATED not in systems or BASELINE not in systems:
        return None
    gain = paired_difference(systems[TREATED], systems[BASELINE])
    estimate = gain.difference.estimate
    if estimate.mean is None or gain.relative_percent is None:
        return None
    return {
        "treated": TREATED,
        "baseline": BASELINE,
        "value": f"{estimate.mean:+.2f}",
        "error": "" if estimate.standard_error is None else f"± {estimate.standard_error:.2f}",
        "relative": f"{gain.relative_percent:+.1f}%",
        "count": f"{estimate.n} of {gain.difference.n_asked} questions in {estimate.clusters} contrasts",
    }


def _choose_contrasts(rows: Sequence[AnswerRow], limit: int) -> dict[str, Category]:
    """The first `limit` contrasts with their category, taken from the categories in turn, then listed by category."""
    category_of = {row.contrast_id: row.category for row in reversed(rows)}
    queues = [
        [key for key in dict.fromkeys(row.contrast_id for row in rows) if category_of[key] == category]
        for category in _categories(rows)
    ]
    in_turn = [key for turn in zip_longest(*queues) for key in turn if key is not None]
    chosen = set(in_turn[:limit])
    return {key: category_of[key] for queue in queues for key in queue if key in chosen}


def _card(contrast_id: str, systems: Mapping[str, Sequence[AnswerRow]], run_dir: Path) -> dict[str, Any]:
    mine = {name: [row for row in answers if row.contrast_id == contrast_id] for name, answers in systems.items()}
    questions = {row.query_id: row for answers in mine.values() for row in answers}
    return {
        "id": contrast_id,
        "category": next(iter(questions.values())).category,
        "questions": [
            {
                "row": question,
                "player": _player(run_dir, question.question_clip),
                "systems": [
                    (name, [_answer(row, run_dir) for row in answers if row.query_id == query_id])
                    for name, answers in mine.items()
                ],
            }
            for query_id, question in questions.items()
        ],
    }


def _answer(row: AnswerRow, run_dir: Path) -> dict[str, Any]:
    return {
        "row": row,
        "player": _player(run_dir, row.answer_clip),
        # Half a point rounds up, where Python's round would go to the even colour.
        "colour": None if row.score is None else math.floor(row.score + 0.5),
        "tone_share": row.tone_scores.get(row.tone) if row.tone is not None else None,
    }


def _player(run_dir: Path, relative: str) -> Player:
    path = path_inside(run_dir, relative)
    if path is None:
        raise DataError(f"{relative}: clip lies outside the run folder {run_dir}; give a path below it")
    if not path.is_file():
        return Player(None, f"clip missing: {relative}")
    try:
        return player_of(read_clip(path.read_bytes()))
    except AudioError as error:
        return Player(None, f"{relative}: {error}")


def _number(row: Mapping[str, Any], key: str | None) -> float | None:
    value = row.get(key) if key is not None else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _panel(spec: PanelSpec, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """One panel for the page, or None if no row holds any of its values."""
    # Rows without a step number stand at their place in the log.
    steps = [float(place) if (step := _number(row, "step")) is None else step for place, row in enumerate(metrics)]
    lines = [(label, [_number(row, key) for row in metrics]) for key, label in spec.lines]
    lines = [(label, values) for label, values in lines if any(value is not None for value in values)]
    if not lines:
        return None
    legend = []
    for label, values in lines:
        known = [value for value in values if value is not None]
        legend.append((label, f"{known[0]:.3g} → {known[-1]:.3g}"))
    description = f"{spec.title} by step. " + "; ".join(f"{label} {span}" for label, span in legend)
    spread = [_number(row, spec.spread) for row in metrics]
    svg = svg_of([Curves(steps, [values for _, values in lines], spread)], description)
    return {"title": spec.title, "unit": spec.unit, "legend": legend, "svg": svg}
