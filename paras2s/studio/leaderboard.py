"""Leaderboards of outside suites: the systems of all runs in the given folders, with their judges and the version of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.bench.suites.agreement import headline
from paras2s.bench.suites.base import Suite, SuiteRow
from paras2s.bench.suites.report import by_judge, cell
from paras2s.bench.suites.run import find_suite
from paras2s.errors import ConfigError, DataError
from paras2s.studio.verdict_files import SUITE, find_files, read_rows
from paras2s.studio.web import Studio

ROW = TypeAdapter(SuiteRow)


@dataclass(frozen=True)
class Place:
    """A system of a run by one judge: the address and name of its file, and its columns as text."""

    run: str
    file: str
    system: str
    judge: str
    score: float | None
    cells: Mapping[str, str | None]


@dataclass(frozen=True)
class Board:
    """One suite's systems, the best first, and all judges that gave their verdicts."""

    title: str
    columns: Sequence[str]
    places: Sequence[Place]

    @property
    def judges(self) -> list[str]:
        """All judges, each with its version; rows of different ones do not compare."""
        return list(dict.fromkeys(entry.judge for entry in self.places))


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the route of the page with a table for each suite that a run in the given folders has verdicts of."""

    def show(request: Request) -> Response:
        boards, problems = read_boards(studio)
        return studio.page(request, "leaderboard.html.j2", boards=boards, problems=problems)

    return [Route("/leaderboard", show)]


def read_boards(studio: Studio) -> tuple[list[Board], list[str]]:
    """Return the boards by suite, and the files that cannot be read."""
    places: dict[str, list[Place]] = {}
    problems = []
    for file in find_files(studio.folders)[0]:
        if file.kind != SUITE:
            continue
        try:
            rows = [ROW.validate_python(row) for row in read_rows(studio.folders.path(file.run, file.name))]
        except (DataError, ValidationError) as error:
            problems.append(f"{file.name}: {str(error).splitlines()[0]}")
            continue
        for name in dict.fromkeys(row.suite for row in rows):
            for judge, judged in by_judge([row for row in rows if row.suite == name]).items():
                for system, columns in _suite(name).table(judged).items():
                    texts = {column: cell(asdict(figure)) for column, figure in columns.items()}
                    score = columns[headline(columns)].value
                    places.setdefault(name, []).append(Place(file.run, file.name, system, judge, score, texts))
    return [_board(name, rows) for name, rows in sorted(places.items())], problems


def _suite(name: str) -> Suite:
    try:
        return find_suite(name)
    except ConfigError:
        # A suite of a package that is not installed here: its subsets' means can still be shown.
        return Suite()


def _board(name: str, places: Sequence[Place]) -> Board:
    ordered = sorted(places, key=lambda entry: (entry.score is None, -(entry.score or 0.0)))
    columns = list(dict.fromkeys(column for entry in ordered for column in entry.cells))
    title: Any = getattr(_suite(name), "title", name)
    return Board(title, columns, ordered)
