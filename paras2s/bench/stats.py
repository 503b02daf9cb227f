"""Figures of systems' judged answers, with standard errors. Pure functions: rows in, numbers out.

Answers to one contrast share their words, so they are not independent: every standard error is clustered by contrast.
Answers without a score are left out of a mean and counted beside it; they are never a 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from paras2s.audio.asr import normalise_words
from paras2s.bench.results import AnswerRow
from paras2s.errors import DataError
from paras2s.statistics.means import Counted, Estimate, clustered_mean, mean_of_means
from paras2s.types import CATEGORIES, Category


@dataclass(frozen=True)
class SystemScores:
    """One system's scores, 1 to 5, a category and overall; its word error rate as a share; its answers' length in s.

    `parts` are means of what the judge's scores are made of; `distinct_texts` is the number of
    different texts by that of answers.
    """

    categories: dict[Category, Counted]
    overall: Counted
    word_error_rate: Counted
    duration_s: Estimate
    parts: dict[str, Counted]
    distinct_texts: float | None


@dataclass(frozen=True)
class Difference:
    """Mean of a - b over the questions of n `categories` scored in both; `relative_percent` is that over b's mean on them."""

    difference: Counted
    relative_percent: float | None
    categories: int


def summarise(rows: Sequence[AnswerRow]) -> SystemScores:
    """Return scores of one system's rows. Overall is the mean of the category means, as in ParaS2S: categories weigh the same.

    A category without a single score leaves overall without a mean: one over fewer categories would not compare.
    """
    categories: dict[Category, Counted] = {}
    for category in dict.fromkeys((*CATEGORIES, *(row.category for row in rows))):
        members = [row for row in rows if row.category == category]
        if members:
            scored = [(row.score, row.contrast_id) for row in members if row.score is not None]
            categories[category] = Counted(_mean_of(scored), len(members))
    rates = [(row.word_error_rate, row.contrast_id) for row in rows if row.word_error_rate is not None]
    return SystemScores(
        categories=categories,
        overall=Counted(mean_of_means([counted.estimate for counted in categories.values()]), len(rows)),
        word_error_rate=Counted(_mean_of(rates), len(rows)),
        duration_s=_mean_of([(row.duration_s, row.contrast_id) for row in rows]),
        parts={
            part: Counted(_mean_of([(row.parts[part], row.contrast_id) for row in rows if part in row.parts]), len(rows))
            for part in dict.fromkeys(name for row in rows for name in row.parts)
        },
        distinct_texts=len({normalise_words(row.text_stream) for row in rows}) / len(rows) if rows else None,
    )


def contrast_metric(rows: Sequence[AnswerRow]) -> Counted:
    """Return the share of contrasts told apart: both styles answered fittingly, with different families. Rows of one system.

    Answer i to one style is paired with answer i to the other; the estimate is over pairs. A pair is left out, and
    counted in `n_asked`, if an answer is unscored or missing, or if both fit but the judge names no family for one.

    Raises:
        DataError: a contrast has more than two answers with one number, or two of the same style.
    """
    pairs: dict[tuple[str, int], list[AnswerRow]] = defaultdict(list)
    for row in rows:
        pairs[row.contrast_id, row.answer_index].append(row)
    # A judge that names no families at all could only ever say 0: failures would count and successes be left out.
    fitting = [row for row in rows if row.fitting]
    names_families = not fitting or any(row.family is not None for row in fitting)
    distinguished = []
    for (contrast_id, index), pair in pairs.items():
        if len({row.style for row in pair}) != len(pair) or len(pair) > 2:
            raise DataError(f"contrast {contrast_id}: answer {index} is there {len(pair)} times; expected once a style")
        outcome = _distinguished(pair) if names_families else None
        if outcome is not None:
            distinguished.append((float(outcome), contrast_id))
    return Counted(_mean_of(distinguished), len(pairs), full=1.0)


def paired_difference(rows_a: Sequence[AnswerRow], rows_b: Sequence[AnswerRow]) -> Difference:
    """Return the difference of system a over b on the same questions, each question's answers averaged first.

    Categories weigh the same, as in a system's own score. Questions not scored in both are left out and counted; a category
    whose common questions are all left out leaves the difference without a mean.
    """
    scores_a, scores_b = _scores_by_query(rows_a), _scores_by_query(rows_b)
    contrasts = {row.query_id: row.contrast_id for row in (*rows_a, *rows_b)}
    common = {row.query_id for row in rows_a} & {row.query_id for row in rows_b}
    categories: dict[Category, list[str]] = {row.category: [] for row in rows_a if row.query_id in common}
    for query_id, category in {row.query_id: row.category for row in (*rows_a, *rows_b)}.items():
        if query_id in scores_a and query_id in scores_b:
            categories[category].append(query_id)
    estimate = mean_of_means(
        [_mean_of([(scores_a[each] - scores_b[each], contrasts[each]) for each in shared]) for shared in categories.values()]
    )
    relative = None
    if estimate.mean is not None:
        before = fmean(fmean(scores_b[each] for each in shared) for shared in categories.values())
        relative = 100 * estimate.mean / before
    return Difference(Counted(estimate, len(contrasts)), relative, len(categories))


def _mean_of(pairs: Sequence[tuple[float, str]]) -> Estimate:
    return clustered_mean([value for value, _ in pairs], [cluster for _, cluster in pairs])


def _distinguished(pair: Sequence[AnswerRow]) -> bool | None:
    if len(pair) < 2 or any(row.score is None for row in pair):
        return None
    if not all(row.fitting for row in pair):
        return False
    first, second = (row.family for row in pair)
    return None if first is None or second is None else first != second


def _scores_by_query(rows: Sequence[AnswerRow]) -> dict[str, float]:
    scores: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.score is not None:
            scores[row.query_id].append(row.score)
    return {query_id: fmean(values) for query_id, values in scores.items()}
