"""The list of runs."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.studio.folders import FoundRun, is_text
from paras2s.studio.labels import Labels, read_labels
from paras2s.studio.run_state import listed_state
from paras2s.studio.web import Studio, integer_of

# Only the runs of one part are read: of ten thousand, the list takes the names alone.
PER_PART = 50


def _words(run: FoundRun, labels: Labels) -> str:
    """Return the words that a search looks through."""
    return "\n".join((run.address, run.name, labels.title, *labels.tags)).lower()


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the route of the list."""

    def list_runs(request: Request) -> Response:
        query = request.query_params.get("find", "").strip()
        everywhere = studio.folders.runs()
        named = [run for run in everywhere if is_text(run.address)]
        labels = {run.address: read_labels(studio.folders, run.address)[0] for run in named}
        archived = request.query_params.get("archived") == "yes"
        listed = [run for run in named if studio.export or labels[run.address].archived == archived]
        matching = [run for run in listed if query.lower() in _words(run, labels[run.address])]
        parts = max(1, -(-len(matching) // PER_PART))
        part = min(integer_of(request, "part", 0), parts - 1)
        shown = matching[part * PER_PART : (part + 1) * PER_PART]
        now_s = time.time()
        return studio.page(
            request,
            "runs.html.j2",
            runs=[listed_state(studio.folders, run, now_s) for run in shown],
            total=len(matching),
            unnamed=len(everywhere) - len(named),
            part=part,
            part_count=parts,
            find=query,
            labels=labels,
            archived=archived,
            others=len(named) - len(listed),
            folders=[str(root) for root in studio.folders.roots],
        )

    return [Route("/", list_runs)]
