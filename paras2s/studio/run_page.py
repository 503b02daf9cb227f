"""A run: the overview of its state and of whether it helped, its curves as they grow, and both with its answers as a report."""

from __future__ import annotations

import functools
import time
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.errors import DataError
from paras2s.rollout.store import FOLDER
from paras2s.run import REPORT, STAGES
from paras2s.studio.alerts import find_alerts, unusual_steps
from paras2s.studio.answers import read_bench
from paras2s.studio.curves import plots_for, quiet_plots, read_log
from paras2s.studio.labels import read_labels
from paras2s.studio.overview import overview_of
from paras2s.studio.run_state import RunFiles, read_state
from paras2s.studio.web import Studio, integer_of, json_response

REPORT_PATH = "/report"


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the routes of the overview, the curves, the report, and the JSON that keeps them live."""

    def state(request: Request) -> Response:
        return json_response(asdict(read_state(studio.folders, request.query_params.get("run", ""), time.time())))

    def metrics(request: Request) -> Response:
        files = RunFiles(studio.folders, request.query_params.get("run", ""))
        path, config = files.path("metrics.jsonl"), files.config()
        part = read_log(path, integer_of(request, "offset", 0), request.query_params.get("file", ""))
        rows = part.rows if part.anew else read_log(path).rows
        return json_response({**asdict(part), **described(config, rows)} if part.rows or part.anew else asdict(part))

    pages = (("/run", "run.html.j2"), ("/curves", "curves.html.j2"), (REPORT_PATH, "report.html.j2"))
    return [
        *(Route(path, functools.partial(show, studio, template)) for path, template in pages),
        Route("/api/run", state),
        Route("/api/metrics", metrics),
    ]


def show(studio: Studio, template: str, request: Request) -> Response:
    """Answer with a page of a run; it names what cannot be read. Raises DataError: a report of a run that was not benched."""
    address = request.query_params.get("run", "")
    files, benched = RunFiles(studio.folders, address), read_bench(studio.folders.path(address))
    if request.url.path == REPORT_PATH and not benched.rows:
        raise DataError("this run has no report yet: it was not benched; `paras2s bench contrasts` or `paras2s demo` does it")
    run = read_state(studio.folders, address, time.time())
    remarks, agreement = files.json(REPORT) or {}, files.json("reward/agreement.json") or {}
    values = overview_of(benched, agreement)
    problems = dict.fromkeys([*run.problems, *files.problems, *benched.problems])
    labels, unread = read_labels(studio.folders, address)
    has_rollouts = files.path(FOLDER) is not None
    return studio.run_page(
        request,
        template,
        address,
        [*problems, *unread],
        run=run,
        stages=STAGES,
        labels=labels,
        has_rollouts=has_rollouts,
        remarks=_remarks(remarks),
        **values,
    )


def _remarks(remarks: dict[str, Any]) -> tuple[str, list[tuple[str, str]], list[str]]:
    """Return what the pipeline says of a run in `report.json`: a line, facts by name, and notes; other forms are left out."""
    facts, notes = (value if isinstance(value := remarks.get(key), list) else [] for key in ("facts", "notes"))
    pairs = [(str(fact[0]), str(fact[1])) for fact in facts if isinstance(fact, list) and len(fact) == 2]
    return str(remarks.get("subtitle", "")), pairs, [str(note) for note in notes]


def described(config: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the plots that these rows fill, the alerts they raise, and the steps that leave their curve."""
    sampling = _object(_object(config.get("align")).get("sampling"))
    size = {name: _count(sampling.get(key)) for name, key in (("group_size", "group_size"), ("queries", "queries_per_step"))}
    plots = plots_for(dict.fromkeys(key for row in rows for key in row))
    quiet = quiet_plots(plots, rows)
    return {
        "plots": [{**asdict(plot), "quiet": plot.title in quiet} for plot in plots],
        "alerts": [asdict(alert) for alert in find_alerts(rows, **size)],
        "unusual": [asdict(step) for step in unusual_steps(rows)],
    }


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None
