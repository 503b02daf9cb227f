"""Systems ranked by a pairwise judge where any two of them meet (AudioJudge: ChatbotArena-Spoken, Fig. 18 and Table 11).

A row holds both orders of one meeting of two systems, and people's label of it. Every meeting counts for both: a win is
1 point, a tie 0.5, a loss 0, the mean of the two orders is a system's points, and the mean over its meetings its win rate.
People's win rates are over the same meetings: both sides have seen the same opponents. Intervals draw instructions with
replacement.
Alphabet: I instructions, S systems, R resamples.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from paras2s.bench.ranking import data
from paras2s.bench.ranking.data import Game, Problem, points_table
from paras2s.bench.ranking.metrics import PositionBias, correlate, outcome_table, position, rates_of
from paras2s.errors import DataError
from paras2s.reward.judges.votes import POINTS, swapped
from paras2s.statistics.bradley_terry import chance, strengths
from paras2s.statistics.correlation import Correlation
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import draw
from paras2s.types import PAIR_LABELS, PairLabel
from paras2s.utils.io import read_csv, read_text

# "1" is `system`, "2" is `reference`: people have heard the two in no order that is written down.
PEOPLE_COLUMN = "human"
COLUMNS = (*data.COLUMNS, PEOPLE_COLUMN)
# Fewer than elsewhere: a resample holds a number for each of up to 7,824 instructions.
RESAMPLES = 2_000


class Meeting(NamedTuple):
    """Two systems on one instruction. In `orders` "1" is the clip played first, in `people` the first system."""

    instruction: str
    first: str
    second: str
    orders: tuple[PairLabel, PairLabel]
    people: PairLabel

    @property
    def points(self) -> float:
        """The first system's points by the judge, 0 to 1."""
        return (POINTS[self.orders[0]] + POINTS[swapped(self.orders[1])]) / 2

    @property
    def right(self) -> float:
        """The share of the two orders in which the judge says what people say."""
        return ((self.orders[0] == self.people) + (swapped(self.orders[1]) == self.people)) / 2


@dataclass(frozen=True)
class Arena:
    """The meetings of one file by aspect, in its order, and what could not be used."""

    meetings: dict[str, tuple[Meeting, ...]]
    problems: tuple[Problem, ...]
    n_rows: dict[str, int]


def holds_arena(path: Path) -> bool:
    """Return whether a CSV's head names people's labels, as a file of meetings does. Raises DataError: it cannot be read."""
    return PEOPLE_COLUMN in [name.strip() for name in next(csv.reader(io.StringIO(read_text(path))), [])]


def load_arena(path: Path) -> Arena:
    """Return the meetings of a CSV with `COLUMNS`, a row each. A row that lacks a label is a problem, and is left out.

    Raises:
        DataError: a missing column, an unknown label, a system that meets itself, a meeting that occurs twice, or no row that
            can be used; names file:line.
    """
    meetings: dict[str, list[Meeting]] = {}
    problems: list[Problem] = []
    n_rows: Counter[str] = Counter()
    seen: set[tuple[str, str, frozenset[str]]] = set()
    for where, row in _rows(path):
        aspect, instruction, first, second = (row[name] for name in data.COLUMNS[:4])
        n_rows[aspect] += 1
        meetings.setdefault(aspect, [])
        if first == second:
            raise DataError(f"{where}: reference: {first!r} meets itself; in a file of meetings two systems meet")
        if (key := (aspect, instruction, frozenset((first, second)))) in seen:
            raise DataError(f"{where}: instruction_id: {first} and {second} meet twice on {instruction}")
        seen.add(key)
        labels = {name: row[name] for name in (*data.ORDERS, PEOPLE_COLUMN)}
        if missing := [name for name, label in labels.items() if label in ("", "unscored")]:
            problems.append(Problem(f"no {missing[0]}", f"{where}: {aspect}, instruction {instruction}"))
            continue
        if wrong := [name for name, label in labels.items() if label not in PAIR_LABELS]:
            raise DataError(f"{where}: {wrong[0]}: {labels[wrong[0]]!r} is none of {', '.join(PAIR_LABELS)}")
        direct, other, people = cast(list[PairLabel], list(labels.values()))
        meetings[aspect].append(Meeting(instruction, first, second, (direct, other), people))
    if not any(meetings.values()):
        raise DataError(f"{path}: holds no meeting with both orders and people's label")
    return Arena({name: tuple(own) for name, own in meetings.items()}, tuple(problems), dict(n_rows))


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield rows with file:line, cells stripped."""
    for number, cells in read_csv(path):
        where = f"{path}:{number}"
        row = {(name or "").strip(): cell for name, cell in cells.items()}
        if strange := [name for name in row if name not in COLUMNS]:
            raise DataError(f"{where}: {strange[0]}: expected the columns {', '.join(COLUMNS)}")
        if missing := [name for name in COLUMNS if row.get(name) is None]:
            raise DataError(f"{where}: {missing[0]}: no such column or value; expected {', '.join(COLUMNS)}")
        yield where, {name: str(cell).strip() for name, cell in row.items()}


@dataclass(frozen=True)
class Rank:
    """One system by the judge and by people: win rates over the same meetings, and chances against a mean system."""

    judge: Share
    people: Share
    judge_bradley_terry: float
    people_bradley_terry: float


@dataclass(frozen=True)
class ArenaAspect:
    """One aspect of a file: systems, those first that people put first, and how far judge and people agree.

    `accuracy` is of single verdicts over 1, 2 and tie, both orders of a meeting counted (Table 11: guessing gives a third).
    """

    systems: dict[str, Rank]
    accuracy: Share
    position: PositionBias
    spearman: Correlation
    pearson: Correlation


@dataclass(frozen=True)
class ArenaRanking:
    """Everything about one file of meetings."""

    aspects: dict[str, ArenaAspect]
    problems: tuple[Problem, ...]
    n_rows: dict[str, int]


def rank_arena(arena: Arena, resamples: int = RESAMPLES) -> ArenaRanking:
    """Rank the systems of every aspect that has a meeting which can be used."""
    aspects = {name: _rank(meetings, arena.n_rows[name], resamples) for name, meetings in arena.meetings.items() if meetings}
    return ArenaRanking(aspects, arena.problems, arena.n_rows)


def _rank(meetings: Sequence[Meeting], n_asked: int, resamples: int) -> ArenaAspect:
    instructions = sorted({meeting.instruction for meeting in meetings})
    systems = sorted({name for meeting in meetings for name in (meeting.first, meeting.second)})
    drawn = draw(len(instructions), resamples)
    judge_points = [meeting.points for meeting in meetings]
    people_points = [POINTS[meeting.people] for meeting in meetings]
    sides = []
    for points in (judge_points, people_points):
        table = _table(meetings, points, instructions, systems)
        logs = strengths((meeting.first, meeting.second, gained) for meeting, gained in zip(meetings, points, strict=True))
        sides.append((rates_of(table, drawn), table[..., 1].sum(0).astype(int).tolist(), logs))
    (judge, n, judge_logs), (people, _, people_logs) = sides
    ranks = {
        name: Rank(
            judge.share(at, n[at], n[at]), people.share(at, n[at], n[at]), chance(judge_logs[name]), chance(people_logs[name])
        )
        for at, name in enumerate(systems)
    }
    best_first = sorted(ranks.items(), key=lambda item: (-(item[1].people.value or 0.0), item[0]))
    games = [Game("", meeting.instruction, meeting.first, *meeting.orders) for meeting in meetings]
    spearman, pearson = correlate(judge, people)
    right = rates_of(_shared(meetings, instructions), drawn)
    return ArenaAspect(
        dict(best_first),
        right.share(0, len(meetings), n_asked),
        position(outcome_table(games, instructions), drawn, n_asked),
        spearman,
        pearson,
    )


def _table(
    meetings: Sequence[Meeting], points: Sequence[float], instructions: Sequence[str], systems: Sequence[str]
) -> np.ndarray:
    """Return points and number of meetings [I, S, 2], each meeting for both of its systems."""
    cells = [(meeting.instruction, meeting.first, gained) for meeting, gained in zip(meetings, points, strict=True)]
    cells += [(meeting.instruction, meeting.second, 1 - gained) for meeting, gained in zip(meetings, points, strict=True)]
    return points_table(cells, instructions, systems)


def _shared(meetings: Sequence[Meeting], instructions: Sequence[str]) -> np.ndarray:
    """Right verdicts and number of meetings [I, 1, 2], of all systems together."""
    return points_table(((meeting.instruction, "", meeting.right) for meeting in meetings), instructions, [""])
