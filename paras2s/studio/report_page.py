"""The report of a run (`report.html`), with no script but the one that this version puts into its reports."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from paras2s.bench.paras2s import report
from paras2s.errors import DataError
from paras2s.studio.web import Studio

REPORT = "report.html"
PATH = "/report"


def routes(studio: Studio) -> list[BaseRoute]:
    """`/report?run=ADDRESS`."""

    def show(request: Request) -> Response:
        path = studio.folders.path(request.query_params.get("run", ""), REPORT)
        if not path.is_file():
            raise DataError("this run has no report yet; `paras2s demo` writes it")
        page = HTMLResponse(path.read_bytes())
        page.headers["Content-Security-Policy"] = f"{report_policy()}; sandbox allow-scripts"
        return page

    return [Route(PATH, show)]


@functools.cache
def report_policy() -> str:
    """The Content-Security-Policy of a report, which may come from someone else: its own sounds, and one script by its hash."""
    template = Path(report.__file__).with_name("report.html.j2").read_text()
    scripts = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes) or "'none'"
    return (
        "default-src 'none'; media-src 'self' file: data:; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {allowed}; base-uri 'none'; form-action 'none'"
    )
