"""The report of a run: whether reinforcement helped, the scores in full, notes, and answers of all systems to listen to."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.bench.paras2s.gain import verdict_on_gain
from paras2s.bench.results import AnswerRow, load_rows
from paras2s.errors import DataError
from paras2s.run import REPORT
from paras2s.studio import report
from paras2s.studio.run_page import run_values
from paras2s.studio.run_state import RunFiles
from paras2s.studio.web import Studio

PATH = "/report"


def routes(studio: Studio) -> list[BaseRoute]:
    """Return `/report?run=ADDRESS`."""
    return [Route(PATH, functools.partial(show, studio))]


def show(studio: Studio, request: Request) -> Response:
    """Answer with the report; what cannot be read is named on it."""
    address = request.query_params.get("run", "")
    folder, files = studio.folders.path(address), RunFiles(studio.folders, address)
    remarks = files.json(REPORT) or {}
    problems = files.problems
    systems = read_systems(files, "bench", _names(remarks, "systems"))
    if not systems:
        raise DataError("this run has no report yet: it was not benched; `paras2s bench contrasts` or `paras2s demo` does it")
    independent = read_systems(files, "bench/independent", list(systems))
    rows = [row for answers in systems.values() for row in answers]
    played = _names(remarks, "played")
    shown = {name: answers for name, answers in systems.items() if name in played} or systems
    chosen = report.choose_contrasts([row for answers in shown.values() for row in answers])
    player = functools.partial(report.player_of, studio.folders, folder)
    try:
        gain = verdict_on_gain({"rubric judge": systems, "independent judge": independent})
        figures: dict[str, Any] = {
            "columns": report.columns_of(rows, independent or None),
            "table": report.results_table(systems, independent or None),
            "verdict": gain.lines() if gain else [],
        }
    except DataError as error:
        problems.append(str(error))
        figures = {"columns": [], "table": [], "verdict": []}
    values = run_values(studio, address)
    return studio.page(
        request,
        "report.html.j2",
        **values,
        **figures,
        remarks=[str(remarks.get("subtitle", "")), _facts(remarks), [str(note) for note in _list(remarks, "notes")]],
        unread=problems,
        judges=sorted({row.judge for row in rows}),
        cards=[report.card_of(contrast_id, shown, player) for contrast_id in chosen],
        categories=[category for category in report.categories_of(rows) if category in chosen.values()],
        n_contrasts=len({row.contrast_id for row in rows}),
    )


def read_systems(files: RunFiles, below: str, order: list[str]) -> dict[str, list[AnswerRow]]:
    """Return the rows of each system in a folder of the run, in this order and then by name; a broken file is a problem."""
    folder = files.path(below)
    names = sorted(path.stem for path in folder.glob("*.jsonl")) if folder is not None else []
    systems: dict[str, list[AnswerRow]] = {}
    for name in sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name)):
        path: Path | None = files.path(f"{below}/{name}.jsonl")
        try:
            if path is not None:
                systems[name] = load_rows(path)
        except DataError as error:
            files.problems.append(str(error))
    return systems


def _list(remarks: dict[str, Any], key: str) -> list[Any]:
    value = remarks.get(key)
    return value if isinstance(value, list) else []


def _names(remarks: dict[str, Any], key: str) -> list[str]:
    return [str(name) for name in _list(remarks, key)]


def _facts(remarks: dict[str, Any]) -> list[tuple[str, str]]:
    return [(str(fact[0]), str(fact[1])) for fact in _list(remarks, "facts") if isinstance(fact, list) and len(fact) == 2]
