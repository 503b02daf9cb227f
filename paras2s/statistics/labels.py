"""Agreement of two sides' labels, from tables of counts: accuracy and Cohen's kappa."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from paras2s.statistics.intervals import Share, ends_of_kappa
from paras2s.statistics.resampling import Statistic, cluster_rows, interval_of, ratio


def label_counts(
    first: Sequence[str | None], second: Sequence[str | None], labels: Sequence[str], clusters: Sequence[Hashable]
) -> np.ndarray:
    """Return counts [C, L, L] of (first, second) label in each cluster; items that lack one of them count nowhere."""
    numbers = {name: number for number, name in enumerate(labels)}
    rows = cluster_rows(clusters)
    counts = np.zeros((int(rows.max(initial=-1)) + 1, len(numbers), len(numbers)), dtype=np.int64)
    for label, other, row in zip(first, second, rows, strict=True):
        if label is not None and other is not None:
            counts[row, numbers[label], numbers[other]] += 1
    return counts


def share_of_counts(statistic: Statistic, counts: np.ndarray, n_asked: int, is_share: bool = False) -> Share:
    """Return a statistic of counts [C, ...], which it takes as [R, ...]; `n` is their sum."""
    return Share(*interval_of(statistic, counts, is_share=is_share), int(counts.sum()), n_asked)


def _agree(tables: np.ndarray) -> np.ndarray:
    return ratio(np.trace(tables, axis1=-2, axis2=-1), tables.sum((-2, -1)))


def _by_chance(tables: np.ndarray) -> np.ndarray:
    total = tables.sum((-2, -1)).astype(np.float64)
    return ratio((tables.sum(-1) * tables.sum(-2)).sum(-1), total**2)


def _kappa(tables: np.ndarray) -> np.ndarray:
    by_chance = _by_chance(tables)
    return ratio(_agree(tables) - by_chance, 1 - by_chance)


def accuracy_of(counts: np.ndarray, n_asked: int) -> Share:
    """Return the share of counts [C, L, L] on which both sides have the same label."""
    return share_of_counts(_agree, counts, n_asked, is_share=True)


def kappa_of(counts: np.ndarray, n_asked: int) -> Share:
    """Return the agreement beyond chance of counts [C, L, L]; None if chance alone agrees always (Cohen 1960)."""
    kappa = share_of_counts(_kappa, counts, n_asked)
    if kappa.low is None or kappa.low < 1:
        return kappa
    low, high = ends_of_kappa(accuracy_of(counts, n_asked).low or 0.0, float(_by_chance(counts.sum(0)[None])[0]))
    return replace(kappa, low=low, high=high)
