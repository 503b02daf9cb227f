"""Did it help: the sentence, the two policies side by side, what bounds them, and whether the reward agrees with the judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paras2s.bench.paras2s.gain import AFTER, BEFORE, BOUNDS, judge_gain, verdict_on_gain
from paras2s.bench.results import AnswerRow
from paras2s.bench.stats import SystemScores, contrast_metric, summarise
from paras2s.errors import DataError
from paras2s.statistics.means import Counted, Estimate
from paras2s.studio.answers import INDEPENDENT, Benched, Systems, contradicts
from paras2s.types import CATEGORIES

# A reward model whose scores share less than half of their variance with the judge's (r squared) is marked.
WEAK_CORRELATION = 0.7
NOTHING = Counted(Estimate(None, None, 0, 0), 0)


@dataclass(frozen=True)
class FigureCell:
    """A figure as text with its error and count; both are empty where there is none."""

    value: str
    error: str = ""
    count: str = ""


@dataclass(frozen=True)
class Measure:
    """A figure of the policies side by side; `change` is the paired difference, `outcome` what its interval says."""

    name: str
    cells: tuple[FigureCell, ...]
    change: FigureCell = FigureCell("")
    outcome: str = ""


@dataclass(frozen=True)
class SystemRow:
    """A baseline, a ceiling or another system: a line on what it is, its score by both judges, and contrasts told apart."""

    name: str
    says: str
    cells: tuple[FigureCell, ...]


@dataclass(frozen=True)
class TeacherAgreement:
    """The reward model against the judge: Pearson's r on `held_out` answers, contradictions among the policies' `scored`."""

    category: str
    pearson: float | None
    held_out: int
    contradictions: int
    scored: int

    @property
    def is_weak(self) -> bool:
        """Whether the two share less than half of their variance."""
        return self.pearson is not None and self.pearson < WEAK_CORRELATION


def overview_of(benched: Benched, agreement: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that the first screen of a run says of its bench; what cannot be reckoned is added to its problems."""
    own, independent = benched.by_folder.get("", {}), benched.by_folder.get(INDEPENDENT, {})
    values: dict[str, Any] = {
        "verdict": [],
        "outcome": None,
        "policies": [name for name in (BEFORE, AFTER) if name in own],
        "measures": [],
        "groups": [],
        "two_judges": bool(independent),
        "agreement": agreement_rows(own, agreement),
        "judges": benched.judges,
    }
    try:
        gain = verdict_on_gain({"rubric judge": own, "independent judge": independent})
        measures, groups = measures_of(own, independent), groups_of(own, independent)
    except DataError as error:
        benched.problems.append(str(error))
        return values
    sentence: dict[str, Any] = {"verdict": gain.lines(), "outcome": gain.outcome} if gain else {}
    return values | sentence | {"measures": measures, "groups": groups}


def measures_of(own: Systems, independent: Systems) -> list[Measure]:
    """Return the measures of the policies, before and after: scores with paired differences, then what they are made of."""
    names = [name for name in (BEFORE, AFTER) if own.get(name)]
    if not names:
        return []
    rows = [own[name] for name in names]
    summaries = [summarise(answers) for answers in rows]
    measures = [_scored("Score", rows)]
    if all(independent.get(name) for name in names):
        measures.append(_scored("Score, independent judge", [independent[name] for name in names]))
    categories = list(dict.fromkeys(category for summary in summaries for category in summary.categories))
    for category in categories if len(categories) > 1 else ():
        measures.append(_scored(category, [[row for row in answers if row.category == category] for answers in rows]))
    apart = [contrast_metric(answers) for answers in rows]
    errors = [summary.word_error_rate for summary in summaries]
    lengths = [Counted(summary.duration_s, summary.duration_s.n) for summary in summaries]
    measures.append(Measure("Contrasts told apart", tuple(_cell(counted, _percent, "pairs") for counted in apart)))
    measures.append(Measure("Word errors", tuple(_cell(counted, _percent) for counted in errors)))
    texts = tuple(_texts(summary, len(answers)) for summary, answers in zip(summaries, rows, strict=True))
    measures += [Measure("Different texts", texts), Measure("Length", tuple(_cell(counted, _seconds) for counted in lengths))]
    return measures


def _texts(summary: SystemScores, answers: int) -> FigureCell:
    share = summary.distinct_texts
    return FigureCell("–") if share is None else FigureCell(str(round(share * answers)), "", f"of {answers} answers")


def _scored(name: str, rows: Sequence[Sequence[AnswerRow]]) -> Measure:
    cells = tuple(_cell(summarise(answers).overall, _two_digits) for answers in rows)
    if len(rows) < 2:
        return Measure(name, cells)
    gain = judge_gain("", *rows)
    change = FigureCell("–") if gain.difference is None else FigureCell(f"{gain.difference:+.2f}")
    if gain.low is not None and gain.high is not None:
        change = FigureCell(change.value, f"{gain.low:+.2f} to {gain.high:+.2f}")
    return Measure(name, cells, change, gain.outcome if gain.outcome in ("better", "worse") else "")


def groups_of(own: Systems, independent: Systems) -> list[tuple[str, list[SystemRow]]]:
    """Return the systems beside the policies: baselines, ceilings, and others without a line, each group by its score."""
    known = {name: (title, says) for title, names in BOUNDS.items() for name, says in names.items()}
    groups: dict[str, list[tuple[float, SystemRow]]] = {title: [] for title in (*BOUNDS, "Other systems")}
    for name, answers in own.items():
        if name in (BEFORE, AFTER):
            continue
        title, says = known.get(name, ("Other systems", ""))
        overall = summarise(answers).overall
        second = [_cell(summarise(independent.get(name, [])).overall, _two_digits)] if independent else []
        cells = (_cell(overall, _two_digits), *second, _cell(contrast_metric(answers), _percent, "pairs"))
        groups[title].append((overall.estimate.mean or 0.0, SystemRow(name, says, cells)))
    return [(title, [row for _, row in sorted(rows, key=lambda scored: scored[0])]) for title, rows in groups.items() if rows]


def agreement_rows(own: Systems, agreement: Mapping[str, Any]) -> list[TeacherAgreement]:
    """Return the reward model's agreement with its judge over all and by category; [] where neither side is known."""
    by_category = agreement.get("held_out_by_category")
    held_out = {**(by_category if isinstance(by_category, dict) else {}), "all": agreement.get("held_out")}
    answers = [
        row for name in (BEFORE, AFTER) for row in own.get(name, ()) if row.score is not None and row.model_score is not None
    ]
    names = [name for name in (*CATEGORIES, *held_out) if name in held_out or any(row.category == name for row in answers)]
    table = []
    for name in dict.fromkeys(names):
        figures = held_out.get(name)
        figures = figures if isinstance(figures, dict) else {}
        mine = [row for row in answers if name in ("all", row.category)]
        pearson, n = figures.get("pearson"), figures.get("n")
        known = pearson if isinstance(pearson, int | float) else None
        if known is not None or mine:
            held = n if isinstance(n, int) else 0
            table.append(TeacherAgreement(name, known, held, sum(map(contradicts, mine)), len(mine)))
    return table


def _cell(counted: Counted, show: Callable[[float], str], unit: str = "") -> FigureCell:
    """Return a figure with its error, or Wilson's interval of a share of 0 or 100 %, and its count where some are missing."""
    mean, error, wilson = counted.estimate.mean, counted.estimate.standard_error, counted.wilson()
    spread = "" if error is None else f"± {show(error)}"
    return FigureCell(
        value="–" if mean is None else show(mean),
        error=spread if wilson is None else f"{show(wilson[0])} to {show(wilson[1])}",
        count="" if counted.estimate.n == counted.n_asked else f"{counted.estimate.n} of {counted.n_asked} {unit}".rstrip(),
    )


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
