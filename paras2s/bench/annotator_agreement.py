"""Agreement among the people who gave labels or scores, with intervals. Pure functions: values in, figures out.

A unit is one item with the values that people gave it, by annotator. Units of one cluster (an instruction's items) are not
independent: every interval draws clusters with replacement. A figure that is not defined is None, with the reason.
Alphabet: U units, C clusters, L values, R resamples, H random halvings.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Literal

import numpy as np

from paras2s.bench.human_correlation import weighted_pearson
from paras2s.bench.speakbench.metrics import resample
from paras2s.bench.stats import ends_of_kappa, ends_of_share

Unit = Mapping[str, str]
Distance = Literal["nominal", "interval"]
Statistic = Callable[[np.ndarray], np.ndarray]
RESAMPLES = 2_000
HALVINGS = 20
FEWEST_UNITS = 3


@dataclass(frozen=True)
class Figure:
    """A statistic over `n` units with its 95 % bootstrap interval; where it is not defined, `why_none` says why."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    why_none: str | None = None


def _none(n: int, why: str) -> Figure:
    return Figure(None, None, None, n, why)


def _figure(
    tables: np.ndarray, clusters: Sequence[Hashable], statistic: Statistic, why: str, chance: Statistic | None = None
) -> Figure:
    """A statistic of summed tables [U, ...], which it takes as [R, ...]; one cluster alone has no interval.

    Where all agree in all, every resample is alike: with the agreement by `chance` the interval is Wilson's of the agreement,
    without it there is none.
    """
    rows = {name: place for place, name in enumerate(dict.fromkeys(clusters))}
    summed = np.zeros((len(rows), *tables.shape[1:]))
    for table, name in zip(tables, clusters, strict=True):
        summed[rows[name]] += table
    value = float(statistic(summed.sum(0)[None])[0])
    if not np.isfinite(value):
        return _none(len(tables), why)
    if len(rows) < 2:
        return Figure(value, None, None, len(tables))
    drawn = statistic(resample(summed, RESAMPLES))
    low, high = np.percentile(drawn[np.isfinite(drawn)], [2.5, 97.5]).tolist()
    return _of_all(Figure(value, low, high, len(tables)), len(rows), None if chance is None else chance(summed.sum(0)[None]))


def _of_all(found: Figure, clusters: int, by_chance: np.ndarray | None) -> Figure:
    """The figure of people who agree in all, with Wilson's interval of their agreement or none; others as they are."""
    if found.value is None or found.low is None or found.value < 1 - 1e-9 or found.low < 1 - 1e-9:
        return found
    if by_chance is None:
        return replace(found, low=None, high=None)
    low, high = ends_of_kappa(ends_of_share(1.0, 1.0, 1.0, clusters)[0], float(by_chance[0]))
    return replace(found, low=low, high=high)


def _share(tables: np.ndarray, clusters: Sequence[Hashable], why: str) -> Figure:
    """Sum over sum of tables [U, 2]; at 0 and 1, where every resample is alike, its interval is Wilson's."""
    # A share of 1 needs no correction for chance.
    found = _figure(tables, clusters, lambda one: _divide(one[:, 0], one[:, 1]), why, lambda one: np.zeros(len(one)))
    if found.value is None or found.low is None or found.high is None:
        return found
    low, high = ends_of_share(found.value, found.low, found.high, len(set(clusters)))
    return replace(found, low=low, high=high)


def _divide(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.asarray(np.divide(top, bottom, out=np.full(np.shape(bottom), np.nan), where=np.abs(bottom) > 1e-12))


def _several(units: Sequence[Unit], clusters: Sequence[Hashable]) -> tuple[list[list[str]], list[Hashable]]:
    """The values of units with two or more, and their clusters."""
    found = [(list(unit.values()), name) for unit, name in zip(units, clusters, strict=True) if len(unit) > 1]
    return [values for values, _ in found], [name for _, name in found]


def observed_agreement(units: Sequence[Unit], clusters: Sequence[Hashable]) -> Figure:
    """The share of pairs of annotators of one unit who chose the same."""
    many, names = _several(units, clusters)
    if not many:
        return _none(0, "no item has two annotators")
    tables = np.array([_same_pairs(values) for values in many], dtype=float)
    return _share(tables, names, "no pairs")


def _same_pairs(values: Sequence[str]) -> tuple[int, int]:
    pairs = list(combinations(values, 2))
    return sum(one == other for one, other in pairs), len(pairs)


def krippendorff(units: Sequence[Unit], clusters: Sequence[Hashable], distance: Distance) -> Figure:
    """Krippendorff's alpha by coincidence matrices (Krippendorff 2011); units may have any number of annotators.

    Nominal labels differ or do not; the squared difference of scores is the distance of interval data.
    """
    many, names = _several(units, clusters)
    if not many:
        return _none(0, "no item has two annotators")
    values = sorted({value for one in many for value in one})
    at = {value: place for place, value in enumerate(values)}
    tables = np.zeros((len(many), len(values), len(values)))
    for table, one in zip(tables, many, strict=True):
        counts = np.bincount([at[value] for value in one], minlength=len(values)).astype(float)
        table += (np.outer(counts, counts) - np.diag(counts)) / (len(one) - 1)
    if distance == "nominal":
        apart = 1 - np.eye(len(values))
    else:
        numbers = np.array([float(value) for value in values])
        apart = (numbers[:, None] - numbers[None]) ** 2

    def disagreement_by_chance(summed: np.ndarray) -> np.ndarray:
        # Over pairs of values: n_c n_k / (n (n - 1)).
        of_value, total = summed.sum(-1), summed.sum((-2, -1))
        return _divide((of_value[:, :, None] * of_value[:, None] * apart).sum((-2, -1)), total * (total - 1))

    def alpha(summed: np.ndarray) -> np.ndarray:
        observed = (summed * apart).sum((-2, -1)) / summed.sum((-2, -1))
        return 1 - _divide(observed, disagreement_by_chance(summed))

    # By how much scores would differ, where they did, nothing says.
    chance: Statistic | None = (lambda one: 1 - disagreement_by_chance(one)) if distance == "nominal" else None
    return _figure(tables, names, alpha, "all values are the same", chance)


def fleiss_kappa(units: Sequence[Unit], clusters: Sequence[Hashable]) -> Figure:
    """Fleiss' kappa (1971) over the units that have the most annotators; it wants the same number for each."""
    most = max((len(unit) for unit in units), default=0)
    if most < 2:
        return _none(0, "no item has two annotators")
    full = [(list(unit.values()), name) for unit, name in zip(units, clusters, strict=True) if len(unit) == most]
    values = sorted({value for one, _ in full for value in one})
    # A unit's counts of the values, then its agreement, then 1.
    tables = np.zeros((len(full), len(values) + 2))
    for table, (one, _) in zip(tables, full, strict=True):
        counts = np.array([one.count(value) for value in values], dtype=float)
        table[:-2] = counts
        table[-2:] = ((counts**2).sum() - most) / (most * (most - 1)), 1

    def by_chance(summed: np.ndarray) -> np.ndarray:
        return np.asarray(((summed[:, :-2] / (summed[:, -1:] * most)) ** 2).sum(1))

    def kappa(summed: np.ndarray) -> np.ndarray:
        return _divide(summed[:, -2] / summed[:, -1] - by_chance(summed), 1 - by_chance(summed))

    return _figure(tables, [name for _, name in full], kappa, "all values are the same", by_chance)


def majority(values: Sequence[str]) -> str | None:
    """The value that most chose; None where two are chosen equally often, or there is none."""
    ranked = Counter(values).most_common(2)
    return None if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]) else ranked[0][0]


def split_half_labels(units: Sequence[Unit], clusters: Sequence[Hashable], seed: int = 0) -> Figure:
    """The share of units on which the majorities of two random halves of the annotators agree.

    No judge can be expected to agree with people more often. A halving in which a half has no majority does not count. With two
    annotators it is their agreement.
    """
    many, names = _several(units, clusters)
    if not many:
        return _none(0, "no item has two annotators")
    rng = random.Random(seed)
    tables = np.zeros((len(many), 2))
    for table, one in zip(tables, many, strict=True):
        for _ in range(HALVINGS):
            first, second = (majority(half) for half in _halves(one, rng))
            if first is not None and second is not None:
                table += (first == second), 1
    return _share(tables, names, "no half has a majority")


def split_half_scores(units: Sequence[Unit], clusters: Sequence[Hashable], seed: int = 0) -> Figure:
    """Pearson's r of the means of two random halves of each unit's annotators, averaged over halvings.

    Stepped up by Spearman and Brown's formula to the reliability of the mean of all: no judge's correlation with that mean can
    be expected above its square root.
    """
    many, names = _several(units, clusters)
    if len(many) < FEWEST_UNITS:
        return _none(len(many), f"fewer than {FEWEST_UNITS} items have two annotators")
    rng = random.Random(seed)
    halves = np.array([[[fmean(map(float, half)) for half in _halves(one, rng)] for one in many] for _ in range(HALVINGS)])
    rows = {name: place for place, name in enumerate(dict.fromkeys(names))}
    at = np.array([rows[name] for name in names])

    def reliability(weights: np.ndarray) -> np.ndarray:
        each = np.stack([weighted_pearson(weights[:, at], one[:, 0], one[:, 1]) for one in halves])
        known = np.isfinite(each)
        r = _divide(np.where(known, each, 0.0).sum(0), known.sum(0).astype(float))
        return _divide(2 * r, 1 + r)

    value = float(reliability(np.ones((1, len(rows))))[0])
    if not np.isfinite(value):
        return _none(len(many), "a half's scores are all the same")
    if len(rows) < 2:
        return Figure(value, None, None, len(many))
    drawn = reliability(resample(np.eye(len(rows)), RESAMPLES // 4))
    low, high = np.percentile(drawn[np.isfinite(drawn)], [2.5, 97.5]).tolist()
    return _of_all(Figure(value, low, high, len(many)), len(rows), None)


def _halves(values: Sequence[str], rng: random.Random) -> tuple[list[str], list[str]]:
    mixed = list(values)
    rng.shuffle(mixed)
    return mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]
