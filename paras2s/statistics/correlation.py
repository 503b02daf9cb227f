"""Pearson's and Spearman's correlation, with intervals from clusters drawn with replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paras2s.statistics.intervals import Interval
from paras2s.statistics.resampling import RESAMPLES, cluster_rows, draw, percentiles

FEWEST_ANSWERS = 3  # Two always lie on a line.
BLOCK_CELLS = 4_000_000  # Of a block of resamples [R, N]: thousands of answers must not take gigabytes.


@dataclass(frozen=True)
class Correlation(Interval):
    """A correlation, its 95 % bootstrap interval over clusters (None for one cluster), and its two-sided p-value.

    Where it is not defined, all are None and `why_none` says why.
    """

    p_value: float | None = None
    why_none: str | None = None


def correlations(
    pairs: Sequence[tuple[float, float]], clusters: Sequence[str], resamples: int = RESAMPLES
) -> tuple[Correlation, Correlation]:
    """Return Pearson's and Spearman's correlation of N pairs, with intervals from drawing their clusters with replacement."""
    from scipy import stats

    first, second = np.array(pairs, dtype=float).reshape(-1, 2).T
    why = [f"{len(pairs)} answers with both sides are too few"] if len(pairs) < FEWEST_ANSWERS else []
    why += [
        f"{name} scores are all the same" for name, side in (("automatic", first), ("human", second)) if len(set(side)) == 1
    ]
    if why:
        return Correlation(why_none=why[0]), Correlation(why_none=why[0])
    results = (stats.pearsonr(first, second), stats.spearmanr(first, second))
    drawn = _resampled(first, second, clusters, resamples)
    pearson, spearman = (
        Correlation(float(result.statistic), *percentiles(values), p_value=float(result.pvalue))
        for result, values in zip(results, drawn, strict=True)
    )
    return pearson, spearman


def _resampled(
    first: np.ndarray, second: np.ndarray, clusters: Sequence[str], resamples: int
) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """Return both correlations of each resample [R], None for one cluster; nan where a side is constant."""
    rows = cluster_rows(clusters)
    if rows.max() < 1:
        return None, None
    drawn = draw(int(rows.max()) + 1, resamples)
    blocks = []
    for block in np.array_split(drawn, resamples * len(clusters) // BLOCK_CELLS + 1):
        # A value is drawn as often as its cluster.
        weights = block[:, rows]
        ranks = (weighted_ranks(weights, first), weighted_ranks(weights, second))
        blocks.append([weighted_pearson(weights, first, second), weighted_pearson(weights, *ranks)])
    pearson, spearman = np.concatenate(blocks, axis=1)
    return pearson, spearman


def weighted_pearson(weights: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the correlations [R] of values [N] or [R, N] drawn as often as `weights` [R, N] says; or nan."""
    total, sides = weights.sum(1, keepdims=True), []
    for values in (first, second):
        centred = values - (weights * values).sum(1, keepdims=True) / total
        spread = np.sqrt((weights * centred**2).sum(1, keepdims=True) / total)
        # Rounding leaves a constant side a trace of spread.
        known = spread > 1e-10 * np.abs(values).max()
        sides.append(np.divide(centred, spread, out=np.full(weights.shape, np.nan), where=known))
    return np.asarray((weights * sides[0] * sides[1]).sum(1) / total[:, 0])


def weighted_ranks(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the ranks [R, N] of values [N] drawn as often as `weights` [R, N] says; equal values share their mean rank."""
    known, numbers = np.unique(values, return_inverse=True)
    order = np.argsort(numbers, kind="stable")
    at_value = np.add.reduceat(weights[:, order], np.searchsorted(numbers[order], np.arange(len(known))), axis=1)
    return np.asarray((np.cumsum(at_value, axis=1) - (at_value - 1) / 2)[:, numbers])


def row_correlations(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Spearman's and Pearson's correlation of each row [R] of two tables [R, N]; nan where it is not defined."""
    from scipy import stats

    ranks = (stats.rankdata(side, axis=1, nan_policy="propagate") for side in (first, second))
    return _row_pearson(*ranks), _row_pearson(first, second)


def _row_pearson(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    sides = [side - side.mean(1, keepdims=True) for side in (first, second)]
    lengths = [np.sqrt((side**2).sum(1)) for side in sides]
    # Rounding leaves a constant row a trace of length.
    known = np.logical_and(*(size > 1e-10 * np.abs(side).max(1) for size, side in zip(lengths, (first, second), strict=True)))
    together = (sides[0] * sides[1]).sum(1)
    return np.asarray(np.divide(together, lengths[0] * lengths[1], out=np.full(len(first), np.nan), where=known))
