"""Means with standard errors that are clustered: values of one cluster count as one draw."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paras2s.statistics.intervals import ends_of_share

# Standard errors between a difference and chance, of a normal law at 95 %.
CERTAIN_FROM = 1.96


@dataclass(frozen=True)
class Estimate:
    """A mean of `n` values in `clusters` clusters; None for a mean of nothing and for an error of one cluster."""

    mean: float | None
    standard_error: float | None
    n: int
    clusters: int


@dataclass(frozen=True)
class Counted:
    """An estimate over the `estimate.n` of `n_asked` values that could be measured.

    `full` is the value of 100 % where the estimate is a share: 1, or 100 of points in percent; None for other figures.
    """

    estimate: Estimate
    n_asked: int
    full: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return mean, standard error, n scored and n in all as JSON; for a share of 0 or 100 % `wilson`, its interval."""
        wilson = self.wilson()
        return {
            "mean": self.estimate.mean,
            "standard_error": self.estimate.standard_error,
            "n_scored": self.estimate.n,
            "n_asked": self.n_asked,
            **({} if wilson is None else {"wilson": list(wilson)}),
        }

    def wilson(self) -> tuple[float, float] | None:
        """Return Wilson's 95 % interval of a share of 0 or 100 %, whose error is 0; None for others, or one cluster."""
        mean = self.estimate.mean
        if self.full is None or mean not in (0.0, self.full) or self.estimate.standard_error is None:
            return None
        low, high = ends_of_share(mean / self.full, 0.0, 0.0, self.estimate.clusters)
        return self.full * low, self.full * high

    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval, 1.96 standard errors to each side or Wilson's; None without a standard error."""
        mean, error = self.estimate.mean, self.estimate.standard_error
        if mean is None or error is None:
            return None
        return self.wilson() or (mean - CERTAIN_FROM * error, mean + CERTAIN_FROM * error)


def clustered_mean(values: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """Return the mean of n values and its cluster-robust error: sqrt(C / (C - 1) * sum_c (sum_{i in c} (x_i - mean))^2) / n.

    Raises:
        ValueError: not one cluster for every value.
    """
    if len(values) != len(clusters):
        raise ValueError(f"{len(values)} values, but {len(clusters)} clusters")
    if not values:
        return Estimate(None, None, 0, 0)
    mean = fmean(values)
    residuals: dict[str, float] = defaultdict(float)
    for value, cluster in zip(values, clusters, strict=True):
        residuals[cluster] += value - mean
    count = len(residuals)
    if count < 2:
        return Estimate(mean, None, len(values), count)
    variance = count / (count - 1) * math.fsum(total**2 for total in residuals.values()) / len(values) ** 2
    return Estimate(mean, math.sqrt(variance), len(values), count)


def mean_of_means(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of means that share no cluster, each weighing the same; without a mean where one of them has none."""
    n, clusters = sum(estimate.n for estimate in estimates), sum(estimate.clusters for estimate in estimates)
    means = [estimate.mean for estimate in estimates if estimate.mean is not None]
    errors = [estimate.standard_error for estimate in estimates if estimate.standard_error is not None]
    if not means or len(means) < len(estimates):
        return Estimate(None, None, n, clusters)
    # A cluster belongs to one of the means, so they are independent and their variances add.
    error = math.hypot(*errors) / len(estimates) if len(errors) == len(estimates) else None
    return Estimate(fmean(means), error, n, clusters)
