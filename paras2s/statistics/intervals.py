"""Figures with their 95 % intervals, and the ends of an interval where resampling has none to give."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A figure with the ends of its 95 % interval; None if the figure, or its interval, is not defined."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Share(Interval):
    """A figure over `n` of `n_asked` items, usually a share; its interval is a bootstrap's, at 0 and 1 Wilson's."""

    n: int = 0
    n_asked: int = 0


def ends_of_share(value: float, low: float, high: float, clusters: int) -> tuple[float, float]:
    """Return the ends of a share's bootstrap interval; at 0 and 1, where all resamples are alike, Wilson's 95 % interval.

    Its trials are the clusters: how much the values of one cluster tell about those of another is not known there.
    """
    if value not in (0.0, 1.0) or low != high or not clusters:
        return low, high
    from scipy.stats import binomtest

    interval = binomtest(round(value * clusters), clusters).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def ends_of_kappa(low_agreement: float, by_chance: float) -> tuple[float, float]:
    """Return the interval of a kappa or alpha of 1, which resamples never leave: Wilson's of the agreement, above chance."""
    return (low_agreement - by_chance) / (1 - by_chance), 1.0
