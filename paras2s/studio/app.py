"""The studio as an ASGI application: pages over run folders, served on the loopback address alone.

Every other page that is open in the same browser can reach that address too. So a request must name this host (against DNS
rebinding), a request that changes something must come from the studio's own pages, and no answer may be framed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paras2s.errors import ParaS2SError
from paras2s.studio import (
    answers,
    clips,
    compare,
    labels,
    leaderboard,
    new_study,
    people,
    rollouts,
    run_page,
    runs,
    timeline,
    verdicts,
)
from paras2s.studio.folders import OutsideError, open_folders
from paras2s.studio.web import STATIC, Studio, content_policy, json_response, make_templates

HOSTS = ["127.0.0.1", "localhost"]
SAFE_METHODS = ("GET", "HEAD")
# Each has `routes(studio)`. A module whose pages request data or sounds of a run by script has `needed(studio, address)` as
# well, so that an export has them: an address in a link or in `data-clip`, and `/api/...?run=ADDRESS`, is found without it.
MODULES = (runs, labels, run_page, timeline, compare, rollouts, clips, people, new_study, answers, verdicts, leaderboard)


class Security:
    """Adds the security headers to every answer, and refuses a change that another site's page requests."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if scope["method"] not in SAFE_METHODS and (origin is None or urlsplit(origin).netloc != headers.get("host")):
            await PlainTextResponse("a change must come from a page of this studio", 403)(scope, receive, send)
            return

        async def send_secure(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                out.setdefault("Content-Security-Policy", content_policy())
                out.setdefault("Cache-Control", "no-cache")
                out["X-Content-Type-Options"] = "nosniff"
                out["Referrer-Policy"] = "same-origin"
                out["Cross-Origin-Resource-Policy"] = "same-origin"
            await send(message)

        await self.app(scope, receive, send_secure)


def make_app(folders: Sequence[Path]) -> Starlette:
    """Return the application over these folders. Raises ConfigError: one of the folders is missing."""
    return app_of(Studio(open_folders(folders), make_templates()))


def make_annotating_app(study: Path) -> Starlette:
    """Return the pages of one study's annotators alone: without a link nothing is shown."""
    studio = Studio(open_folders([study]), make_templates())
    return app_of(studio, people.annotator_routes(studio, people.Studies(studio.folders)))


def app_of(studio: Studio, routes: Sequence[BaseRoute] | None = None) -> Starlette:
    """Return the application that shows this studio: these routes, or else all of it."""
    shown = [route for module in MODULES for route in module.routes(studio)] if routes is None else routes

    def answer_failure(request: Request, error: Exception) -> Response:
        """Return a message in place of a page or of its data."""
        status = error.status_code if isinstance(error, HTTPException) else 403 if isinstance(error, OutsideError) else 404
        text = error.detail if isinstance(error, HTTPException) else str(error)
        if request.url.path.startswith("/api/"):
            return json_response({"error": text}, status)
        return studio.page(request, "failure.html.j2", status, message=text)

    return Starlette(
        routes=[*shown, Mount("/static", StaticFiles(directory=STATIC))],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False), Middleware(Security)],
        exception_handlers={HTTPException: answer_failure, ParaS2SError: answer_failure},
    )
