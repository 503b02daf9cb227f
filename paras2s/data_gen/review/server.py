"""The page of the human check (ParaS2S, section 3.1, step 5, and section 4.1): annotators listen, and accept or reject.

A query has one clip: are the words and the style right? A spoken answer has several takes, of which one is picked: an annotator
may pick another one, or none. Decisions go to a JSONL file at once, so the check can be left and taken up again at any
point, and several people can check the same items into the same file, one after the other or side by side.

The page is served on the loopback address only. Because every other page open in the same browser can reach that address
too, a request must name this host and carry a token that only the printed address holds.
"""

from __future__ import annotations

import json
import re
import secrets
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paras2s.errors import ConfigError, DataError, StorageError
from paras2s.utils.html import page_template
from paras2s.utils.io import append_jsonl, read_jsonl

ANNOTATOR = re.compile(r"[\w.-]{1,40}")
CLIP_PATH = re.compile(r"/clip/([0-9]{1,9})/([0-9]{1,9})")
CONTENT_TYPES = {".wav": "audio/wav", ".flac": "audio/flac", ".ogg": "audio/ogg"}

MAX_NOTE_CHARACTERS = 1_000
MAX_BODY_BYTES = 16_384
MAX_DRAINED_BYTES = 1 << 20
SOCKET_TIMEOUT_S = 10.0
POLL_S = 0.1
# Fewer decisions than this say too little about the pace.
PACE_MIN_DECISIONS = 3


@dataclass(frozen=True)
class CheckItem:
    """An item to check. Made by the pipeline; read by the page."""

    id: str
    kind: Literal["query", "answer"]
    text: str  # the intended words
    style: str  # the intended style
    clips: tuple[Path, ...]  # a query has one; an answer has its takes
    picked: int  # the take that is used now (0 for a query)
    details: dict[str, str]  # shown small: category, transcript, word error rate, ...


@dataclass(frozen=True)
class Decision:
    """An annotator's decision on an item; as an outcome of `judge_items`, that of all annotators together."""

    item_id: str
    annotator: str
    accept: bool
    choice: int | None = None  # another take than the picked one, counted from 0
    note: str = ""


class _Row(BaseModel):
    """A line of the file: a decision, or an undo of the annotator's latest one on this item."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    item_id: str = Field(min_length=1)
    annotator: str = Field(min_length=1)
    accept: bool | None = None
    choice: int | None = Field(default=None, ge=0)
    note: str = ""
    undo: bool = False

    @model_validator(mode="after")
    def _check(self) -> _Row:
        if (self.accept is None) != self.undo:
            raise ValueError("give either 'accept' or 'undo', and not both")
        return self


class _Posted(BaseModel):
    """The body of a decision as the page sends it; the annotator is always the session's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    item_id: str
    accept: bool
    choice: int | None = None
    note: str = Field(default="", max_length=MAX_NOTE_CHARACTERS)


def _first_problem(error: ValidationError) -> str:
    wrong = error.errors()[0]
    return f"{'.'.join(map(str, wrong['loc'])) or 'row'}: {wrong['msg']}"


def load_decisions(path: Path) -> list[Decision]:
    """Loads the valid decisions in the order they were made: an annotator's last one on each item, unless undone.

    No file means no decisions.

    Raises:
        DataError: a line is not a decision; names the file and the line.
    """
    if not path.exists():
        return []
    made: dict[tuple[str, str], list[tuple[int, Decision]]] = {}
    for number, values in enumerate(read_jsonl(path), 1):
        try:
            row = _Row.model_validate(values)
        except ValidationError as error:
            raise DataError(f"{path}:{number}: {_first_problem(error)}; mend or remove the line") from error
        earlier = made.setdefault((row.item_id, row.annotator), [])
        if row.accept is not None:
            earlier.append((number, Decision(row.item_id, row.annotator, row.accept, row.choice, row.note)))
        elif earlier:
            earlier.pop()
        else:
            raise DataError(
                f"{path}:{number}: {row.annotator} takes back a decision on {row.item_id!r} that no line above holds; "
                "mend or remove the line"
            )
    binding = sorted((decisions[-1] for decisions in made.values() if decisions), key=lambda one: one[0])
    return [decision for _, decision in binding]


def judge_items(decisions: Sequence[Decision], annotators_needed: int = 1) -> dict[str, Decision | str]:
    """Returns the outcome of every item with a decision.

    All annotators of an item vote, also those beyond `annotators_needed`. An outcome names all of them and joins their notes.

    Args:
        decisions: in the order they were made; of an annotator's decisions on an item, the last binds.
        annotators_needed: with fewer, the item's outcome is a line that begins with "waiting".

    Returns:
        By item: a `Decision` (accepted if more than half accept, with the take most of those name; of takes named equally
        often, that of the earliest voter) or the line "waiting: 1 of 3 annotators".

    Raises:
        ConfigError: `annotators_needed` is below 1.
    """
    if annotators_needed < 1:
        raise ConfigError(f"annotators_needed: {annotators_needed} is no number of people; give 1 or more")
    votes: dict[str, dict[str, Decision]] = {}
    for decision in decisions:
        of_item = votes.setdefault(decision.item_id, {})
        # Inserted anew, so that the order is that of the valid votes.
        of_item.pop(decision.annotator, None)
        of_item[decision.annotator] = decision
    return {item_id: _outcome(list(of_item.values()), annotators_needed) for item_id, of_item in votes.items()}


def _outcome(votes: Sequence[Decision], annotators_needed: int) -> Decision | str:
    if len(votes) < annotators_needed:
        return f"waiting: {len(votes)} of {annotators_needed} annotators"
    choices = [vote.choice for vote in votes if vote.accept]
    accept = 2 * len(choices) > len(votes)
    return Decision(
        votes[0].item_id,
        ", ".join(vote.annotator for vote in votes),
        accept,
        # Of equal counts, `most_common` returns the first one.
        Counter(choices).most_common(1)[0][0] if accept else None,
        "; ".join(vote.note for vote in votes if vote.note),
    )


class CheckSession:
    """The check of a list of items by one annotator: what is pending, and where decisions go. No HTTP; not thread-safe."""

    def __init__(self, items: Sequence[CheckItem], path: Path, annotator: str) -> None:
        """Continues the check where this annotator left it.

        Raises:
            ConfigError: the name is empty, too long or has other characters than letters, digits, dot, dash, underscore.
            DataError: the items or the file's rows are wrong, or the file is about other takes.
            StorageError: the disk refused.
        """
        if not ANNOTATOR.fullmatch(annotator):
            raise ConfigError(
                f"annotator: {annotator!r} is no name for a file; use 1 to 40 letters, digits, dots, dashes, underscores"
            )
        self.items = tuple(items)
        self.path = path
        self.annotator = annotator
        self._by_id = {item.id: item for item in self.items}
        if len(self._by_id) < len(self.items):
            twice = Counter(item.id for item in self.items).most_common(1)[0][0]
            raise DataError(f"human check: two items are called {twice!r}; an item's decisions need a name of its own")
        for item in self.items:
            if not item.id or not 0 <= item.picked < len(item.clips):
                raise DataError(f"human check: item {item.id!r} has {len(item.clips)} takes, and take {item.picked} is picked")
        _end_last_row(path)
        self._mine: dict[str, Decision] = {}
        for decision in load_decisions(path):
            known = self._by_id.get(decision.item_id)
            if known is not None and decision.choice is not None and decision.choice >= len(known.clips):
                raise DataError(
                    f"{path}: {decision.annotator} chose take {decision.choice} of {known.id!r}, which has {len(known.clips)}; "
                    "the file belongs to other clips: move it away"
                )
            if known is not None and decision.annotator == annotator:
                self._mine[known.id] = decision
        # This session's decisions in order, each with the decision it replaced.
        self._done: list[tuple[CheckItem, Decision | None]] = []

    def pending(self) -> list[CheckItem]:
        """Returns the items without a decision of this annotator, in order."""
        return [item for item in self.items if item.id not in self._mine]

    def progress(self) -> tuple[int, int]:
        """Returns the number of items decided by this annotator, in any session, and of all items."""
        return len(self._mine), len(self.items)

    def decided(self) -> list[Decision]:
        """Returns this annotator's decisions, in the order of the items."""
        return [self._mine[item.id] for item in self.items if item.id in self._mine]

    def can_undo(self) -> bool:
        """Whether this session has a decision to undo."""
        return bool(self._done)

    def decide(self, decision: Decision) -> None:
        """Records a decision; it replaces this annotator's earlier one on the item.

        A choice of the take that is picked anyway is stored as None, and a rejected item has no choice.

        Raises:
            DataError: no such item or take, or the decision is another annotator's. StorageError: the disk refused.
        """
        item = self._by_id.get(decision.item_id)
        if item is None:
            raise DataError(f"human check: there is no item {decision.item_id!r}")
        if decision.annotator != self.annotator:
            raise DataError(f"human check: this is {self.annotator}'s session; {decision.annotator!r} needs one of their own")
        choice = decision.choice
        if choice is not None and not 0 <= choice < len(item.clips):
            raise DataError(f"human check: item {item.id!r} has {len(item.clips)} takes, so there is no take {choice}")
        if choice == item.picked or not decision.accept:
            choice = None
        # Half a character (a field's length limit can split one) could be written but not be read again.
        note = decision.note.encode("utf-8", "replace").decode("utf-8")
        decision = replace(decision, choice=choice, note=note)
        append_jsonl(self.path, asdict(decision))
        self._done.append((item, self._mine.get(item.id)))
        self._mine[item.id] = decision

    def undo(self) -> CheckItem | None:
        """Undoes this session's last decision and restores the one before; returns its item, None without a decision.

        It adds a row: nothing is ever removed from the file, which others may be writing to.

        Raises:
            StorageError: the disk refused.
        """
        if not self._done:
            return None
        item, before = self._done[-1]
        append_jsonl(self.path, {"item_id": item.id, "annotator": self.annotator, "undo": True})
        self._done.pop()
        if before is None:
            del self._mine[item.id]
        else:
            self._mine[item.id] = before
        return item


def _end_last_row(path: Path) -> None:
    """Adds the line break that a complete last row lacks after manual editing; the next append would cut that row off."""
    if not path.is_file():
        return
    try:
        last = path.read_bytes().rpartition(b"\n")[2]
        if last:
            try:
                json.loads(last)
            except ValueError:
                return
            with path.open("ab") as file:
                file.write(b"\n")
    except OSError as error:
        raise StorageError(f"cannot read or write {path}: {error.strerror or error}") from error


def time_left(paces_s: Sequence[float], remaining: int) -> str:
    """Returns in words how long `remaining` items take at this session's pace; empty while the pace is not known.

    The pace is the median, so that a break does not count.
    """
    if remaining == 0 or len(paces_s) < PACE_MIN_DECISIONS:
        return ""
    minutes = round(statistics.median(paces_s) * remaining / 60)
    if minutes < 1:
        return "less than a minute left"
    hours, minutes = divmod(minutes, 60)
    return f"about {hours} h {minutes} min left" if hours else f"about {minutes} min left"


class _Refusal(Exception):
    """A refused request: the HTTP status and a one-line reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _CheckServer(ThreadingHTTPServer):
    """The HTTP server of a session; `lock` serialises requests of two tabs."""

    daemon_threads = True

    def __init__(self, session: CheckSession, port: int) -> None:
        self.session = session
        self.lock = threading.Lock()
        self.token = secrets.token_urlsafe(24)
        self.paces_s: list[float] = []
        self.shown_at_s = time.monotonic()
        self.template = page_template(Path(__file__).with_name("page.html.j2"))
        super().__init__(("127.0.0.1", port), _Handler)
        names = [f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")]
        # A browser leaves the usual port out.
        self.hosts = {*names, *(("127.0.0.1", "localhost") if self.server_port == 80 else ())}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a tab that was closed in the middle of a request; prints any other error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def state(self, item: CheckItem | None = None) -> dict[str, Any]:
        """Returns what the page shows: `item`, or else the first pending one."""
        pending = self.session.pending()
        item = item or (pending[0] if pending else None)
        decided, total = self.session.progress()
        mine = self.session.decided()
        accepted = sum(decision.accept for decision in mine)
        self.shown_at_s = time.monotonic()
        return {
            "item": None if item is None else self._shown(item),
            "decided": decided,
            "total": total,
            "left": time_left(self.paces_s, len(pending)),
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

    def decide(self, posted: _Posted) -> None:
        """Passes a decision from the page to the session."""
        self.session.decide(Decision(posted.item_id, self.session.annotator, posted.accept, posted.choice, posted.note.strip()))
        self.paces_s.append(time.monotonic() - self.shown_at_s)


class _Handler(BaseHTTPRequestHandler):
    """Serves the page and the clips by number; accepts posts to /decide, /undo and /done."""

    server: _CheckServer
    timeout = SOCKET_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the terminal belongs to the command line."""

    def do_GET(self) -> None:
        """Sends the page or a clip."""
        try:
            self._check_host()
            url = self._url()
            clip = CLIP_PATH.fullmatch(url.path)
            if url.path != "/" and clip is None:
                raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
            self._check_token(parse_qs(url.query).get("token", [""])[0])
            if clip is None:
                self._send_page()
            else:
                self._send_clip(int(clip[1]), int(clip[2]))
        except _Refusal as refusal:
            self._refuse(refusal)

    def do_POST(self) -> None:
        """Handles a decision, an undo, or the end."""
        try:
            # Read before anything is refused: closing on unread bytes would reset the connection and lose the reason.
            body = self._body()
            self._check_host()
            path = self._url().path
            if path not in ("/decide", "/undo", "/done"):
                raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
            values = self._values(body)
            self._check_token(values.pop("token", None))
            if path == "/done":
                self._send(HTTPStatus.OK, "application/json", b"{}")
                # Not the thread that serves, so waiting for that one here cannot lock up.
                self.server.shutdown()
            else:
                state = self._decide(values) if path == "/decide" else self._undo()
                self._send(HTTPStatus.OK, "application/json", json.dumps(state).encode())
        except _Refusal as refusal:
            self._refuse(refusal)

    def _url(self) -> Any:
        try:
            return urlsplit(self.path)
        except ValueError as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, "the address is malformed") from error

    def _check_host(self) -> None:
        # A foreign name that was made to point at this machine (DNS rebinding) shows itself here.
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            raise _Refusal(HTTPStatus.FORBIDDEN, "this page answers to 127.0.0.1 and localhost only")

    def _check_token(self, token: object) -> None:
        given = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else b""
        if not secrets.compare_digest(given, self.server.token.encode()):
            raise _Refusal(HTTPStatus.FORBIDDEN, "wrong token; open the address that the command printed")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,15}", length):
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "the request does not say how long it is")
        if int(length) > MAX_BODY_BYTES:
            self.rfile.read(min(int(length), MAX_DRAINED_BYTES))
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {MAX_BODY_BYTES} bytes")
        return self.rfile.read(int(length))

    def _values(self, body: bytes) -> dict[str, Any]:
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, "the request is not JSON") from error
        if not isinstance(values, dict):
            raise _Refusal(HTTPStatus.BAD_REQUEST, "the request is not a JSON object")
        return values

    def _decide(self, values: dict[str, Any]) -> dict[str, Any]:
        try:
            posted = _Posted.model_validate(values)
        except ValidationError as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, _first_problem(error)) from error
        with self.server.lock:
            try:
                self.server.decide(posted)
            except DataError as error:
                raise _Refusal(HTTPStatus.BAD_REQUEST, str(error)) from error
            except StorageError as error:
                raise _Refusal(HTTPStatus.INSUFFICIENT_STORAGE, str(error)) from error
            return self.server.state()

    def _undo(self) -> dict[str, Any]:
        with self.server.lock:
            try:
                item = self.server.session.undo()
            except StorageError as error:
                raise _Refusal(HTTPStatus.INSUFFICIENT_STORAGE, str(error)) from error
            return self.server.state(item)

    def _send_page(self) -> None:
        with self.server.lock:
            state = self.server.state()
        nonce = secrets.token_urlsafe(16)
        page = self.server.template.render(
            annotator=self.server.session.annotator, state=state, nonce=nonce, max_note=MAX_NOTE_CHARACTERS
        )
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "media-src blob:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", page.encode(), {"Content-Security-Policy": policy})

    def _send_clip(self, index: int, take: int) -> None:
        items = self.server.session.items
        if index >= len(items) or take >= len(items[index].clips):
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such clip")
        clip = items[index].clips[take]
        try:
            data = clip.read_bytes()
        except OSError as error:
            raise _Refusal(HTTPStatus.NOT_FOUND, f"{clip.name} cannot be read: {error.strerror or error}") from error
        kind = CONTENT_TYPES.get(clip.suffix.lower(), "application/octet-stream")
        self._send(HTTPStatus.OK, kind, data, {"Accept-Ranges": "none"})

    def _refuse(self, refusal: _Refusal) -> None:
        reason = " ".join(str(refusal).split())
        self._send(refusal.status, "text/plain; charset=utf-8", reason.encode("utf-8", "replace"))

    def _send(self, status: HTTPStatus, kind: str, data: bytes, more: dict[str, str] | None = None) -> None:
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            # A page cached by the browser would show an item that is long decided.
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            **(more or {}),
        }
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()
        except ConnectionError:
            # The tab was closed meanwhile; the decision is on disk.
            self.close_connection = True


def serve(session: CheckSession, port: int, on_ready: Callable[[str], None]) -> None:
    """Serves the page until its "done" button or a KeyboardInterrupt.

    Args:
        session: the items and their annotator.
        port: on 127.0.0.1; 0 takes any free one.
        on_ready: called with the address to open; pages are sent only after it returns.

    Raises:
        ConfigError: the port cannot be used.
    """
    try:
        server = _CheckServer(session, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"port: {port} on 127.0.0.1 cannot be used ({error}); choose another, or 0 for any free one"
        ) from error
    try:
        on_ready(server.url)
        server.serve_forever(poll_interval=POLL_S)
    except KeyboardInterrupt:
        pass
    finally:
        # A decision that is just being written is waited for.
        with server.lock:
            server.server_close()
