"""A result over several seeds: means with intervals over seeds and questions, after Agarwal et al. (2021).

A resample draws seeds with replacement, and of each seed and category contrasts with replacement, since the questions of a
contrast share their words. Every category weighs the same, and every seed, as in a run's own score. With one seed the interval
is over questions alone. A share of 0 or 100 %, which no resample leaves, has Wilson's interval; its trials are the contrasts of
a seed, as all seeds are asked the same ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from paras2s.bench.results import AnswerRow
from paras2s.statistics.intervals import Interval, ends_of_share

RESAMPLES = 2000
# Shares cut off below and above for an interquartile mean.
QUARTILE = 0.25
# A seed's questions: of each category, of each contrast, an array with a row a question and a column a figure.
Nested: TypeAlias = Sequence[Sequence[np.ndarray]]
# The same with the contrasts of a category in one array.
Stacked: TypeAlias = Sequence[np.ndarray]


@dataclass(frozen=True)
class SeedInterval(Interval):
    """A figure over `seeds` seeds and `n` questions with the ends of its 95 % interval."""

    value: float
    low: float
    high: float
    seeds: int = 0
    n: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def with_intervals(seeds: Sequence[Nested], figures: Callable[[Sequence[Stacked]], Sequence[float]]) -> list[SeedInterval]:
    """Return the figures of all questions with 95 % percentile intervals. Raises ValueError: a category without a question."""
    if not seeds or not all(seed and all(seed) for seed in seeds):
        raise ValueError("a seed has no questions that are scored")
    rng = np.random.default_rng(0)
    values = figures([[np.concatenate(contrasts) for contrasts in seed] for seed in seeds])
    draws = [figures([_draw(seeds[n], rng) for n in rng.integers(len(seeds), size=len(seeds))]) for _ in range(RESAMPLES)]
    low, high = np.percentile(np.array(draws), [2.5, 97.5], axis=0)
    n = sum(len(questions) for seed in seeds for contrasts in seed for questions in contrasts)
    ends = zip(map(float, values), low.tolist(), high.tolist(), strict=True)
    return [SeedInterval(*figure, len(seeds), n) for figure in ends]


def _draw(seed: Nested, rng: np.random.Generator) -> list[np.ndarray]:
    return [np.concatenate([contrasts[n] for n in rng.integers(len(contrasts), size=len(contrasts))]) for contrasts in seed]


def mean_score(seeds: Sequence[Stacked], column: int = 0) -> float:
    """Return the mean over seeds of the mean over categories of the mean over questions."""
    return fmean(fmean(float(questions[:, column].mean()) for questions in seed) for seed in seeds)


def interquartile_mean(seeds: Sequence[Stacked], column: int) -> float:
    """Return the mean of the middle half of all seeds' questions: the few best and worst do not move it."""
    from scipy.stats import trim_mean

    return float(trim_mean(np.concatenate([questions[:, column] for seed in seeds for questions in seed]), QUARTILE))


def of_system(rows: Sequence[AnswerRow]) -> Nested:
    """Return the mean score of each question of one system; a question without a scored answer is left out."""
    return _nested(rows, {query: (fmean(scores),) for query, scores in _scores(rows).items()})


def of_both(treated: Sequence[AnswerRow], before: Sequence[AnswerRow]) -> Nested:
    """Three figures of each question that is scored in both: the mean scores, and how probably an answer is the better one.

    That is the share of pairs of a treated answer and one from before in which the former scores higher; a tie counts half.
    """
    after, first = _scores(treated), _scores(before)
    values = {
        query: (fmean(after[query]), fmean(first[query]), _higher(after[query], first[query]))
        for query in after.keys() & first.keys()
    }
    return _nested([*treated, *before], values)


def _scores(rows: Sequence[AnswerRow]) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.score is not None:
            scores[row.query_id].append(row.score)
    return scores


def _higher(first: Sequence[float], second: Sequence[float]) -> float:
    return fmean(1.0 if value > other else 0.5 if value == other else 0.0 for value in first for other in second)


def _nested(rows: Sequence[AnswerRow], values: Mapping[str, tuple[float, ...]]) -> Nested:
    """Return the questions' figures by category and contrast, in the order of the rows."""
    places = {row.query_id: (row.category, row.contrast_id) for row in rows}
    nested: dict[str, dict[str, list[tuple[float, ...]]]] = {category: {} for category, _ in places.values()}
    for query, (category, contrast) in places.items():
        if query in values:
            nested[category].setdefault(contrast, []).append(values[query])
    return [[np.array(questions) for questions in contrasts.values()] for contrasts in nested.values()]


@dataclass(frozen=True)
class Gain:
    """The treated system over the one before it: difference of the scores, in % of the latter, and more robust figures.

    `improvement` is the probability that an answer of the treated system scores higher; 0.5 says that there is no difference.
    """

    difference: SeedInterval
    percent: SeedInterval
    middle_before: SeedInterval
    middle_after: SeedInterval
    improvement: SeedInterval

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def gain_over(seeds: Sequence[Nested]) -> Gain:
    """Return the gain over seeds, of questions as `of_both` gives them. Raises ValueError: no seed, or an empty category."""

    def figures(drawn: Sequence[Stacked]) -> list[float]:
        after, before = mean_score(drawn, 0), mean_score(drawn, 1)
        middles = [interquartile_mean(drawn, column) for column in (1, 0)]
        return [after - before, 100 * (after - before) / before, *middles, mean_score(drawn, 2)]

    difference, percent, before, after, improvement = with_intervals(seeds, figures)
    contrasts = max(sum(map(len, seed)) for seed in seeds)
    low, high = ends_of_share(improvement.value, improvement.low, improvement.high, contrasts)
    return Gain(difference, percent, before, after, replace(improvement, low=low, high=high))
