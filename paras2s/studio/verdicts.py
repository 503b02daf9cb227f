"""The verdicts of a run's bench: every answer to a question with each judge's score and reason, two answers side by side."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.bench.results import AnswerRow, load_rows
from paras2s.errors import AudioError, DataError
from paras2s.studio.clips import TYPES
from paras2s.studio.web import Studio, integer_of, json_response

# What can be measured while one waits; words and quality take models that are heavier.
EXTRACTORS = ("pitch", "loudness")
MEASURED_CLIPS = 256


@dataclass(frozen=True)
class Benched:
    """A run's rows by question (query and number of the answer) and system, a row a judge; and files that cannot be read."""

    rows: dict[tuple[str, int], dict[str, list[AnswerRow]]]
    problems: tuple[str, ...]

    @property
    def systems(self) -> list[str]:
        """All systems, in the order in which they were read."""
        return list(dict.fromkeys(system for by_system in self.rows.values() for system in by_system))


def read_bench(run: Path) -> Benched:
    """All verdicts below RUN/bench: those of the bench's own judge first, then of each other judge."""
    rows: dict[tuple[str, int], dict[str, list[AnswerRow]]] = {}
    problems = []
    bench = run / "bench"
    for path in [*sorted(bench.glob("*.jsonl")), *sorted(bench.glob("*/*.jsonl"))]:
        # A link could lead to any file of this machine.
        if not path.resolve().is_relative_to(run.resolve()):
            problems.append(f"{path.relative_to(run)}: a link that leaves the run")
            continue
        try:
            for row in load_rows(path):
                rows.setdefault((row.query_id, row.answer_index), {}).setdefault(row.system, []).append(row)
        except DataError as error:
            problems.append(str(error))
    return Benched(rows, tuple(problems))


def measure(path: Path) -> dict[str, Any]:
    """The blueprint's fields of a clip that are quick to measure: value, unit and confidence, or why there is none.

    Raises:
        AudioError: the clip cannot be read.
    """
    return dict(_measure(path, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=MEASURED_CLIPS)
def _measure(path: Path, changed_ns: int) -> dict[str, Any]:
    from paras2s.audio.clip import read_clip
    from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
    from paras2s.types import Absent

    clip = read_clip(path)
    (blueprint,) = build_blueprints([clip], make_extractors(EXTRACTORS))
    fields = [
        {"name": key.rpartition(".")[2], "absent": found.reason}
        if isinstance(found, Absent)
        else {"name": key.rpartition(".")[2], "value": found.value, "unit": found.unit, "confidence": found.confidence}
        for key, found in blueprint.fields.items()
    ]
    return {"duration_s": clip.duration_s, "fields": fields}


def verdict_address(run: str, key: tuple[str, int], systems: list[str]) -> str:
    """The address of a question's page."""
    return "/verdict?" + urlencode({"run": run, "query": key[0], "n": key[1], "system": systems}, doseq=True)


def routes(studio: Studio) -> list[BaseRoute]:
    """The table of answers, one question's page, and the measurements of a clip."""

    def show_answers(request: Request) -> Response:
        address = request.query_params.get("run", "")
        run = studio.folders.path(address)
        benched = read_bench(run)
        links = {key: verdict_address(address, key, list(by_system)[:2]) for key, by_system in benched.rows.items()}
        return studio.page(request, "answers.html.j2", address=address, name=run.name, benched=benched, links=links)

    def show_verdict(request: Request) -> Response:
        address = request.query_params.get("run", "")
        run = studio.folders.path(address)
        benched = read_bench(run)
        key = (request.query_params.get("query", ""), integer_of(request, "n", 0))
        by_system = benched.rows.get(key)
        if by_system is None:
            raise DataError(f"{key[0]!r}, answer {key[1]}: the bench of {run.name} has no such question")
        wanted = [name for name in request.query_params.getlist("system") if name in by_system]
        shown = list(dict.fromkeys(wanted))[:2] or list(by_system)[:2]
        keys = list(benched.rows)
        at = keys.index(key)
        near = {"previous": keys[at - 1] if at else None, "next": keys[at + 1] if at + 1 < len(keys) else None}
        return studio.page(
            request,
            "verdict.html.j2",
            address=address,
            name=run.name,
            query=key[0],
            number=key[1],
            by_system=by_system,
            shown=shown,
            question=by_system[shown[0]][0],
            near={way: verdict_address(address, one, shown) for way, one in near.items() if one is not None},
        )

    def measurements(request: Request) -> Response:
        name = request.query_params.get("name", "")
        path = studio.folders.path(request.query_params.get("run", ""), name)
        if path.suffix.lower() not in TYPES or not path.is_file():
            raise DataError(f"{name!r}: no such clip")
        try:
            return json_response(measure(path))
        except AudioError as error:
            return json_response({"error": f"{name!r}: {error}"}, 422)

    return [
        Route("/answers", show_answers),
        Route("/verdict", show_verdict),
        Route("/api/measured", measurements),
    ]
