"""Agreement among the people who gave labels or scores, with intervals.

A unit is one item with the values that people gave it, by annotator. A figure that is not defined is None, with the reason.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Literal

import numpy as np

from paras2s.statistics.correlation import weighted_pearson
from paras2s.statistics.intervals import Interval, ends_of_kappa, ends_of_share
from paras2s.statistics.resampling import Statistic, cluster_rows, draw, interval_of, percentiles, ratio, sum_by_cluster

Value = str | float
Unit = Mapping[str, str] | Mapping[int, float]
Distance = Literal["nominal", "interval"]
RESAMPLES = 2_000
HALVINGS = 20
FEWEST_UNITS = 3
ALONE = "no item has two annotators"
ALL_ALIKE = "all values are the same"


@dataclass(frozen=True)
class Agreement(Interval):
    """A statistic over `n` units with its 95 % bootstrap interval; where it is not defined, `why_none` says why."""

    n: int = 0
    why_none: str | None = None


def _agreement(
    tables: np.ndarray, n: int, statistic: Statistic, why: str, chance: Statistic | None = None, is_share: bool = False
) -> Agreement:
    """Return a statistic of tables summed by cluster [C, ...], which it takes as [R, ...]; `why` it may not be defined.

    Where all agree in all, every resample is alike: with the agreement by `chance` the interval is Wilson's of the agreement,
    without it there is none.
    """
    value, low, high = interval_of(statistic, tables, RESAMPLES, is_share=is_share, clusters=len(tables))
    if value is None:
        return Agreement(n=n, why_none=why)
    share = Agreement(value, low, high, n)
    return share if is_share else _of_all(share, len(tables), None if chance is None else chance(tables.sum(0)[None]))


def _of_all(share: Agreement, clusters: int, by_chance: np.ndarray | None) -> Agreement:
    """Return the figure of people who agree in all with Wilson's interval of their agreement or none; others as they are."""
    if share.value is None or share.low is None or share.value < 1 - 1e-9 or share.low < 1 - 1e-9:
        return share
    if by_chance is None:
        return replace(share, low=None, high=None)
    low, high = ends_of_kappa(ends_of_share(1.0, 1.0, 1.0, clusters)[0], float(by_chance[0]))
    return replace(share, low=low, high=high)


def _share(tables: np.ndarray, clusters: Sequence[Hashable], why: str) -> Agreement:
    """Return sum over sum of tables [U, 2]."""
    summed = sum_by_cluster(tables, clusters)
    return _agreement(summed, len(tables), lambda sums: ratio(sums[:, 0], sums[:, 1]), why, is_share=True)


def _several(units: Sequence[Unit], clusters: Sequence[Hashable]) -> tuple[list[list[Value]], list[Hashable]]:
    """Return the values of units with two or more, and their clusters."""
    given: list[list[Value]] = [[*unit.values()] for unit in units]
    rows = [(values, name) for values, name in zip(given, clusters, strict=True) if len(values) > 1]
    return [values for values, _ in rows], [name for _, name in rows]


def observed_agreement(units: Sequence[Unit], clusters: Sequence[Hashable]) -> Agreement:
    """Return the share of pairs of annotators of one unit who chose the same."""
    given, names = _several(units, clusters)
    if not given:
        return Agreement(why_none=ALONE)
    pairs = [list(combinations(values, 2)) for values in given]
    tables = np.array([(sum(first == other for first, other in two), len(two)) for two in pairs], dtype=float)
    return _share(tables, names, "no pairs")


def krippendorff(units: Sequence[Unit], clusters: Sequence[Hashable], distance: Distance) -> Agreement:
    """Return Krippendorff's alpha by coincidence matrices (Krippendorff 2011); units may have any number of annotators.

    Nominal labels differ or do not; the squared difference of scores is the distance of interval data.
    """
    given, names = _several(units, clusters)
    if not given:
        return Agreement(why_none=ALONE)
    values = sorted({value for unit in given for value in unit}, key=str)
    numbers = {value: number for number, value in enumerate(values)}
    rows = cluster_rows(names)
    tables = np.zeros((int(rows.max()) + 1, len(values), len(values)))
    for row, unit in zip(rows, given, strict=True):
        counts = np.bincount([numbers[value] for value in unit], minlength=len(values)).astype(float)
        tables[row] += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    if distance == "nominal":
        distances = 1 - np.eye(len(values))
    else:
        scores = np.array([float(value) for value in values])
        distances = (scores[:, None] - scores[None]) ** 2

    def disagreement_by_chance(summed: np.ndarray) -> np.ndarray:
        # Over pairs of values: n_c n_k / (n (n - 1)).
        of_value, total = summed.sum(-1), summed.sum((-2, -1))
        return ratio((of_value[:, :, None] * of_value[:, None] * distances).sum((-2, -1)), total * (total - 1))

    def alpha(summed: np.ndarray) -> np.ndarray:
        observed = (summed * distances).sum((-2, -1)) / summed.sum((-2, -1))
        return 1 - ratio(observed, disagreement_by_chance(summed))

    # By how much scores would differ, where they did, nothing says.
    chance: Statistic | None = (lambda summed: 1 - disagreement_by_chance(summed)) if distance == "nominal" else None
    return _agreement(tables, len(given), alpha, ALL_ALIKE, chance)


def fleiss_kappa(units: Sequence[Unit], clusters: Sequence[Hashable]) -> Agreement:
    """Return Fleiss' kappa (1971) over the units that have the most annotators; it needs the same number for each."""
    most = max((len(unit) for unit in units), default=0)
    if most < 2:
        return Agreement(why_none=ALONE)
    full = [(list(unit.values()), name) for unit, name in zip(units, clusters, strict=True) if len(unit) == most]
    values = sorted({value for given, _ in full for value in given}, key=str)
    # A unit's counts of the values, then its agreement, then 1.
    tables = np.zeros((len(full), len(values) + 2))
    for table, (given, _) in zip(tables, full, strict=True):
        counts = np.array([given.count(value) for value in values], dtype=float)
        table[:-2] = counts
        table[-2:] = ((counts**2).sum() - most) / (most * (most - 1)), 1

    def by_chance(summed: np.ndarray) -> np.ndarray:
        return np.asarray(((summed[:, :-2] / (summed[:, -1:] * most)) ** 2).sum(1))

    def kappa(summed: np.ndarray) -> np.ndarray:
        return ratio(summed[:, -2] / summed[:, -1] - by_chance(summed), 1 - by_chance(summed))

    return _agreement(sum_by_cluster(tables, [name for _, name in full]), len(full), kappa, ALL_ALIKE, by_chance)


def majority(values: Sequence[str]) -> str | None:
    """Return the value chosen most often; None for a tie, or without values."""
    ranked = Counter(values).most_common(2)
    return None if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]) else ranked[0][0]


def split_half_labels(units: Sequence[Unit], clusters: Sequence[Hashable], seed: int = 0) -> Agreement:
    """Return the share of units on which the majorities of two random halves of the annotators agree.

    No judge can be expected to agree with people more often. A halving in which a half has no majority does not count. With two
    annotators it is their agreement.
    """
    given, names = _several(units, clusters)
    if not given:
        return Agreement(why_none=ALONE)
    rng = random.Random(seed)
    tables = np.zeros((len(given), 2))
    for table, unit in zip(tables, given, strict=True):
        for _ in range(HALVINGS):
            first, second = (majority([str(value) for value in half]) for half in _halve(unit, rng))
            if first is not None and second is not None:
                table += (first == second), 1
    return _share(tables, names, "no half has a majority")


def split_half_scores(units: Sequence[Unit], clusters: Sequence[Hashable], seed: int = 0) -> Agreement:
    """Return Pearson's r of the means of two random halves of each unit's annotators, averaged over halvings.

    Stepped up by Spearman and Brown's formula to the reliability of the mean of all: no judge's correlation with that mean can
    be expected above its square root.
    """
    given, names = _several(units, clusters)
    if len(given) < FEWEST_UNITS:
        return Agreement(n=len(given), why_none=f"fewer than {FEWEST_UNITS} items have two annotators")
    rng = random.Random(seed)
    halves = np.array([[[fmean(map(float, half)) for half in _halve(unit, rng)] for unit in given] for _ in range(HALVINGS)])
    rows = cluster_rows(names)
    size = int(rows.max()) + 1

    def reliability(weights: np.ndarray) -> np.ndarray:
        each = np.stack([weighted_pearson(weights[:, rows], means[:, 0], means[:, 1]) for means in halves])
        known = np.isfinite(each)
        r = ratio(np.where(known, each, 0.0).sum(0), known.sum(0))
        return ratio(2 * r, 1 + r)

    value = float(reliability(np.ones((1, size)))[0])
    if not np.isfinite(value):
        return Agreement(n=len(given), why_none="a half's scores are all the same")
    ends = percentiles(reliability(draw(size, RESAMPLES // 4))) if size > 1 else (None, None)
    return _of_all(Agreement(value, *ends, len(given)), size, None)


def _halve(values: Sequence[Value], rng: random.Random) -> tuple[list[Value], list[Value]]:
    mixed = list(values)
    rng.shuffle(mixed)
    return mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]
