"""Bootstraps over clusters: clusters are drawn with replacement, and an interval is the middle 95 % of the resamples."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from paras2s.statistics.intervals import Share, ends_of_share

RESAMPLES = 10_000
# Numbers held at once by `resample_alike`.
BLOCK_CELLS = 10_000_000
Statistic = Callable[[np.ndarray], np.ndarray]


def cluster_rows(clusters: Sequence[Hashable]) -> np.ndarray:
    """Return each value's cluster as a number [N]; clusters are numbered in the order in which they come."""
    rows: dict[Hashable, int] = {}
    return np.array([rows.setdefault(name, len(rows)) for name in clusters], dtype=np.intp)


def sum_by_cluster(values: np.ndarray, clusters: Sequence[Hashable]) -> np.ndarray:
    """Return the sums [C, ...] of values [N, ...] over each cluster."""
    rows = cluster_rows(clusters)
    sums = np.zeros((int(rows.max(initial=-1)) + 1, *values.shape[1:]), dtype=values.dtype)
    np.add.at(sums, rows, values)
    return sums


def draw(clusters: int, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Return how often each resample draws each cluster [R, C]; the same seed draws the same ones."""
    counts = np.random.default_rng(seed).multinomial(clusters, np.full(clusters, 1 / clusters), size=resamples)
    return counts.astype(np.float64)


def resample(tables: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Return tables [R, ...] summed over clusters drawn with replacement from tables [C, ...]."""
    drawn = draw(len(tables), resamples, seed) @ tables.reshape(len(tables), -1).astype(np.float64)
    return drawn.reshape(resamples, *tables.shape[1:])


def resample_alike(values: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Return sums [R, V] of values [C, V] over clusters drawn with replacement, where many clusters have equal values.

    Those are drawn together, which changes no probability and saves nearly all of the work.
    """
    rng = np.random.default_rng(seed)
    rows, counts = np.unique(values, axis=0, return_counts=True)
    blocks = np.array_split(np.arange(resamples), resamples * len(rows) // BLOCK_CELLS + 1)
    chance = counts / counts.sum()
    return np.concatenate([rng.multinomial(len(values), chance, size=len(block)) @ rows for block in blocks])


def ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """Return top over bottom; nan where the bottom is 0."""
    top, bottom = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    return np.asarray(np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=np.abs(bottom) > 1e-12))


def percentiles(drawn: np.ndarray | None) -> tuple[float | None, float | None]:
    """Return the middle 95 % of a figure's resamples [R] on which it is defined; None without any."""
    finite = np.empty(0) if drawn is None else drawn[np.isfinite(drawn)]
    if not len(finite):
        return None, None
    low, high = np.percentile(finite, [2.5, 97.5]).tolist()
    return low, high


def share_percentiles(value: float, drawn: np.ndarray | None, clusters: int) -> tuple[float | None, float | None]:
    """Return the interval of a share from its resamples [R] over `clusters` clusters: at 0 and 1 Wilson's."""
    low, high = percentiles(drawn)
    return (None, None) if low is None or high is None else ends_of_share(value, low, high, clusters)


def interval_of(
    statistic: Statistic,
    tables: np.ndarray,
    resamples: int = RESAMPLES,
    seed: int = 0,
    is_share: bool = False,
    clusters: int | None = None,
) -> tuple[float | None, float | None, float | None]:
    """Return a statistic of the sum of tables [C, ...] with the ends of its interval; it takes sums [R, ...].

    None if it is not defined; the ends are None if a single cluster counts: of those that hold anything, unless
    `clusters` gives their number. At 0 and 1 the interval of a share is Wilson's.
    """
    value = float(statistic(tables.sum(0)[None])[0])
    if not np.isfinite(value):
        return None, None, None
    counted = int(tables.reshape(len(tables), -1).any(1).sum()) if clusters is None else clusters
    if counted < 2:
        return value, None, None
    drawn = statistic(resample(tables, resamples, seed))
    return value, *(share_percentiles(value, drawn, counted) if is_share else percentiles(drawn))


def mean_by_cluster(
    values: Sequence[float | None],
    clusters: Sequence[str] | None = None,
    size: float = 1.0,
    resamples: int = RESAMPLES,
    is_share: bool = True,
) -> Share:
    """Return the mean of the values that are not None, each a sum of `size` items, and its interval by (sorted) clusters."""
    known = [number for number, value in enumerate(values) if value is not None]
    names = known if clusters is None else [clusters[number] for number in known]
    rows = np.unique(np.array(names), return_inverse=True)[1]
    sums = np.zeros((int(rows.max(initial=-1)) + 1, 2))
    np.add.at(sums, rows, np.array([(values[number], size) for number in known], dtype=np.float64).reshape(-1, 2))
    ends = interval_of(lambda drawn: ratio(drawn[:, 0], drawn[:, 1]), sums, resamples, is_share=is_share)
    return Share(*ends, len(known), len(values))


def mean_by_crossed_clusters(
    values: Sequence[float | None], clusters: Sequence[tuple[str, ...]], resamples: int = 2_000
) -> Share:
    """Return the mean of the values that are not None, each of several clusters at once, with its interval over clusters.

    A resample counts a value as often as it draws all of its clusters together: a comparison of two answers to a question as
    often as the question and both answers. At 0 and 1 the interval is Wilson's, over the clusters of the place with the fewest.
    """
    known = [number for number, value in enumerate(values) if value is not None]
    if not known:
        return Share(n_asked=len(values))
    names, rows = np.unique(np.array([clusters[number] for number in known]), return_inverse=True)
    cells, cell = np.unique(rows.reshape(len(known), -1), axis=0, return_inverse=True)
    sums = np.zeros((len(cells), 2))
    np.add.at(sums, cell.ravel(), np.array([(values[number], 1.0) for number in known]))
    value, fewest = float(sums[:, 0].sum() / sums[:, 1].sum()), min(len(set(column)) for column in cells.T.tolist())
    if fewest < 2:
        return Share(value, None, None, len(known), len(values))
    drawn = draw(len(names), resamples)
    counted = np.ones((resamples, len(cells)))
    for column in cells.T:
        counted *= drawn[:, column]
    ends = share_percentiles(value, ratio(*(counted @ sums).T), fewest)
    return Share(value, *ends, len(known), len(values))
