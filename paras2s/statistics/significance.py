"""Tests of differences: McNemar's, random signs of clusters, and random orders of clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paras2s.statistics.resampling import BLOCK_CELLS, RESAMPLES, cluster_rows, sum_by_cluster


def mcnemar(first_only: int, second_only: int, exact: bool) -> float:
    """Return the two-sided p-value of two counts of discordant pairs; 1 where there are none (McNemar 1947)."""
    from scipy import stats

    discordant = first_only + second_only
    if discordant == 0:
        return 1.0
    if exact:
        return float(stats.binomtest(first_only, discordant, 0.5).pvalue)
    return float(stats.chi2.sf(max(0, abs(first_only - second_only) - 1) ** 2 / discordant, 1))


def p_equal(differences: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Return the two-sided p-value that each cluster's difference [C] might as well have had the other sign."""
    rng = np.random.default_rng(seed)
    sizes, counts = np.unique(np.abs(differences), return_counts=True)
    drawn = (2 * rng.binomial(counts, 0.5, size=(resamples, len(counts))) - counts) @ sizes
    # The data itself is one of the possible draws, so that no p-value is 0.
    return float((1 + np.count_nonzero(np.abs(drawn) >= abs(differences.sum()))) / (1 + resamples))


def p_of_ranks(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[str], seed: int = 0, resamples: int = RESAMPLES
) -> float | None:
    """Return the two-sided p-value of unrelated ranks of two values [N], clusters' second means permuted; None for one."""
    from scipy.stats import rankdata

    size = int(cluster_rows(clusters).max(initial=-1)) + 1
    if size < 2:
        return None
    sums = sum_by_cluster(np.array([first, second, np.ones(len(first))], dtype=np.float64).T, clusters)
    # Rounded: clusters of different sizes reach equal means by sums that differ in the last digit.
    sides = [rankdata(np.round(sums[:, column] / sums[:, 2], 9)) for column in (0, 1)]
    centred, other = (side - side.mean() for side in sides)
    rng, observed = np.random.default_rng(seed), abs(centred @ other) - 1e-9
    blocks = np.array_split(np.arange(resamples), resamples * size // BLOCK_CELLS + 1)
    drawn = [rng.permuted(np.tile(other, (len(block), 1)), axis=1) @ centred for block in blocks]
    return (1 + sum(int(np.count_nonzero(np.abs(block) >= observed)) for block in drawn)) / (1 + resamples)
