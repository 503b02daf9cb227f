"""Scores of systems: ParaS2SBench's table by set (Table 2), and the summary of a run's own systems by category.

The overall average is the mean over all sets, each counting once: so it is in the paper's rows, but for that of Kimi-Audio
GRPO, whose six sets average 4.347 where 4.382 is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from paras2s.bench.human_correlation import AnswerKey
from paras2s.bench.results import AnswerRow
from paras2s.bench.stats import contrast_metric, paired_difference, summarise
from paras2s.data_gen.corpora import CORPORA
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.statistics.means import Counted, Estimate, clustered_mean, mean_of_means
from paras2s.types import Unscored
from paras2s.utils.tables import Table, number_text, span

# The order of the paper's columns (Table 2).
PAPER_SETS = ("age", "emotion", "gender", "sarcasm", "iemocap", "meld")


def table_2(systems: Mapping[str, Sequence[AnswerRow]]) -> dict[str, Any]:
    """Return a row a system: sets; synthetic, real and overall averages; contrasts told apart; word errors; all with n."""
    table = {}
    for name, rows in systems.items():
        scores = summarise(rows)
        real = [score for category, score in scores.categories.items() if category in CORPORA]
        synthetic = [score for category, score in scores.categories.items() if category not in CORPORA]
        table[name] = {
            "sets": {category: score.to_json() for category, score in scores.categories.items()},
            "synthetic": _average(synthetic).to_json(),
            "real": _average(real).to_json(),
            "average": scores.overall.to_json(),
            "contrast": contrast_metric([row for row in rows if row.category not in CORPORA]).to_json(),
            "word_error_rate": scores.word_error_rate.to_json(),
            "judges": sorted({row.judge for row in rows if row.judge}),
        }
    return table


def _average(sets: Sequence[Counted]) -> Counted:
    if not sets:
        return Counted(Estimate(None, None, 0, 0), 0)
    return Counted(mean_of_means([score.estimate for score in sets]), sum(score.n_asked for score in sets))


def summary(systems: Mapping[str, Sequence[AnswerRow]]) -> dict[str, Any]:
    """Return scores of a run's systems as plain JSON, and the gain of the aligned policy over its warm-up."""
    table: dict[str, Any] = {}
    for system, rows in systems.items():
        scores = summarise(rows)
        table[system] = {
            "overall": scores.overall.to_json(),
            "categories": {name: score.to_json() for name, score in scores.categories.items()},
            "word_error_rate": scores.word_error_rate.to_json(),
            "duration_s": scores.duration_s.mean,
            "contrast": contrast_metric(rows).to_json(),
            "parts": {name: score.to_json() for name, score in scores.parts.items()},
            "distinct_texts": scores.distinct_texts,
            "judge": rows[0].judge if rows else None,
        }
    if "sft" in systems and "aligned" in systems:
        gain = paired_difference(systems["aligned"], systems["sft"])
        table["aligned_over_sft"] = {**gain.difference.to_json(), "relative_percent": gain.relative_percent}
    return table


@dataclass(frozen=True)
class KindRow:
    """The fields of an `AnswerRow` that `spoken_kinds` reads, for answers that have no such row."""

    question_text: str
    style: str
    text_stream: str
    parts: Mapping[str, float]
    family: str | None
    contrast_id: str


@dataclass(frozen=True)
class SpokenKinds:
    """The kind of answers by their text streams and by their sound, 1 to 5, and the share that is garbled.

    `gap` is text less sound, answer by answer; an answer is garbled where no kind is recognised in its sound.
    """

    text: Counted
    sound: Counted
    gap: Counted
    garbled: Counted

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {field.name: getattr(self, field.name).to_json() for field in fields(self)}


def spoken_kinds(rows: Sequence[AnswerRow | KindRow], rubric: RubricJudge) -> SpokenKinds:
    """Compare the kind of answers in their text streams and in their sound; rows of judges without a kind are left out."""
    pairs = [
        (text, row.parts["kind"], row.family is None, row.contrast_id)
        for row in rows
        if "kind" in row.parts and (text := rubric.kind_of_words(row.question_text, row.style, row.text_stream)) is not None
    ]
    clusters = [cluster for *_, cluster in pairs]

    def counted(values: Sequence[float], full: float | None = None) -> Counted:
        return Counted(clustered_mean(values, clusters), len(rows), full)

    return SpokenKinds(
        counted([text for text, *_ in pairs]),
        counted([sound for _, sound, *_ in pairs]),
        counted([text - sound for text, sound, *_ in pairs]),
        counted([float(garbled) for _, _, garbled, _ in pairs], 1.0),
    )


def automatic_scores(systems: Mapping[str, Sequence[AnswerRow]]) -> dict[AnswerKey, float | Unscored]:
    """Return a score for each answer, to be set against people's ratings; an id is the query's, with the answer's number."""
    scores: dict[AnswerKey, float | Unscored] = {}
    for name, rows in systems.items():
        several = any(row.answer_index for row in rows)
        for row in rows:
            key = AnswerKey(f"{row.query_id}-{row.answer_index}" if several else row.query_id, name, row.category)
            scores[key] = Unscored("", row.unscored or "") if row.score is None else row.score
    return scores


def cell(figure: Mapping[str, Any], factor: float = 1.0, digits: int = 2) -> str:
    """Return the mean and standard error, and how many are scored where some are not; a dash where there is no mean.

    A share of 0 or 100 %, whose standard error is 0 whatever n is, has Wilson's interval in its place.
    """
    missing = figure["n_asked"] - figure["n_scored"]
    note = f" ({figure['n_scored']} of {figure['n_asked']} scored)" if missing else ""
    error = "" if figure["mean"] is None else error_text(figure, factor, digits)
    return number_text(figure["mean"], digits, scale=factor) + error + note


def error_text(figure: Mapping[str, Any], factor: float = 1.0, digits: int = 2) -> str:
    """Return the standard error, or Wilson's interval of a share of 0 or 100 %; "" where there is neither."""
    if (ends := figure.get("wilson")) is not None:
        return f" ({span(ends[0], ends[1], digits, scale=factor)})"
    return "" if figure["standard_error"] is None else f" ± {number_text(figure['standard_error'], digits, scale=factor)}"


def columns(table: Mapping[str, Any]) -> list[str]:
    """Return the sets in the paper's order, then others."""
    sets = {name for row in table.values() for name in row["sets"]}
    return [*(name for name in PAPER_SETS if name in sets), *sorted(sets - set(PAPER_SETS))]


def markdown(table: Mapping[str, Any]) -> str:
    """Return the table for a page."""
    sets = columns(table)
    real = any(name in CORPORA for name in sets)
    averages = ["synthetic", "real", "average"] if real else ["average"]
    knowledge = ["still knows, of 100"] if any("voicebench" in row for row in table.values()) else []
    # Only a judge that names the kind of an answer can say that two answers are of different kinds.
    apart = ["told apart, %"] if any(row["contrast"]["n_scored"] for row in table.values()) else []
    head = ["system", *sets, *averages, *apart, "word errors, %", *knowledge]
    rows = []
    empty = {"mean": None, "standard_error": None, "n_scored": 0, "n_asked": 0}
    for name, row in table.items():
        cells = [*(cell(row["sets"].get(name, empty)) for name in sets), *(cell(row[name]) for name in averages)]
        cells += [cell(row["contrast"], 100, 0) for _ in apart]
        cells += [cell(row["word_error_rate"], 100, 1)]
        cells += [cell(row.get("voicebench", empty), 1, 1) for _ in knowledge]
        rows.append((name, *cells))
    return Table(head, rows).markdown() + "\n"
