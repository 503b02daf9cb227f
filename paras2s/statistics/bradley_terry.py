"""Strengths of players from their games, by the model of Bradley and Terry (1952)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Each player also draws half a game with an average one, so that a row of wins has a finite strength.
PRIOR_GAMES = 0.5
# A few hundred steps leave strengths whole percents off where few met each other.
MOST_STEPS, CONVERGED = 20_000, 1e-12


@dataclass(frozen=True)
class Result:
    """One game: player `first` got `points` from 0 to 1 against `second`."""

    first: int
    second: int
    points: float


def bradley_terry(size: int, results: Sequence[Result]) -> list[float | None]:
    """Return each player's chance against an average one; None for a player without a game.

    Ties are half a win for each. Hunter's minorise-maximise steps, with a prior of half a drawn game.
    """
    wins = np.full(size, PRIOR_GAMES / 2)
    games = np.zeros((size, size))
    for result in results:
        wins[result.first] += result.points
        wins[result.second] += 1 - result.points
        games[result.first, result.second] += 1
        games[result.second, result.first] += 1
    strength = np.ones(size)
    for _ in range(MOST_STEPS):
        expected = (games / (strength[:, None] + strength[None, :])).sum(1) + PRIOR_GAMES / (strength + 1)
        before, strength = strength, wins / expected
        if np.abs(strength / before - 1).max(initial=0.0) < CONVERGED:
            break
    return [float(s / (s + 1)) if games[number].any() else None for number, s in enumerate(strength)]


def strengths(results: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """Return the log-strength of each player, about a mean of 0, from (first, second, points of the first)."""
    games = list(results)
    names = sorted({name for game in games for name in game[:2]})
    numbers = {name: number for number, name in enumerate(names)}
    chances = bradley_terry(len(names), [Result(numbers[first], numbers[second], points) for first, second, points in games])
    logs = {name: math.log(chance / (1 - chance)) for name, chance in zip(names, chances, strict=True) if chance is not None}
    middle = math.fsum(logs.values()) / len(logs) if logs else 0.0
    return {name: log - middle for name, log in logs.items()}


def chance(log_strength: float, other: float = 0.0) -> float:
    """Return the chance that the first of two log-strengths wins."""
    return 1 / (1 + math.exp(other - log_strength))
