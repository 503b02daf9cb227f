"""The list of runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.studio.web import Studio


def routes(studio: Studio) -> list[BaseRoute]:
    """The list."""

    def list_runs(request: Request) -> Response:
        return studio.page(request, "runs.html.j2", runs=studio.folders.runs())

    return [Route("/", list_runs)]
