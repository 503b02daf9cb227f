"""Everything that the modules of pages share: the studio they serve, templates, and the reading of requests."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from paras2s import __version__
from paras2s.errors import DataError, first_problem
from paras2s.run import RESOLVED
from paras2s.studio.folders import Folders
from paras2s.studio.run_state import RunFiles
from paras2s.utils.html import template_folder

ANSWERS = "/answers"
# The pages of a run. A folder that holds a bench's answers and no run has those alone.
TABS = (("Overview", "/run"), ("Answers", ANSWERS), ("Curves", "/curves"), ("Rollouts", "/rollouts"), ("Timeline", "/timeline"))
HERE = Path(__file__).parent
MAX_RECORD_BYTES = 65_536
TEMPLATES, STATIC = HERE / "templates", HERE / "static"


@dataclass(frozen=True)
class Export:
    """A static copy of the studio: when it is made, its steps of a run, and the most of a bench's `contrasts` (None: all)."""

    made: str
    choose_steps: Callable[[Sequence[int]], list[int]]
    contrasts: int | None = None


@dataclass(frozen=True)
class Needed:
    """The address of data, a sound or a page that an export needs beside links; of `drawn` sounds a page draws the samples."""

    address: str
    drawn: bool = False
    page: bool = False


@dataclass(frozen=True)
class Studio:
    """The folders shown, and the templates. `export` is None if a server shows them; `talks`: checkpoints answer on a page."""

    folders: Folders
    templates: Environment
    export: Export | None = None
    talks: bool = False

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page from a template, which has `version`, `path`, `nonce`, `export` and `talks` beside the values."""
        nonce = secrets.token_urlsafe(16)
        shared = {"version": __version__, "path": request.url.path, "nonce": nonce}
        names = {**shared, "export": self.export, "talks": self.talks, **values}
        response = HTMLResponse(self.templates.get_template(template).render(names), status)
        # wavesurfer.js writes the style of its shadow root as an element.
        response.headers["Content-Security-Policy"] = content_policy(nonce)
        return response

    def run_page(self, request: Request, template: str, address: str, problems: Sequence[str] = (), **values: Any) -> Response:
        """Return a page of a run, which has its `address`, `name` and `problems`, and the tabs that all its pages share."""
        name, files = self.folders.path(address).name, RunFiles(self.folders, address)
        is_run = files.path(RESOLVED) is not None
        tabs = [(title, path, f"{path}?{urlencode({'run': address})}") for title, path in TABS if is_run or path == ANSWERS]
        return self.page(request, template, address=address, name=name, tabs=tabs, problems=problems, **values)


def content_policy(nonce: str | None = None) -> str:
    """Return the Content-Security-Policy: the studio's own files alone, no script or style in a page, no frame around it."""
    style = f"'self' 'nonce-{nonce}'" if nonce else "'self'"
    return (
        f"default-src 'self'; style-src {style}; media-src 'self' blob:; img-src 'self' data: blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


def json_response(value: Any, status: int = 200) -> Response:
    """Return a JSON answer; NaN is refused, because a failure is never a number."""
    return Response(json.dumps(value, allow_nan=False, separators=(",", ":")), status, media_type="application/json")


async def posted_bytes(request: Request, most: int) -> bytes:
    """Return the body of a request. Raises HTTPException: 413, more than `most` bytes."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            raise HTTPException(413, f"a request may have {most} bytes")
    return bytes(data)


async def posted_record(request: Request, kind: type[BaseModel]) -> Any:
    """Return the JSON of a request as a record. Raises HTTPException: 400 or 413."""
    data = await posted_bytes(request, MAX_RECORD_BYTES)
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise HTTPException(400, first_problem(error, "request")) from error


def integer_of(request: Request, name: str, default: int | None = None) -> int:
    """Return a whole number of at least 0 from the query string. Raises DataError: missing without a default, or wrong."""
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 10):
        raise DataError(f"{name}={text!r}: expected a whole number")
    return int(text)


def show_duration(seconds: float | None) -> str:
    """Show a length of time in the two units that matter; a dash if it is unknown."""
    if seconds is None:
        return "-"
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def show_number(value: float | None, digits: int = 2) -> str:
    """Return a number with `digits` digits after the point; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def show_time(seconds: float) -> str:
    """Show a moment (seconds since 1970) on the local clock; a dash for None or a moment that no calendar has."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "-"
    except (OverflowError, ValueError, OSError):
        return "-"


def make_templates() -> Environment:
    """Make the studio's templates, with filters that show numbers."""
    environment = template_folder(TEMPLATES)
    environment.filters |= {"duration": show_duration, "fixed": show_number, "moment": show_time}
    return environment
