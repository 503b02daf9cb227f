"""Agreement of automatic scores of answers with people's (ParaS2S, section 5.1, appendix E; Tables 1 and 6).

The paper gives correlations with p-values that take answers as independent. Answers to one query are not: the interval beside
them draws queries. Added as well: how far the raters agree with each other, over all ratings, also those that are discarded.
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

from pydantic import BaseModel, ConfigDict, Field

from paras2s.bench.results import HIGHEST_SCORE, LOWEST_SCORE
from paras2s.errors import DataError, checking
from paras2s.statistics.annotators import krippendorff
from paras2s.statistics.correlation import Correlation, correlations
from paras2s.statistics.resampling import RESAMPLES
from paras2s.types import Unscored
from paras2s.utils.io import read_csv
from paras2s.utils.tables import Table, escape_markdown, number_text, with_interval

ALL, AVERAGE = "all", "average"
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
    """Return the ratings of a CSV with the columns id, system, category, rater and score: a row each, in its order.

    Raises:
        DataError: missing, empty, a missing or unknown column, a wrong value, or a rater twice on one answer; names file:line
            and column.
    """
    return _checked(path, read_csv(path), Rating, ("id", "system", "rater"))


def _checked(path: Path, rows: Iterable[tuple[int, Any]], kind: type[RowKind], once: Sequence[str]) -> list[RowKind]:
    """Read the records of a file's rows; the columns that `once` names differ in each."""
    records: dict[tuple[str, ...], RowKind] = {}
    for number, row in rows:
        with checking(f"{path}:{number}"):
            record = kind.model_validate(row)
        names = tuple(getattr(record, name) for name in once)
        if names in records:
            raise DataError(f"{path}:{number}: {', '.join(once)}: {', '.join(names)} occurs more than once")
        records[names] = record
    if not records:
        raise DataError(f"{path}: holds no rows")
    return list(records.values())


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
    """A system's mean scores over `n` answers and its ranks (equal means share one); "average" is the mean over categories."""

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
    apart = {key: True for key, ratings in given.items() if discard_disagreement and len(set(ratings)) == len(ratings) >= 3}
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
        ratings_of = [dict(enumerate(given[key])) for key in _of(name, given)]
        alpha = krippendorff(ratings_of, [name] * len(ratings_of), "interval")
        groups[name] = GroupAgreement(n, unscored, unseen, dropped, *both, alpha.value, alpha.why_none)
    systems = _table(pairs, list(dict.fromkeys(key.system for key in given)), categories)
    switched = {name: _switched(column) for name, column in systems.items()}
    raters = {rating.rater for rating in ratings}
    return HumanAgreement(groups, systems, switched, missing, unrated, tuple(apart), len(ratings), len(raters))


def _of(category: str, keys: Iterable[AnswerKey]) -> list[AnswerKey]:
    return [key for key in keys if category in (ALL, AVERAGE, key.category)]


Means = tuple[float, float] | tuple[None, None]


def _table(
    pairs: Mapping[AnswerKey, tuple[float, float]], systems: Sequence[str], categories: Sequence[str]
) -> dict[str, dict[str, SystemMeans]]:
    means: dict[str, dict[str, Means]] = {name: {} for name in (*categories, AVERAGE)}
    for system in systems:
        for name in categories:
            means[name][system] = _means([pair for key, pair in pairs.items() if key[1:] == (system, name)])
        means[AVERAGE][system] = _means([means[name][system] for name in categories])
    table: dict[str, dict[str, SystemMeans]] = {}
    for name, column in means.items():
        n = Counter(key.system for key in _of(name, pairs))
        sides = [[mean[side] for mean in column.values()] for side in (0, 1)]
        table[name] = {
            system: SystemMeans(first, second, n[system], _rank(first, sides[0]), _rank(second, sides[1]))
            for system, (first, second) in column.items()
        }
    return table


def _means(pairs: Sequence[Means]) -> Means:
    """Return the means of both sides; None if one is missing, since a mean over fewer would not compare."""
    known = [(first, second) for first, second in pairs if first is not None and second is not None]
    if not known or len(known) < len(pairs):
        return None, None
    return fmean(first for first, _ in known), fmean(second for _, second in known)


def _rank(mine: float | None, everyone: Sequence[float | None]) -> int | None:
    return None if mine is None else 1 + sum(other is not None and other > mine for other in everyone)


def _switched(column: Mapping[str, SystemMeans]) -> tuple[tuple[str, str], ...]:
    sides = [(name, means.automatic, means.human) for name, means in column.items()]
    known = [(name, first, second) for name, first, second in sides if first is not None and second is not None]
    return tuple((a[0], b[0]) for a, b in combinations(known, 2) if (a[1] - b[1]) * (a[2] - b[2]) < 0)


def markdown_tables(agreement: HumanAgreement) -> str:
    """Return the tables 6 and 1 of the paper as Markdown, with what is missing on either side."""
    head = ("Category", "n", "Pearson", "p", "Spearman", "p", "Raters' alpha", "not scored", "not rated", "discarded")
    groups = [
        (name, group.n, *_correlation(group.pearson), *_correlation(group.spearman),
         number_text(group.alpha, 3, none=f"none ({group.why_no_alpha})"),
         group.without_score, group.without_rating, group.discarded)
        for name, group in agreement.groups.items()
    ]  # fmt: skip
    systems = []
    for system in agreement.systems[AVERAGE]:
        means = [column[system] for column in agreement.systems.values()]
        sides = [side for mean in means for side in ((mean.automatic, mean.automatic_rank), (mean.human, mean.human_rank))]
        systems.append((system, *(number_text(mean, 3, none="none") + (f" ({rank})" if rank else "") for mean, rank in sides)))
    columns = [f"{name} {side}" for name in agreement.systems for side in ("automatic", "human")]
    lines = [Table(head, groups).markdown(), "", Table(("System", *columns), systems).markdown()]
    lines += ["", f"{agreement.n_ratings} ratings by {agreement.n_raters} raters."]
    lines += _listed("Pairs of systems that switch ranks, by average", [f"{a} and {b}" for a, b in agreement.switched[AVERAGE]])
    lines += _listed(
        "Rated, but not scored", [f"{key.id} by {key.system}: {why}" for key, why in agreement.without_score.items()]
    )
    lines += _listed("Scored, but not rated", [f"{key.id} by {key.system}" for key in agreement.without_rating])
    lines += _listed("Discarded, as no two raters agree", [f"{key.id} by {key.system}" for key in agreement.discarded])
    return "\n".join(lines) + "\n"


def _correlation(correlation: Correlation) -> list[str]:
    p_value = "" if correlation.p_value is None else f"{correlation.p_value:.1e}" if correlation.p_value > 0 else "< 1e-300"
    return [with_interval(correlation, 3, brackets=True, none=f"none ({correlation.why_none})"), p_value]


def _listed(title: str, names: Sequence[str]) -> list[str]:
    more = f"; and {len(names) - SHOWN_ANSWERS} more" if len(names) > SHOWN_ANSWERS else ""
    return ["", f"{title} ({len(names)}): {escape_markdown('; '.join(names[:SHOWN_ANSWERS])) or 'none'}{more}."]
