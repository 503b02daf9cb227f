"""Agreement of automatic scores of answers with people's (ParaS2S, section 5.1, appendix E; Tables 1 and 6).

The paper gives correlations with p-values that take answers as independent. Answers to one query are not: the interval beside
them draws queries. Added as well: how far the raters agree with each other, over all ratings, also those that are discarded.
Alphabet: N answers, Q queries, R resamples.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paras2s.bench.results import HIGHEST_SCORE, LOWEST_SCORE
from paras2s.bench.speakbench.metrics import RESAMPLES, resample
from paras2s.errors import DataError, first_problem
from paras2s.types import Unscored
from paras2s.utils.io import read_csv

ALL, AVERAGE = "all", "average"
FEWEST_ANSWERS = 3  # Two always lie on a line.
BLOCK_CELLS = 4_000_000  # Of a block of resamples [R, N]: thousands of answers must not take gigabytes.
SHOWN_ANSWERS = 20


class AnswerKey(NamedTuple):
    """One answer: the query's id, the system that gave it, and the query's category."""

    id: str
    system: str
    category: str


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_strip_whitespace=True, str_min_length=1)

    id: str
    system: str
    category: str

    @property
    def key(self) -> AnswerKey:
        """The answer that this row is about."""
        return AnswerKey(self.id, self.system, self.category)


class Rating(_Row):
    """One rater's score of one answer, 1 to 5. Made by `load_ratings`, read by `human_agreement`."""

    rater: str
    score: float = Field(ge=LOWEST_SCORE, le=HIGHEST_SCORE)


RowKind = TypeVar("RowKind", bound=_Row)
Scores = Mapping[AnswerKey, float | Unscored]


def load_ratings(path: Path) -> list[Rating]:
    """Ratings of a CSV with the columns id, system, category, rater and score: a row each, in its order.

    Raises:
        DataError: missing, empty, a missing or unknown column, a wrong value, or a rater twice on one answer; names file:line
            and column.
    """
    return _checked(path, read_csv(path), Rating, ("id", "system", "rater"))


def _checked(path: Path, rows: Iterable[tuple[int, Any]], kind: type[RowKind], once: Sequence[str]) -> list[RowKind]:
    """Records of a file's rows, those that `once` names different in each."""
    records: dict[tuple[str, ...], RowKind] = {}
    for number, row in rows:
        try:
            one = kind.model_validate(row)
        except ValidationError as error:
            raise DataError(f"{path}:{number}: {first_problem(error)}") from error
        names = tuple(getattr(one, name) for name in once)
        if names in records:
            raise DataError(f"{path}:{number}: {', '.join(once)}: {', '.join(names)} stands more than once")
        records[names] = one
    if not records:
        raise DataError(f"{path}: holds no rows")
    return list(records.values())


@dataclass(frozen=True)
class Correlation:
    """A correlation, its two-sided p-value, and its 95 % bootstrap interval over queries (None for one query alone).

    Where it is not defined, all are None and `why_none` says why.
    """

    value: float | None = None
    p_value: float | None = None
    low: float | None = None
    high: float | None = None
    why_none: str | None = None


@dataclass(frozen=True)
class GroupAgreement:
    """The answers of one category, or of all: `n` with both sides, and how many lack one or were discarded.

    `alpha` is Krippendorff's for interval data, over every rating of these answers; None with the reason in `why_no_alpha`.
    """

    n: int
    without_score: int
    without_rating: int
    discarded: int
    pearson: Correlation
    spearman: Correlation
    alpha: float | None
    why_no_alpha: str | None


@dataclass(frozen=True)
class SystemMeans:
    """Mean scores of a system's `n` answers with both sides, and its rank by each: 1 is best, equal means share one.

    In the column "average" it is the mean of the category means, as in the paper; None where a category has none.
    """

    automatic: float | None
    human: float | None
    n: int
    automatic_rank: int | None
    human_rank: int | None


@dataclass(frozen=True)
class HumanAgreement:
    """One set of automatic scores against one set of ratings.

    `groups` holds each category and "all" (Table 6). `systems` holds each category and "average", with its systems (Table 1),
    and `switched` the pairs of systems there that the two sides rank the other way round. `without_score` says why.
    """

    groups: dict[str, GroupAgreement]
    systems: dict[str, dict[str, SystemMeans]]
    switched: dict[str, tuple[tuple[str, str], ...]]
    without_score: dict[AnswerKey, str]
    without_rating: tuple[AnswerKey, ...]
    discarded: tuple[AnswerKey, ...]
    n_ratings: int
    n_raters: int


def human_agreement(
    ratings: Sequence[Rating], scores: Scores, discard_disagreement: bool = True, resamples: int = RESAMPLES
) -> HumanAgreement:
    """Agreement of each answer's mean rating with its automatic score.

    With `discard_disagreement`, an answer with three raters or more of whom no two agree is left out (footnote 14).

    Raises:
        DataError: there are no ratings, a query is in two categories, or a score is not finite.
    """
    given: dict[AnswerKey, list[float]] = defaultdict(list)
    for rating in ratings:
        given[rating.key].append(rating.score)
    if not given:
        raise DataError("no ratings: there is nothing to agree with")
    category_of: dict[str, str] = {}
    for key in (*given, *scores):
        if key.category in (ALL, AVERAGE):
            raise DataError(f"category: {key.category!r} is no category's name; it stands for all of them")
        if category_of.setdefault(key.id, key.category) != key.category:
            raise DataError(f"category: query {key.id!r} is in {category_of[key.id]!r} and in {key.category!r}")
    apart = {key: True for key, one in given.items() if discard_disagreement and len(set(one)) == len(one) >= 3}
    pairs: dict[AnswerKey, tuple[float, float]] = {}
    missing: dict[AnswerKey, str] = {}
    for key in (key for key in given if key not in apart):
        score = scores.get(key, Unscored("", "not among the scores"))
        if isinstance(score, Unscored):
            missing[key] = score.reason
        elif math.isfinite(score):
            pairs[key] = (float(score), fmean(given[key]))
        else:
            raise DataError(f"score: {score} of {key.id!r} by {key.system!r} is not finite")
    unrated = tuple(key for key in scores if key not in given)
    categories = list(dict.fromkeys(key.category for key in given))
    groups = {}
    for name in (*categories, ALL):
        mine = _of(name, pairs)
        n, unscored, unseen, dropped = (len(_of(name, keys)) for keys in (pairs, missing, unrated, apart))
        both = correlations([pairs[key] for key in mine], [key.id for key in mine], resamples)
        alpha = krippendorff_alpha([given[key] for key in _of(name, given)])
        groups[name] = GroupAgreement(n, unscored, unseen, dropped, *both, *alpha)
    systems = _table(pairs, list(dict.fromkeys(key.system for key in given)), categories)
    switched = {name: _switched(column) for name, column in systems.items()}
    raters = {rating.rater for rating in ratings}
    return HumanAgreement(groups, systems, switched, missing, unrated, tuple(apart), len(ratings), len(raters))


def _of(category: str, keys: Iterable[AnswerKey]) -> list[AnswerKey]:
    return [key for key in keys if category in (ALL, AVERAGE, key.category)]


def correlations(
    pairs: Sequence[tuple[float, float]], clusters: Sequence[str], resamples: int = RESAMPLES
) -> tuple[Correlation, Correlation]:
    """Pearson's and Spearman's correlation of N pairs, with intervals from drawing their clusters with replacement."""
    from scipy import stats

    first, second = np.array(pairs, dtype=float).reshape(-1, 2).T
    why = [f"{len(pairs)} answers with both sides are too few"] if len(pairs) < FEWEST_ANSWERS else []
    why += [
        f"{name} scores are all the same" for name, side in (("automatic", first), ("human", second)) if len(set(side)) == 1
    ]
    if why:
        return Correlation(why_none=why[0]), Correlation(why_none=why[0])
    found = (stats.pearsonr(first, second), stats.spearmanr(first, second))
    ends = _intervals(first, second, clusters, resamples)
    one, other = [Correlation(float(r.statistic), float(r.pvalue), *end) for r, end in zip(found, ends, strict=True)]
    return one, other


def _intervals(
    first: np.ndarray, second: np.ndarray, clusters: Sequence[str], resamples: int
) -> list[tuple[float, float] | tuple[None, None]]:
    """Percentile intervals of both correlations; resamples in which a side is constant are left out."""
    rows = {name: place for place, name in enumerate(dict.fromkeys(clusters))}
    if len(rows) < 2:
        return [(None, None), (None, None)]
    # How often each query is drawn, [R, Q]; each answer [N] is drawn as often as its query.
    drawn = resample(np.eye(len(rows)), resamples)
    of_query = np.array([rows[name] for name in clusters])
    values = []
    for block in np.array_split(drawn, resamples * len(clusters) // BLOCK_CELLS + 1):
        weights = block[:, of_query]
        ranks = (weighted_ranks(weights, first), weighted_ranks(weights, second))
        values.append([weighted_pearson(weights, first, second), weighted_pearson(weights, *ranks)])
    finite = [one[np.isfinite(one)] for one in np.concatenate(values, axis=1)]
    return [tuple(np.percentile(one, [2.5, 97.5]).tolist()) if len(one) else (None, None) for one in finite]


def weighted_pearson(weights: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Correlations [R] of values [N] or [R, N] that stand in each resample as often as `weights` [R, N] says; or nan."""
    total, sides = weights.sum(1, keepdims=True), []
    for values in (first, second):
        centred = values - (weights * values).sum(1, keepdims=True) / total
        spread = np.sqrt((weights * centred**2).sum(1, keepdims=True) / total)
        # Rounding leaves a constant side a trace of spread.
        known = spread > 1e-10 * np.abs(values).max()
        sides.append(np.divide(centred, spread, out=np.full(weights.shape, np.nan), where=known))
    return np.asarray((weights * sides[0] * sides[1]).sum(1) / total[:, 0])


def weighted_ranks(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Ranks [R, N] of values [N] that stand in each resample as often as `weights` [R, N] says; equals share their mean."""
    known, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    at_value = np.add.reduceat(weights[:, order], np.searchsorted(place[order], np.arange(len(known))), axis=1)
    return np.asarray((np.cumsum(at_value, axis=1) - (at_value - 1) / 2)[:, place])


def krippendorff_alpha(given: Sequence[Sequence[float]]) -> tuple[float | None, str | None]:
    """Krippendorff's alpha for interval data, 1 - D_o / D_e, over the ratings of each answer (Krippendorff 2011).

    An answer with one rating says nothing about agreement and is left out. None with the reason where it is not defined.
    """
    units = [np.array(one, dtype=float) for one in given if len(one) > 1]
    if not units:
        return None, "no answer has two ratings"
    every = np.concatenate(units)
    # Squared differences over the ordered pairs of m values sum to 2 m^2 times their variance.
    observed = sum(2 * len(one) ** 2 * one.var() / (len(one) - 1) for one in units) / len(every)
    expected = 2 * len(every) * every.var() / (len(every) - 1)
    return (float(1 - observed / expected), None) if expected > 0 else (None, "all ratings are the same")


Means = tuple[float, float] | tuple[None, None]


def _table(
    pairs: Mapping[AnswerKey, tuple[float, float]], systems: Sequence[str], categories: Sequence[str]
) -> dict[str, dict[str, SystemMeans]]:
    means: dict[str, dict[str, Means]] = {name: {} for name in (*categories, AVERAGE)}
    for one in systems:
        for name in categories:
            means[name][one] = _means([pair for key, pair in pairs.items() if key[1:] == (one, name)])
        means[AVERAGE][one] = _means([means[name][one] for name in categories])
    table: dict[str, dict[str, SystemMeans]] = {}
    for name, column in means.items():
        n = Counter(key.system for key in _of(name, pairs))
        sides = [[mean[side] for mean in column.values()] for side in (0, 1)]
        table[name] = {
            one: SystemMeans(first, second, n[one], _rank(first, sides[0]), _rank(second, sides[1]))
            for one, (first, second) in column.items()
        }
    return table


def _means(pairs: Sequence[Means]) -> Means:
    """Means of both sides; None where one is missing, since a mean over fewer would not compare."""
    known = [(first, second) for first, second in pairs if first is not None and second is not None]
    if not known or len(known) < len(pairs):
        return None, None
    return fmean(first for first, _ in known), fmean(second for _, second in known)


def _rank(mine: float | None, everyone: Sequence[float | None]) -> int | None:
    return None if mine is None else 1 + sum(other is not None and other > mine for other in everyone)


def _switched(column: Mapping[str, SystemMeans]) -> tuple[tuple[str, str], ...]:
    sides = [(name, one.automatic, one.human) for name, one in column.items()]
    known = [(name, first, second) for name, first, second in sides if first is not None and second is not None]
    return tuple((a[0], b[0]) for a, b in combinations(known, 2) if (a[1] - b[1]) * (a[2] - b[2]) < 0)


def markdown_tables(agreement: HumanAgreement) -> str:
    """Tables 6 and 1 of the paper as Markdown, with what is missing on either side."""
    head = "| Category | n | Pearson | p | Spearman | p | Raters' alpha | not scored | not rated | discarded |"
    lines = [head, "|---|" + "---:|" * 9]
    for name, group in agreement.groups.items():
        cells = [*_correlation(group.pearson), *_correlation(group.spearman), _number(group.alpha, f" ({group.why_no_alpha})")]
        lines.append(_line([name, group.n, *cells, group.without_score, group.without_rating, group.discarded]))
    lines += ["", _line(["System", *(f"{name} {side}" for name in agreement.systems for side in ("automatic", "human"))])]
    lines.append("|---|" + "---:|" * 2 * len(agreement.systems))
    for system in agreement.systems[AVERAGE]:
        row = [column[system] for column in agreement.systems.values()]
        sides = [side for one in row for side in ((one.automatic, one.automatic_rank), (one.human, one.human_rank))]
        lines.append(_line([system, *(_number(mean) + (f" ({rank})" if rank else "") for mean, rank in sides)]))
    lines += ["", f"{agreement.n_ratings} ratings by {agreement.n_raters} raters."]
    lines += _listed("Pairs of systems that switch ranks, by average", [f"{a} and {b}" for a, b in agreement.switched[AVERAGE]])
    lines += _listed(
        "Rated, but not scored", [f"{key.id} by {key.system}: {why}" for key, why in agreement.without_score.items()]
    )
    lines += _listed("Scored, but not rated", [f"{key.id} by {key.system}" for key in agreement.without_rating])
    lines += _listed("Discarded, as no two raters agree", [f"{key.id} by {key.system}" for key in agreement.discarded])
    return "\n".join(lines) + "\n"


def _correlation(one: Correlation) -> list[str]:
    interval = "" if one.low is None or one.high is None else f" [{one.low:.3f}, {one.high:.3f}]"
    p_value = "" if one.p_value is None else f"{one.p_value:.1e}" if one.p_value > 0 else "< 1e-300"
    return [_number(one.value, f" ({one.why_none})") + interval, p_value]


def _number(value: float | None, why_none: str = "") -> str:
    return f"none{why_none}" if value is None else f"{value:.3f}"


def _listed(title: str, names: Sequence[str]) -> list[str]:
    more = f"; and {len(names) - SHOWN_ANSWERS} more" if len(names) > SHOWN_ANSWERS else ""
    return ["", f"{title} ({len(names)}): {_safe('; '.join(names[:SHOWN_ANSWERS])) or 'none'}{more}."]


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(_safe(str(cell)) for cell in cells) + " |"


def _safe(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
