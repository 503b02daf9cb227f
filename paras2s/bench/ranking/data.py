"""Inputs of a ranking: recorded verdicts, and people's scores or comparisons, from files (AudioJudge, 5 and appendix D).

A row of verdicts holds both orders of one meeting with the reference. What cannot be used is counted and named, never guessed.
Alphabet: I instructions, S systems.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from paras2s.bench.speakbench.data import load_pairs
from paras2s.errors import ConfigError, DataError
from paras2s.reward.judges.audio_judge.ensemble_rules import ENSEMBLE
from paras2s.reward.judges.votes import POINTS
from paras2s.types import PAIR_LABELS, PairLabel
from paras2s.utils.io import read_text

COLUMNS = ("aspect", "instruction_id", "system", "reference", "system_first", "system_second")
ORDERS = ("system_first", "system_second")


class Game(NamedTuple):
    """A system against the reference on one instruction; each label as the judge gave it: "1" is the first clip played."""

    aspect: str
    instruction: str
    system: str
    system_first: PairLabel
    system_second: PairLabel


class Problem(NamedTuple):
    """Something that could not be used: its kind, and where it is."""

    kind: str
    where: str


@dataclass(frozen=True)
class Recorded:
    """Verdicts of one judge by `load_recorded`: usable `games` in no order, sorted names; every system meets everything."""

    reference: str
    aspects: tuple[str, ...]
    systems: tuple[str, ...]
    instructions: tuple[str, ...]
    games: tuple[Game, ...]
    problems: tuple[Problem, ...]
    n_rows: int


def load_recorded(path: Path) -> Recorded:
    """Return verdicts of a CSV with `COLUMNS`, a row each.

    Of rows with the same aspect, instruction and system one is kept if their verdicts agree, and none if they do not; a row
    that cannot be used has no verdict, and so agrees with any.

    Raises:
        DataError: missing or not such a file, no row can be used, or more than one reference; names file:line or column.
    """
    seen: dict[tuple[str, str, str], list[tuple[int, Game | None]]] = defaultdict(list)
    references: dict[str, int] = {}
    problems: list[Problem] = []
    n_rows = 0
    for line, row in _rows(path, COLUMNS):
        n_rows += line > 1
        if isinstance(row, str):
            problems.append(Problem("not read", f"line {line}: {row}"))
            continue
        named = [name for name in COLUMNS[:4] if not row[name]]
        if named:
            problems.append(Problem(f"no {named[0]}", f"line {line}"))
            continue
        references.setdefault(row["reference"], line)
        if row["aspect"] == ENSEMBLE:
            raise DataError(f"{path}:{line}: aspect: {ENSEMBLE!r} is the name of the aspects together; name this one otherwise")
        key = (row["aspect"], row["instruction_id"], row["system"])
        wrong = _wrong_label(row)
        if wrong is not None:
            problems.append(Problem(wrong[0], f"line {line}: {wrong[1]}"))
        first, second = (cast(PairLabel, row[order]) for order in ORDERS)
        seen[key].append((line, None if wrong else Game(*key, first, second)))
    if len(references) > 1:
        named = [f"{name!r} (line {line})" for name, line in references.items()]
        raise DataError(f"{path}: reference: {', '.join(named)}; win rates compare against one: give a file for each")
    games = [game for copies in seen.values() if (game := _one_of(copies, problems)) is not None]
    if not games:
        why = "; ".join(f"{problem.kind}: {problem.where}" for problem in problems[:3])
        raise DataError(f"{path}: holds no row that can be used{f' ({why})' if why else ''}")
    aspects, instructions, systems = (tuple(sorted({key[index] for key in seen})) for index in range(3))
    absent = [key for key in product(aspects, instructions, systems) if key not in seen]
    problems += [Problem("no row", f"{system}, {aspect}, instruction {instruction}") for aspect, instruction, system in absent]
    problems += _never_met(aspects, systems, games)
    return Recorded(next(iter(references)), aspects, systems, instructions, tuple(games), tuple(problems), n_rows)


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yield rows with their line, cells stripped; of a column or a row that cannot be read its line and why."""
    reader = csv.reader(io.StringIO(read_text(path)), strict=True)
    try:
        head = [name.strip() for name in next(reader, [])]
        if missing := [name for name in columns if head.count(name) != 1]:
            raise DataError(f"{path}: needs the column {missing[0]} once; expected {', '.join(columns)}")
        yield from ((1, f"column {name!r} is not read") for name in head if name not in columns)
        for cells in reader:
            if len(cells) == len(head):
                yield reader.line_num, {name: cell.strip() for name, cell in zip(head, cells, strict=True)}
            elif cells:
                yield reader.line_num, f"{len(cells)} values in {len(head)} columns"
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}") from error


def _wrong_label(row: Mapping[str, str]) -> tuple[str, str] | None:
    """Kind and words of what keeps a row's verdict from being used, or None."""
    for order in ORDERS:
        if row[order] in ("", "unscored"):
            return ("unscored" if row[order] else "missing order"), f"{order} of {row['system']}, {row['aspect']}"
        if row[order] not in PAIR_LABELS:
            return "unknown label", f"{order}: {row[order]!r} is none of {', '.join(PAIR_LABELS)}"
    return None


def _one_of(copies: Sequence[tuple[int, Game | None]], problems: list[Problem]) -> Game | None:
    """Return the verdict that all copies with a verdict agree on, or None."""
    usable = [(line, game) for line, game in copies if game is not None]
    if len(usable) > 1:
        agree = len({game for _, game in usable}) == 1
        game = usable[0][1]
        lines = ", ".join(str(line) for line, _ in usable)
        kind = "duplicate that agrees, one kept" if agree else "duplicate that disagrees, none kept"
        problems.append(Problem(kind, f"lines {lines}: {game.aspect}, instruction {game.instruction}, {game.system}"))
        return game if agree else None
    return usable[0][1] if usable else None


def _never_met(aspects: Sequence[str], systems: Sequence[str], games: Iterable[Game]) -> Iterator[Problem]:
    met = {(game.aspect, game.system) for game in games}
    for system in systems:
        never = [aspect for aspect in aspects if (aspect, system) not in met]
        if never:
            where = "any aspect" if len(never) == len(aspects) else ", ".join(never)
            yield Problem("never meets the reference", f"{system}, in {where}")


def points_table(cells: Iterable[tuple[str, str, float]], instructions: Sequence[str], systems: Sequence[str]) -> np.ndarray:
    """Return points and number of games [I, S, 2] of (instruction, system, points)."""
    rows = {name: index for index, name in enumerate(instructions)}
    columns = {name: index for index, name in enumerate(systems)}
    table = np.zeros((len(rows), len(columns), 2))
    for instruction, system, points in cells:
        table[rows[instruction], columns[system]] += points, 1
    return table


class PeopleGame(NamedTuple):
    """People's comparison of two systems: points of the first, 0 to 1."""

    instruction: str
    first: str
    second: str
    points: float


@dataclass(frozen=True)
class People:
    """People's score of each system; of comparisons it is its win rate over the `games`, which bare scores are without."""

    scores: dict[str, float]
    games: tuple[PeopleGame, ...] = ()

    def table(self, systems: Sequence[str]) -> np.ndarray:
        """Return points and number of games [I, S, 2] of these systems, whomever they met."""
        sides = [(game.instruction, game.first, game.points) for game in self.games]
        sides += [(game.instruction, game.second, 1 - game.points) for game in self.games]
        instructions = sorted({game.instruction for game in self.games})
        return points_table((side for side in sides if side[1] in systems), instructions, systems)


def load_people(path: Path, names: Mapping[str, str]) -> People:
    """Read a CSV with the columns system and score, or pairs in TRACE's released form (JSON), both kinds of tie half a win.

    `names` says what a system of this file is called among the verdicts.

    Raises:
        DataError: missing or not such a file; names file:line, entry or column. ConfigError: a name that is not in the file,
            or that is given to two systems.
    """
    if path.suffix == ".json":
        pairs = load_pairs(path)
        called = _renaming(path, {name for pair in pairs for name in (pair.model_a, pair.model_b)}, names)
        games = tuple(
            PeopleGame(str(pair.instruction_id), called[pair.model_a], called[pair.model_b], POINTS[pair.label.overall])
            for pair in pairs
        )
        points: dict[str, list[float]] = defaultdict(list)
        for game in games:
            points[game.first].append(game.points)
            points[game.second].append(1 - game.points)
        return People({name: math.fsum(got) / len(got) for name, got in sorted(points.items())}, games)
    scores = _scores(path)
    called = _renaming(path, set(scores), names)
    return People({called[name]: score for name, score in sorted(scores.items())})


def _renaming(path: Path, existing: set[str], names: Mapping[str, str]) -> dict[str, str]:
    if strange := [name for name in names if name not in existing]:
        raise ConfigError(f"{strange[0]!r} is to be renamed, but is not in {path}; there are {', '.join(sorted(existing))}")
    called = {name: names.get(name, name) for name in sorted(existing)}
    for name, new in called.items():
        if twice := [other for other in called if other != name and called[other] == new]:
            raise ConfigError(f"{path}: both {name!r} and {twice[0]!r} would be called {new!r}")
    return called


def _scores(path: Path) -> dict[str, float]:
    scores: dict[str, float] = {}
    for line, row in _rows(path, ("system", "score")):
        if isinstance(row, str):
            raise DataError(f"{path}:{line}: {row}; people's scores have the columns system and score")
        name = row["system"]
        if not name or name in scores:
            raise DataError(f"{path}:{line}: system: {name!r} {'occurs more than once' if name else 'is no name'}")
        try:
            scores[name] = float(row["score"])
        except ValueError as error:
            raise DataError(f"{path}:{line}: score: {row['score']!r} is not a number") from error
        if not math.isfinite(scores[name]):
            raise DataError(f"{path}:{line}: score: {row['score']!r} is not finite")
    if not scores:
        raise DataError(f"{path}: holds no rows")
    return scores
