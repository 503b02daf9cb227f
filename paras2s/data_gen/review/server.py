"""The page of the human check, as an ASGI application on the loopback address.

Because every other page open in the same browser can reach that address too, a request must name this host and carry a token
that only the printed address holds.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paras2s.data_gen.review.session import CheckItem, CheckSession, Decision, time_left
from paras2s.errors import DataError, StorageError, first_problem
from paras2s.utils.html import page_template
from paras2s.utils.loopback import LOOPBACK, LoopbackServer

CLIP_PATH = re.compile(r"/clip/([0-9]{1,9})/([0-9]{1,9})")
CONTENT_TYPES = {".wav": "audio/wav", ".flac": "audio/flac", ".ogg": "audio/ogg"}
HEADERS = {
    # A page cached by the browser would show an item that is long decided.
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # An idle connection would hold up the end.
    "Connection": "close",
}

MAX_NOTE_CHARACTERS = 1_000
MAX_BODY_BYTES = 16_384
MAX_DRAINED_BYTES = 1 << 20


class _Posted(BaseModel):
    """The body of a decision as the page sends it; the annotator is always the session's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    item_id: str
    accept: bool
    choice: int | None = None
    note: str = Field(default="", max_length=MAX_NOTE_CHARACTERS)


class _Refusal(Exception):
    """A refused request: the HTTP status and a one-line reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _CheckPage:
    """The page, the clips by number, and posts to /decide, /undo and /done.

    Requests of two tabs are answered one after the other, on the server's one thread.
    """

    def __init__(self, session: CheckSession, port: int, stop: Callable[[], None]) -> None:
        self.session = session
        self.token = secrets.token_urlsafe(24)
        self.url = f"http://{LOOPBACK}:{port}/?token={self.token}"
        self._stop = stop
        self._paces_s: list[float] = []
        self._shown_at_s = time.monotonic()
        self._template = page_template(Path(__file__).with_name("page.html.j2"))
        names = [f"{name}:{port}" for name in (LOOPBACK, "localhost")]
        # A browser leaves the usual port out.
        self._hosts = {*names, *((LOOPBACK, "localhost") if port == 80 else ())}

    async def answer(self, request: Request) -> Response:
        """Answers one request; a refusal has its reason as text."""
        try:
            if request.method == "POST":
                # Read before anything is refused: closing on unread bytes would reset the connection and lose the reason.
                return self._post(request, await _body(request))
            return self._get(request)
        except _Refusal as refusal:
            reason = " ".join(str(refusal).split()).encode("utf-8", "replace")
            return _reply("text/plain; charset=utf-8", reason, refusal.status)

    def _get(self, request: Request) -> Response:
        self._check_host(request)
        path = _path(request)
        clip = CLIP_PATH.fullmatch(path)
        if path != "/" and clip is None:
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        self._check_token(request.query_params.get("token", ""))
        return self._page() if clip is None else self._clip(int(clip[1]), int(clip[2]))

    def _post(self, request: Request, body: bytes) -> Response:
        self._check_host(request)
        path = _path(request)
        if path not in ("/decide", "/undo", "/done"):
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        values = _values(body)
        self._check_token(values.pop("token", None))
        if path == "/done":
            self._stop()
            return _reply("application/json", b"{}")
        state = self._decide(values) if path == "/decide" else self._undo()
        return _reply("application/json", json.dumps(state).encode())

    def _check_host(self, request: Request) -> None:
        # A foreign name that was made to point at this machine (DNS rebinding) shows itself here.
        if request.headers.get("Host", "").lower() not in self._hosts:
            raise _Refusal(HTTPStatus.FORBIDDEN, "this page answers to 127.0.0.1 and localhost only")

    def _check_token(self, token: object) -> None:
        given = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else b""
        if not secrets.compare_digest(given, self.token.encode()):
            raise _Refusal(HTTPStatus.FORBIDDEN, "wrong token; open the address that the command printed")

    def _state(self, item: CheckItem | None = None) -> dict[str, Any]:
        """Returns what the page shows: `item`, or else the first pending one."""
        pending = self.session.pending()
        item = item or (pending[0] if pending else None)
        decided, total = self.session.progress()
        mine = self.session.decided()
        accepted = sum(decision.accept for decision in mine)
        self._shown_at_s = time.monotonic()
        return {
            "item": None if item is None else self._shown(item),
            "decided": decided,
            "total": total,
            "left": time_left(self._paces_s, len(pending)),
            "can_undo": self.session.can_undo(),
            "accepted": accepted,
            "rejected": len(mine) - accepted,
            "other_take": sum(decision.choice is not None for decision in mine),
        }

    def _shown(self, item: CheckItem) -> dict[str, Any]:
        return {
            "id": item.id,
            "index": self.session.items.index(item),
            "kind": item.kind,
            "text": item.text,
            "style": item.style,
            "takes": len(item.clips),
            "picked": item.picked,
            "details": list(item.details.items()),
        }

    def _decide(self, values: dict[str, Any]) -> dict[str, Any]:
        try:
            one = _Posted.model_validate(values)
            self.session.decide(Decision(one.item_id, self.session.annotator, one.accept, one.choice, one.note.strip()))
        except ValidationError as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, first_problem(error)) from error
        except DataError as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, str(error)) from error
        except StorageError as error:
            raise _Refusal(HTTPStatus.INSUFFICIENT_STORAGE, str(error)) from error
        self._paces_s.append(time.monotonic() - self._shown_at_s)
        return self._state()

    def _undo(self) -> dict[str, Any]:
        try:
            return self._state(self.session.undo())
        except StorageError as error:
            raise _Refusal(HTTPStatus.INSUFFICIENT_STORAGE, str(error)) from error

    def _page(self) -> Response:
        nonce = secrets.token_urlsafe(16)
        page = self._template.render(
            annotator=self.session.annotator, state=self._state(), nonce=nonce, max_note=MAX_NOTE_CHARACTERS
        )
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "media-src blob:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return _reply("text/html; charset=utf-8", page.encode(), more={"Content-Security-Policy": policy})

    def _clip(self, index: int, take: int) -> Response:
        items = self.session.items
        if index >= len(items) or take >= len(items[index].clips):
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such clip")
        clip = items[index].clips[take]
        try:
            data = clip.read_bytes()
        except OSError as error:
            raise _Refusal(HTTPStatus.NOT_FOUND, f"{clip.name} cannot be read: {error.strerror or error}") from error
        kind = CONTENT_TYPES.get(clip.suffix.lower(), "application/octet-stream")
        return _reply(kind, data, more={"Accept-Ranges": "none"})


def _reply(kind: str, data: bytes, status: int = HTTPStatus.OK, more: dict[str, str] | None = None) -> Response:
    return Response(data, status, {**HEADERS, "Content-Type": kind, **(more or {})})


def _path(request: Request) -> str:
    """The path as it was sent: no percent sign of an escape is decoded into a name."""
    raw: bytes = request.scope["raw_path"]
    return raw.decode("ascii", "replace").partition("?")[0]


async def _body(request: Request) -> bytes:
    length = request.headers.get("Content-Length", "")
    if not re.fullmatch("[0-9]{1,15}", length):
        raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "the request does not say how long it is")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_DRAINED_BYTES:
            break
    if int(length) > MAX_BODY_BYTES or len(data) > MAX_BODY_BYTES:
        raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {MAX_BODY_BYTES} bytes")
    return bytes(data)


def _values(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Refusal(HTTPStatus.BAD_REQUEST, "the request is not JSON") from error
    if not isinstance(values, dict):
        raise _Refusal(HTTPStatus.BAD_REQUEST, "the request is not a JSON object")
    return values


def serve(session: CheckSession, port: int, on_ready: Callable[[str], None]) -> None:
    """Serves the page until its "done" button or a KeyboardInterrupt.

    Args:
        session: the items and their annotator.
        port: on 127.0.0.1; 0 takes any free one.
        on_ready: called with the address to open; pages are sent only after it returns.

    Raises:
        ConfigError: the port cannot be used.
    """
    server = LoopbackServer(port)
    page = _CheckPage(session, server.port, server.stop)
    # One answer for all paths: what a path may be is decided on its undecoded form.
    app = Starlette(routes=[Route("/{path:path}", page.answer, methods=["GET", "POST"])])
    server.run(app, lambda: on_ready(page.url))
