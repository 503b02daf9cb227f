"""A pairwise judge as a reward: the answers of a group are compared with each other, and their rating is the score.

The schedule of the pairs and the ratings are pure functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.judges.base import Judge, Pair
from paras2s.reward.sources.base import Group, Scores, on_scale
from paras2s.statistics.bradley_terry import Result, bradley_terry
from paras2s.types import Preference, Unscored

Schedule = Literal["all", "swiss"]
Rating = Literal["win_rate", "bradley_terry"]


def swiss_round(playing: Sequence[int], results: Sequence[Result], drawn: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pair answers of similar points that were not paired before; ties in points go by number.

    If their number is odd, one answer sits out: among those with most games, the lowest in points.
    """
    points = dict.fromkeys(playing, 0.0)
    games = dict.fromkeys(playing, 0)
    for result in results:
        points[result.first] += result.points
        points[result.second] += 1 - result.points
    for pair in drawn:
        for number in pair:
            games[number] += 1
    met = {frozenset(pair) for pair in drawn}
    waiting = sorted(playing, key=lambda number: (-points[number], number))
    if len(waiting) % 2:
        waiting.remove(max(waiting, key=lambda number: (games[number], -points[number], number)))
    pairs = []
    while len(waiting) > 1:
        first = waiting.pop(0)
        rival = next((other for other in waiting if frozenset((first, other)) not in met), None)
        if rival is not None:
            waiting.remove(rival)
            pairs.append((first, rival))
    return pairs


def win_rates(size: int, results: Sequence[Result]) -> list[float | None]:
    """Return the mean points of each answer over its games; None for one without a game."""
    points: list[list[float]] = [[] for _ in range(size)]
    for result in results:
        points[result.first].append(result.points)
        points[result.second].append(1 - result.points)
    return [float(np.mean(got)) if got else None for got in points]


STANDINGS: dict[Rating, Callable[[int, Sequence[Result]], list[float | None]]] = {
    "win_rate": win_rates,
    "bradley_terry": bradley_terry,
}


@dataclass(frozen=True)
class PairwiseSource:
    """Rewards by comparing all answers of a group, or a Swiss draw of `rounds`; the judge's config sets the orders."""

    judge: Judge
    schedule: Schedule = "all"
    rating: Rating = "win_rate"
    rounds: int = 3
    kind: ClassVar[str] = "pairwise"
    extractors: ClassVar[tuple[str, ...]] = ()
    needs_sound: ClassVar[bool] = True
    needs_codes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, allowed in (("schedule", get_args(Schedule)), ("rating", get_args(Rating))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"reward.sources: pairwise: {name} must be {' or '.join(allowed)}")
        if self.rounds < 1:
            raise ConfigError("reward.sources: pairwise: rounds must be at least 1")

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Return scores [B, G]; an answer none of whose games could be judged is Unscored.

        Raises:
            BudgetError: the budget ended; a step with half its games would reward by chance.
        """
        results: list[list[Result]] = [[] for _ in groups]
        drawn: list[list[tuple[int, int]]] = [[] for _ in groups]
        why = ["no game was played, or the answer has no sound" for _ in groups]
        playing = [
            [n for n, answer in enumerate(group.answers) if answer.clip and len(answer.clip.samples)] for group in groups
        ]
        for _ in range(1 if self.schedule == "all" else self.rounds):
            now = [self._draw(*known) for known in zip(playing, results, drawn, strict=True)]
            for before, pairs in zip(drawn, now, strict=True):
                before += pairs
            self._play(groups, now, results, why)
        scores: list[Scores] = []
        for group, played, reason in zip(groups, results, why, strict=True):
            standing = STANDINGS[self.rating](len(group.answers), played)
            scores.append([Unscored(self.kind, reason) if rate is None else on_scale(rate) for rate in standing])
        return scores

    def _draw(
        self, playing: Sequence[int], results: Sequence[Result], drawn: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        if self.schedule == "swiss":
            return swiss_round(playing, results, drawn)
        # Each is first in about half of its games: a judge that prefers the first place would else reward low numbers.
        return [(a, b) if (a + b) % 2 else (b, a) for a, b in itertools.combinations(playing, 2)]

    def _play(
        self,
        groups: Sequence[Group],
        drawn: Sequence[Sequence[tuple[int, int]]],
        results: list[list[Result]],
        why: list[str],
    ) -> None:
        games = [(index, pair) for index, pairs in enumerate(drawn) for pair in pairs]
        verdicts = self.judge.compare_batch([_pair(groups[index], pair) for index, pair in games])
        for (index, (first, second)), verdict in zip(games, verdicts, strict=True):
            if isinstance(verdict, BudgetError):
                raise verdict
            if isinstance(verdict, Preference):
                results[index].append(Result(first, second, verdict.points))
            else:
                why[index] = verdict.reason


def _pair(group: Group, pair: tuple[int, int]) -> Pair:
    first, second = (group.answers[number].clip for number in pair)
    assert first is not None
    assert second is not None
    return Pair(group.question.utterance(), first, second)
