"""Requests to the studio within this process, and the names of addresses in an export."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from starlette.types import ASGIApp, Message

HOST = b"127.0.0.1"
# How much of a growing log a page has already. An export has the log at once.
SO_FAR = ("offset", "file")
# Pages of a run whose other parameters are read by their scripts: a filter, a step.
SCRIPTED = ("/answers", "/rollouts")


@dataclass(frozen=True)
class PageReply:
    """An answer of the studio to a GET request."""

    status: int
    media_type: str
    body: bytes

    @property
    def problem(self) -> str | None:
        """The plain message of a failure; None if there is none."""
        if self.status == 200:
            return None
        text = self.body.decode(errors="replace")
        if self.media_type == "application/json":
            return str(json.loads(text).get("error", text))
        match = re.search(r'role="alert">(.*?)</', text, re.DOTALL)
        return html.unescape(match[1]) if match else f"status {self.status}"


class InProcess:
    """The application, requested without a network. Used in a `with` block."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._runner = asyncio.Runner()

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._runner.close()

    def get(self, address: str) -> PageReply:
        """Return the answer to a GET request of an address such as `/run?run=0`."""
        return self._runner.run(self._get(address))

    async def _get(self, address: str) -> PageReply:
        parts = urlsplit(address)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(parts.path),
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [(b"host", HOST)],
            "client": None,
            "server": None,
        }
        messages: list[Message] = []
        bodies: Iterator[Message] = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Message:
            # After the body of a request nothing comes, and the client does not hang up.
            return next(bodies, None) or await asyncio.get_running_loop().create_future()

        async def send(message: Message) -> None:
            messages.append(message)

        # An unforeseen error is a status of 500 before it comes here: one page that fails keeps no other from being written.
        with contextlib.suppress(Exception):
            await self._app(scope, receive, send)
        if not messages:
            return PageReply(500, "text/plain", b"")
        headers = dict(messages[0]["headers"])
        media_type = headers.get(b"content-type", b"").decode().partition(";")[0]
        return PageReply(messages[0]["status"], media_type, b"".join(message.get("body", b"") for message in messages[1:]))


def name_of(address: str) -> str:
    """Return an address's name in the index of an export, as `nameOf` in `static/data.js` does: parameters are sorted."""
    parts = urlsplit(address)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    given = [pair for pair in pairs if pair[0] not in SO_FAR and (parts.path not in SCRIPTED or pair[0] == "run")]
    return json.dumps([parts.path, *sorted(given, key=lambda pair: pair[0])], ensure_ascii=False, separators=(",", ":"))


def runs_of(address: str) -> list[str]:
    """Return the addresses of the runs that an address names."""
    return [value for key, value in parse_qsl(urlsplit(address).query) if key == "run"]
