"""The page of one run: its state, alerts, curves as they grow, and the scores of its bench."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.bench.paras2s.metrics import cell
from paras2s.rollout.timeline import FILE
from paras2s.run import STAGES
from paras2s.studio.alerts import find_alerts
from paras2s.studio.curves import plots_for, read_log
from paras2s.studio.run_state import RunFiles, interval_of, read_state
from paras2s.studio.web import Studio, integer_of, json_response


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the routes of the page and of the JSON that keeps it live."""

    def show(request: Request) -> Response:
        return studio.page(request, "run.html.j2", **run_values(studio, request.query_params.get("run", "")))

    def state(request: Request) -> Response:
        return json_response(asdict(read_state(studio.folders, request.query_params.get("run", ""), time.time())))

    def metrics(request: Request) -> Response:
        files = RunFiles(studio.folders, request.query_params.get("run", ""))
        path, config = files.path("metrics.jsonl"), files.config()
        part = read_log(path, integer_of(request, "offset", 0), request.query_params.get("file", ""))
        rows = part.rows if part.anew else read_log(path).rows
        return json_response({**asdict(part), **described(config, rows)} if part.rows or part.anew else asdict(part))

    return [Route("/run", show), Route("/api/run", state), Route("/api/metrics", metrics)]


def run_values(studio: Studio, address: str) -> dict[str, Any]:
    """Return the values of a run's page, for its template and those that extend it."""
    files = RunFiles(studio.folders, address)
    systems = bench_table(files.json("bench/summary.json") or {})
    return {
        "run": read_state(studio.folders, address, time.time()),
        "stages": STAGES,
        "systems": systems,
        "has_rollouts": files.path("rollouts") is not None,
        "has_timeline": files.path(FILE) is not None,
    }


def described(config: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the plots that these rows fill, and the alerts they raise."""
    sampling = _object(_object(config.get("align")).get("sampling"))
    size = {name: _count(sampling.get(key)) for name, key in (("group_size", "group_size"), ("queries", "queries_per_step"))}
    keys = dict.fromkeys(key for row in rows for key in row)
    return {
        "plots": [asdict(plot) for plot in plots_for(keys)],
        "alerts": [asdict(alert) for alert in find_alerts(rows, **size)],
    }


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _cell(value: Any, factor: float = 1.0, digits: int = 2) -> str:
    """Return a figure of a summary, or the word that it cannot be read, beside those that can."""
    try:
        return cell(value, factor, digits)
    except (TypeError, KeyError, ValueError):
        return "unreadable"


def bench_table(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each system of a bench's summary, best first: the overall score with its interval, and categories."""
    rows = []
    for name, entry in summary.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("overall"), dict):
            continue
        score = interval_of(entry["overall"])
        categories = {key: _cell(value) for key, value in _object(entry.get("categories")).items()}
        contrast = _cell(entry["contrast"], 100, 0) if entry.get("contrast") else "-"
        rows.append({"name": name, "score": score, "categories": categories, "contrast": contrast, "judge": entry.get("judge")})
    return sorted(rows, key=lambda row: -row["score"].mean if row["score"] else 0.0)
