"""Speech systems ranked by a pairwise judge's recorded verdicts against one reference (AudioJudge, 5, 6.3 and appendix D).

A row holds both orders. Each order gives 1 point of the system for a win, 0.5 for a tie and 0 for a loss; the mean over the
two orders is its points on an instruction, the mean over instructions its win rate. What cannot be used is counted and named.
Intervals draw instructions with replacement, as all games on one instruction hear the reference's one answer to it; the test of
position gives each instruction's difference a random sign.
Alphabet: I instructions, S systems, R resamples, H random halves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from paras2s.bench.bias.metrics import PLACES, place_of
from paras2s.bench.ranking.data import Game, People, Problem, Recorded, points_table
from paras2s.errors import ConfigError
from paras2s.reward.judges.audio_judge.ensemble_rules import ENSEMBLE, EnsembleRule
from paras2s.reward.judges.votes import POINTS, swapped
from paras2s.statistics.bradley_terry import chance, strengths
from paras2s.statistics.correlation import Correlation, row_correlations
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import RESAMPLES, draw, percentiles, ratio, share_percentiles
from paras2s.statistics.significance import p_equal

FEWEST_SYSTEMS = 3  # Two always lie on a line.
HALVES = 1_000
# Of the judge's instructions and of people's: nothing says that the two number them alike, so they are drawn apart.
JUDGE_SEED, PEOPLE_SEED, HALVES_SEED = 0, 1, 2


def points_of(game: Game) -> float:
    """Return the system's points, 0 to 1: the mean of its two orders."""
    return (POINTS[game.system_first] + POINTS[swapped(game.system_second)]) / 2


def fuse_games(recorded: Recorded, rule: EnsembleRule) -> tuple[list[Game], list[Problem]]:
    """Return the ensemble's games, each order's aspect labels fused into one label, and the games that lack an aspect.

    Raises:
        ConfigError: the rule asks for an aspect that is nowhere in the file.
    """
    if strange := [aspect for aspect in rule.aspects if aspect not in recorded.aspects]:
        raise ConfigError(f"the ensemble needs {', '.join(strange)}; the verdicts have {', '.join(recorded.aspects)}")
    by_game: dict[tuple[str, str], dict[str, Game]] = defaultdict(dict)
    for game in recorded.games:
        if game.aspect in rule.aspects:
            by_game[game.system, game.instruction][game.aspect] = game
    fused, problems = [], []
    for system, instruction in product(recorded.systems, recorded.instructions):
        parts = by_game[system, instruction]
        lacking = [aspect for aspect in rule.aspects if aspect not in parts]
        if lacking:
            kind = f"ensemble of {len(parts)} of {len(rule.aspects)} aspects" if parts else "no ensemble"
            problems.append(Problem(kind, f"{system}, instruction {instruction}: no verdict of {', '.join(lacking)}"))
        if not parts:
            continue
        first = rule.fuse({aspect: game.system_first for aspect, game in parts.items()})
        second = rule.fuse({aspect: game.system_second for aspect, game in parts.items()})
        fused.append(Game(ENSEMBLE, instruction, system, first, second))
    return fused, problems


@dataclass(frozen=True)
class WinRates:
    """Win rates [S], nan without a game; those of resamples [R, S], None without any; how many instructions each is of [S]."""

    value: np.ndarray
    drawn: np.ndarray | None = None
    instructions: np.ndarray | None = None

    def share(self, index: int, n: int, n_asked: int) -> Share:
        """Return a system's share; a single instruction says nothing about others, and has no interval."""
        value, drawn = float(self.value[index]), None
        if self.drawn is not None and self.instructions is not None and self.instructions[index] > 1:
            drawn = self.drawn[:, index]
        if math.isnan(value):
            return Share(n=n, n_asked=n_asked)
        instructions = 0 if self.instructions is None else int(self.instructions[index])
        return Share(value, *share_percentiles(value, drawn, instructions), n, n_asked)


def rates_of(table: np.ndarray, drawn: np.ndarray) -> WinRates:
    """Return win rates of a table [I, S, 2] and of resamples `drawn` of it [R, I]."""
    met = table[..., 1] > 0
    sums = np.tensordot(drawn, table, 1) if met.any(1).sum() > 1 else None
    return WinRates(_ratio(table.sum(0)), None if sums is None else _ratio(sums), met.sum(0))


def _ratio(table: np.ndarray) -> np.ndarray:
    return ratio(table[..., 0], table[..., 1])


@dataclass(frozen=True)
class PositionBias:
    """The influence of the order, over `n` games with both orders; all but `p_value` are shares with their 95 % intervals.

    `stable`: both orders mean the same, a tie twice as well. `first`, `second`: both prefer the clip in that place. `other`:
    one order is a tie. `bias` is `first` less `second`; `p_value` is of none, two-sided, by random signs of the instructions'
    differences, and at least 1 / (R + 1): instructions that all lean one way give 2 / 2**I. None for one instruction alone.
    """

    n: int
    stable: Share
    first: Share
    second: Share
    other: Share
    bias: Share
    p_value: float | None


def outcome_table(games: Iterable[Game], instructions: Sequence[str]) -> np.ndarray:
    """Return the number of games [I, 4] of each of `PLACES`."""
    rows = {name: index for index, name in enumerate(instructions)}
    counts = np.zeros((len(rows), len(PLACES)))
    for game in games:
        counts[rows[game.instruction], PLACES.index(place_of(game.system_first, game.system_second))] += 1
    return counts


def position(counts: np.ndarray, drawn: np.ndarray, n_asked: int) -> PositionBias:
    """Position bias (AudioJudge, 6.3) of outcomes [I, 4] and resamples `drawn` [R, I]; `n_asked` has incomplete games too."""
    total, n = counts.sum(0), int(counts.sum())
    sums = drawn @ counts if counts.any(1).sum() > 1 else None

    def share(weights: Sequence[int]) -> Share:
        of_resamples = None if sums is None else _ratio(np.stack([sums @ weights, sums.sum(1)], axis=-1))
        if not n:
            return Share(n=n, n_asked=n_asked)
        value = float(total @ weights / n)
        # A difference of two shares is none: it has no interval of Wilson's.
        ends = (
            percentiles(of_resamples) if min(weights) < 0 else share_percentiles(value, of_resamples, int(counts.any(1).sum()))
        )
        return Share(value, *ends, n, n_asked)

    stable, first, second, other = (share(row) for row in np.eye(len(PLACES), dtype=int).tolist())
    bias = [0, 1, -1, 0]
    p_value = None if sums is None else p_equal(counts @ bias, resamples=len(drawn))
    return PositionBias(n, stable, first, second, other, share(bias), p_value)


@dataclass(frozen=True)
class AgainstPeople:
    """One ranking beside people's, over `n_systems` in both; `strength_spearman` is None without people's strengths."""

    n_systems: int
    spearman: Correlation
    pearson: Correlation
    strength_spearman: float | None


def correlate(judge: WinRates, people: WinRates) -> tuple[Correlation, Correlation]:
    """Return Spearman's and Pearson's correlation over systems, with intervals from the resamples in which both are defined.

    Noise that a resample adds lowers a correlation: the interval reaches further down than the truth would ask for.
    """
    from scipy import stats

    known = np.isfinite(judge.value) & np.isfinite(people.value)
    first, second = judge.value[known], people.value[known]
    why = [f"{len(first)} systems in both are too few"] if len(first) < FEWEST_SYSTEMS else []
    sides = (("the judge's", first), ("people's", second))
    why += [f"{name} scores are all the same" for name, side in sides if len(set(side)) == 1]
    if why:
        return Correlation(why_none=why[0]), Correlation(why_none=why[0])
    results = (stats.spearmanr(first, second), stats.pearsonr(first, second))
    drawn: tuple[np.ndarray | None, ...] = (None, None)
    if judge.drawn is not None:
        other = people.drawn[:, known] if people.drawn is not None else np.tile(second, (len(judge.drawn), 1))
        drawn = row_correlations(judge.drawn[:, known], other)
    spearman, pearson = (
        Correlation(float(result.statistic), *percentiles(values), p_value=float(result.pvalue))
        for result, values in zip(results, drawn, strict=True)
    )
    return spearman, pearson


@dataclass(frozen=True)
class Ceiling:
    """Correlation of people's win rates on two random halves of the instructions: the mean over `n_halves` splits.

    The corrected value is what Spearman and Brown expect of two full sets as large as this. None if no split is defined.
    """

    spearman: float | None
    spearman_corrected: float | None
    pearson: float | None
    pearson_corrected: float | None
    n_halves: int


def split_half(table: np.ndarray, halves: int = HALVES, seed: int = HALVES_SEED) -> Ceiling:
    """Return the split-half reliability of a table [I, S, 2]; of an odd number of instructions one half has one more."""
    size = len(table)
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(size), (halves, 1)), axis=1)
    flat = table.reshape(size, -1)
    first = ((order < size // 2) @ flat).reshape(halves, *table.shape[1:])
    enough = size > 1 and table.shape[1] >= FEWEST_SYSTEMS
    correlations = row_correlations(_ratio(first), _ratio(table.sum(0) - first)) if enough else ()
    known = [half[np.isfinite(half)] for half in correlations]
    means = [float(half.mean()) if len(half) else None for half in known] or [None, None]
    full = [None if mean is None or mean <= -1 else 2 * mean / (1 + mean) for mean in means]
    return Ceiling(means[0], full[0], means[1], full[1], len(known[0]) if known else 0)


@dataclass(frozen=True)
class Standing:
    """One system: its win rate against the reference, 0 to 1, and its place by that, equals sharing one.

    `bradley_terry` is its chance against the reference by that model; the reference's own is 0.5 by definition. A reference
    that has not met itself has a win rate of 0.5 `by_definition`: of no game, and without an interval.
    """

    win_rate: Share
    place: int | None
    bradley_terry: float | None
    by_definition: bool = False


@dataclass(frozen=True)
class SelfComparison:
    """Games of the reference against itself; `n_same` have the same label in both orders, and count 0.5 whatever it says."""

    win_rate: float
    n: int
    n_same: int
    outcomes: dict[str, int]


@dataclass(frozen=True)
class AspectRanking:
    """One aspect, or the ensemble. Systems are sorted, the best first; `position_of_others` is without self-comparison."""

    systems: dict[str, Standing]
    position: PositionBias
    position_of_others: PositionBias
    self_comparison: SelfComparison | None
    people: AgainstPeople | None


@dataclass(frozen=True)
class PeopleRanking:
    """People's scores of all systems they know, with intervals and strengths where they come from comparisons.

    `bradley_terry` is the chance against a system of mean strength. `ceiling` is over the systems in both, or None with why.
    """

    scores: dict[str, float]
    win_rates: dict[str, Share]
    bradley_terry: dict[str, float]
    only_judge: tuple[str, ...]
    only_people: tuple[str, ...]
    ceiling: Ceiling | None
    why_no_ceiling: str | None


@dataclass(frozen=True)
class Ranking:
    """Everything about one file of verdicts; `categories` has the aspects again for each category of instruction, if asked."""

    reference: str
    n_rows: int
    n_instructions: int
    aspects: dict[str, AspectRanking]
    people: PeopleRanking | None
    problems: tuple[Problem, ...]
    categories: dict[str, dict[str, AspectRanking]] = field(default_factory=dict)


def rank_systems(
    recorded: Recorded,
    rule: EnsembleRule,
    aspects: Sequence[str] = (),
    people: People | None = None,
    resamples: int = RESAMPLES,
) -> Ranking:
    """Rank by each of `aspects`; without any by all of the file, and by the ensemble where the file has what it needs.

    Raises:
        ConfigError: an aspect that is not in the file, or no ensemble where one is asked for.
    """
    if strange := [aspect for aspect in aspects if aspect not in (*recorded.aspects, ENSEMBLE)]:
        raise ConfigError(f"no verdicts of the aspect {strange[0]!r}; there are {', '.join((*recorded.aspects, ENSEMBLE))}")
    chosen = list(dict.fromkeys(aspects)) or [*recorded.aspects, ENSEMBLE]
    problems = list(recorded.problems)
    games: dict[str, list[Game]] = {name: [game for game in recorded.games if game.aspect == name] for name in chosen}
    if ENSEMBLE in chosen:
        try:
            games[ENSEMBLE], lacking = fuse_games(recorded, rule)
        except ConfigError as error:
            if aspects:
                raise
            del games[ENSEMBLE]
            lacking = [Problem("no ensemble", str(error))]
        problems += lacking
    if recorded.reference not in recorded.systems:
        what = f"{recorded.reference}, the reference, has not met itself: its win rate of 50 % is by definition"
        problems.append(Problem("no self-comparison", what))
    other, beside = (None, None) if people is None else _people_ranking(people, _with_reference(recorded), resamples)
    drawn = draw(len(recorded.instructions), resamples, JUDGE_SEED)
    rankings = {name: _rank(recorded, played, drawn, beside, other) for name, played in games.items()}
    return Ranking(recorded.reference, recorded.n_rows, len(recorded.instructions), rankings, other, tuple(problems))


def _with_reference(recorded: Recorded) -> tuple[str, ...]:
    """Return the systems, and the reference if it has not met itself: half of its games with itself are its own."""
    return tuple(sorted({*recorded.systems, recorded.reference}))


def _rank(
    recorded: Recorded, games: Sequence[Game], drawn: np.ndarray, beside: WinRates | None, people: PeopleRanking | None
) -> AspectRanking:
    systems, reference = _with_reference(recorded), recorded.reference
    cells = ((game.instruction, game.system, points_of(game)) for game in games)
    table = points_table(cells, recorded.instructions, systems)
    by_definition = not table[:, systems.index(reference), 1].any()
    if by_definition:
        table[:, systems.index(reference)] = 0.5, 1
    rates = rates_of(table, drawn)
    others = [game for game in games if game.system != reference]
    logs = strengths((game.system, reference, points_of(game)) for game in others)
    standings = {}
    for at, system in enumerate(systems):
        share = rates.share(at, int(table[:, at, 1].sum()), len(recorded.instructions))
        defined = by_definition and system == reference
        if defined:
            share = Share(0.5, None, None, 0, 0)
        rank = None if share.value is None else 1 + int((rates.value > share.value).sum())
        bradley = chance(logs[system], logs[reference]) if system in logs else None
        standings[system] = Standing(share, rank, bradley, defined)
    best_first = sorted(standings.items(), key=lambda item: (item[1].place is None, item[1].place, item[0]))
    against = None
    if beside is not None and people is not None:
        known = np.array([people.bradley_terry.get(system, math.nan) for system in systems])
        strength = correlate(WinRates(rates.value), WinRates(known))[0].value if people.bradley_terry else None
        both = np.isfinite(rates.value) & np.isfinite(beside.value)
        against = AgainstPeople(int(both.sum()), *correlate(rates, beside), strength)
    itself = _self_comparison([game for game in games if game.system == reference])
    sides = ((games, recorded.systems), (others, [system for system in systems if system != reference]))
    both, apart = (
        position(outcome_table(some, recorded.instructions), drawn, len(of) * len(recorded.instructions)) for some, of in sides
    )
    return AspectRanking(dict(best_first), both, apart, itself, against)


def _self_comparison(games: Sequence[Game]) -> SelfComparison | None:
    if not games:
        return None
    outcomes = [place_of(game.system_first, game.system_second) for game in games]
    same = sum(game.system_first == game.system_second for game in games)
    win_rate = math.fsum(map(points_of, games)) / len(games)
    return SelfComparison(win_rate, len(games), same, {name: outcomes.count(name) for name in PLACES})


def _people_ranking(people: People, systems: Sequence[str], resamples: int) -> tuple[PeopleRanking, WinRates]:
    """People's side of the report, and their scores of the judge's systems, in its order."""
    only_judge = tuple(system for system in systems if system not in people.scores)
    only_people = tuple(name for name in people.scores if name not in systems)
    scores = dict(sorted(people.scores.items(), key=lambda item: (-item[1], item[0])))
    if not people.games:
        why = "bare scores do not say what they are the mean of; a split needs the comparisons"
        beside = WinRates(np.array([scores.get(system, math.nan) for system in systems]))
        return PeopleRanking(scores, {}, {}, only_judge, only_people, None, why), beside
    names = list(scores)
    table = people.table(names)
    drawn = draw(len(table), resamples, PEOPLE_SEED)
    rates, n = rates_of(table, drawn), table[..., 1].sum(0).astype(int).tolist()
    shares = {name: rates.share(at, n[at], n[at]) for at, name in enumerate(names)}
    logs = strengths((game.first, game.second, game.points) for game in people.games)
    bradley = {name: chance(logs[name]) for name in names}
    ceiling = split_half(people.table([name for name in systems if name in scores]))
    beside = rates_of(people.table(systems), drawn)
    return PeopleRanking(scores, shares, bradley, only_judge, only_people, ceiling, None), beside
