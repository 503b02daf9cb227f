"""The human check: outcomes against hand-made tables, sessions that stop and go on, and the real server on the loopback.

Not covered: a browser, so neither the page's keys and looks nor that a clip is audible.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from paras2s.data_gen.review.server import MAX_BODY_BYTES, serve
from paras2s.data_gen.review.session import (
    CheckItem,
    CheckSession,
    Decision,
    judge_items,
    load_decisions,
    time_left,
)
from paras2s.errors import ConfigError, DataError, StorageError

WAIT_S = 10
HOSTILE = "</script><script>alert('x')</script> & \"quoted\""


def query(name: str, folder: Path = Path("clips")) -> CheckItem:
    return CheckItem(name, "query", f"Words of {name}.", "sad", (folder / f"{name}.wav",), 0, {"category": "emotion"})


def answer(name: str, takes: int = 3, picked: int = 1, folder: Path = Path("clips")) -> CheckItem:
    clips = tuple(folder / f"{name}-{number}.flac" for number in range(takes))
    return CheckItem(name, "answer", f"Words of {name}.", "gentle", clips, picked, {})


def yes(annotator: str, choice: int | None = None, item: str = "q", note: str = "") -> Decision:
    return Decision(item, annotator, True, choice, note)


def no(annotator: str, item: str = "q", note: str = "") -> Decision:
    return Decision(item, annotator, False, None, note)


# --- outcomes ---


@pytest.mark.parametrize(
    ("votes", "accept", "choice"),
    [
        ([yes("a")], True, None),
        ([no("a")], False, None),
        ([yes("a", 2)], True, 2),
        ([yes("a"), no("b")], False, None),
        ([yes("a"), no("b"), yes("c")], True, None),
        ([no("a"), yes("b", 3), no("c")], False, None),
        ([yes("a"), yes("b"), no("c"), no("d")], False, None),
        # The picked take needs votes like any other.
        ([yes("a"), yes("b", 2), yes("c", 2)], True, 2),
        ([yes("a"), yes("b", 2), yes("c")], True, None),
        # Who rejects does not choose, so of the two others' takes the earlier voter's is used.
        ([yes("a", 4), no("b"), yes("c", 2)], True, 4),
        ([yes("a"), yes("b", 2)], True, None),
        ([yes("b", 2), yes("a")], True, 2),
        ([yes("a", 5), yes("b", 2), yes("c", 0), yes("d", 2), yes("e", 5)], True, 5),
        # 0 is a take, not a missing choice.
        ([yes("a", 0), yes("b", 0), yes("c")], True, 0),
        # The last word of an annotator binds, and only that.
        ([yes("a"), no("a")], False, None),
        ([no("a"), yes("a", 1), yes("a", 2)], True, 2),
        # A changed mind votes when it changed: b is now the earlier voter.
        ([yes("a", 1), yes("b", 2), yes("a", 3)], True, 2),
    ],
)
def test_outcome(votes: list[Decision], accept: bool, choice: int | None) -> None:
    outcome = judge_items(votes)["q"]
    assert isinstance(outcome, Decision)
    assert (outcome.item_id, outcome.accept, outcome.choice) == ("q", accept, choice)


def test_an_outcome_names_its_voters_and_keeps_their_notes() -> None:
    one, two = yes("ann", note="a click"), no("ben", note="too fast")
    assert judge_items([one]) == {"q": one}
    assert judge_items([one, yes("cleo"), two])["q"] == Decision("q", "ann, cleo, ben", True, None, "a click; too fast")


def test_too_few_annotators_is_waiting_and_not_rejected() -> None:
    votes = [yes("a", item="one"), no("a", item="two"), no("a", item="two"), yes("b", item="one"), yes("c", item="one")]
    outcomes = judge_items(votes, annotators_needed=3)
    assert outcomes["two"] == "waiting: 1 of 3 annotators"
    assert isinstance(outcomes["one"], Decision)
    assert list(outcomes) == ["one", "two"]
    assert judge_items([]) == {}
    with pytest.raises(ConfigError, match="annotators_needed: 0"):
        judge_items(votes, annotators_needed=0)


# --- the file and the session ---


def test_a_session_goes_on_where_another_stopped(tmp_path: Path) -> None:
    items, path = [query("one"), answer("two"), query("three")], tmp_path / "new" / "decisions.jsonl"
    assert load_decisions(path) == []
    first = CheckSession(items, path, "ann")
    assert first.progress() == (0, 3)
    first.decide(yes("ann", item="one"))
    first.decide(Decision("two", "ann", True, 2, "take 2 is calmer"))
    assert first.pending() == [items[2]]
    second = CheckSession(items, path, "ann")
    assert second.pending() == [items[2]]
    assert second.progress() == (2, 3)
    assert second.decided() == load_decisions(path) == [yes("ann", item="one"), yes("ann", 2, "two", "take 2 is calmer")]
    # Another person begins at the beginning, and the file holds both.
    other = CheckSession(items, path, "ben")
    assert other.pending() == items
    other.decide(no("ben", item="one"))
    assert judge_items(load_decisions(path), 2)["one"] == Decision("one", "ann, ben", False)


def test_the_last_decision_binds(tmp_path: Path) -> None:
    session = CheckSession([query("one"), query("two")], tmp_path / "d.jsonl", "ann")
    session.decide(yes("ann", item="one"))
    session.decide(yes("ann", item="two"))
    session.decide(no("ann", item="one"))
    # In the order of the valid decisions.
    assert load_decisions(session.path) == [yes("ann", item="two"), no("ann", item="one")]
    assert session.progress() == (2, 2)


def test_undo(tmp_path: Path) -> None:
    items, path = [query("one"), query("two")], tmp_path / "d.jsonl"
    CheckSession(items, path, "ann").decide(yes("ann", item="one"))
    session, other = CheckSession(items, path, "ann"), CheckSession(items, path, "ben")
    # Only this session's own decisions are taken back.
    assert session.undo() is None
    session.decide(no("ann", item="two"))
    other.decide(no("ben", item="two"))
    session.decide(no("ann", item="one"))
    assert session.undo() == items[0]
    assert session.decided() == [yes("ann", item="one"), no("ann", item="two")]
    assert load_decisions(path) == [yes("ann", item="one"), no("ann", item="two"), no("ben", item="two")]
    assert session.undo() == items[1]
    assert session.undo() is None
    assert session.pending() == CheckSession(items, path, "ann").pending() == [items[1]]
    assert load_decisions(path) == [yes("ann", item="one"), no("ben", item="two")]


def test_the_picked_take_is_no_other_take_and_a_rejected_item_has_none(tmp_path: Path) -> None:
    session = CheckSession([answer("one", picked=1), answer("two")], tmp_path / "d.jsonl", "ann")
    session.decide(yes("ann", 1, "one"))
    session.decide(Decision("two", "ann", False, 2))
    assert load_decisions(session.path) == [yes("ann", item="one"), no("ann", item="two")]


def test_half_a_character_in_a_note_does_not_spoil_the_file(tmp_path: Path) -> None:
    session = CheckSession([query("one")], tmp_path / "d.jsonl", "ann")
    session.decide(yes("ann", item="one", note="naïve \ud83d"))
    assert load_decisions(session.path)[0].note == "naïve ?"


def test_a_line_cut_off_by_a_kill_is_passed_over_and_then_replaced(tmp_path: Path) -> None:
    items, path = [query("one"), query("two")], tmp_path / "d.jsonl"
    CheckSession(items, path, "ann").decide(yes("ann", item="one"))
    with path.open("a") as file:
        file.write('{"item_id": "two", "annot')
    session = CheckSession(items, path, "ann")
    assert session.pending() == [items[1]]
    session.decide(no("ann", item="two"))
    assert load_decisions(path) == [yes("ann", item="one"), no("ann", item="two")]


def test_a_complete_last_line_without_its_break_is_not_lost(tmp_path: Path) -> None:
    items, path = [query("one"), query("two")], tmp_path / "d.jsonl"
    CheckSession(items, path, "ben").decide(yes("ben", item="one"))
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    CheckSession(items, path, "ann").decide(no("ann", item="two"))
    assert load_decisions(path) == [yes("ben", item="one"), no("ann", item="two")]


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ("[1, 2]", "row: "),
        ("{}", "item_id"),
        ('{"item_id": "one", "annotator": "ann"}', "either 'accept' or 'undo'"),
        ('{"item_id": "one", "annotator": "ann", "accept": true, "undo": true}', "either 'accept' or 'undo'"),
        ('{"item_id": "one", "annotator": "ann", "accept": "yes"}', "accept"),
        ('{"item_id": "one", "annotator": "ann", "accept": 1}', "accept"),
        ('{"item_id": "one", "annotator": "ann", "accept": true, "choice": -1}', "choice"),
        ('{"item_id": "one", "annotator": "ann", "accept": true, "choice": true}', "choice"),
        ('{"item_id": "one", "annotator": "ann", "accept": true, "score": 3}', "score"),
        ('{"item_id": "two", "annotator": "ann", "undo": true}', "takes back a decision on 'two'"),
        ("not JSON", "not valid JSON"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, match: str) -> None:
    path = tmp_path / "d.jsonl"
    good = '{"item_id": "one", "annotator": "ann", "accept": true}\n'
    path.write_text(f"{good}{row}\n{good}")
    with pytest.raises(DataError, match=match) as caught:
        load_decisions(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a" * 41, "two words", "../up", "line\n", "a,b", "<b>"])
def test_a_name_that_is_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="annotator"):
        CheckSession([], tmp_path / "d.jsonl", name)


@pytest.mark.parametrize("name", ["a" * 40, "Zoë_2", "j.doe-1"])
def test_a_name_that_is_one(tmp_path: Path, name: str) -> None:
    session = CheckSession([query("one")], tmp_path / "d.jsonl", name)
    session.decide(yes(name, item="one"))
    assert CheckSession([query("one")], session.path, name).pending() == []


@pytest.mark.parametrize(
    ("items", "match"),
    [
        ([query("one"), query("two"), query("one")], "two items are called 'one'"),
        ([query("")], "item ''"),
        ([answer("one", takes=0, picked=0)], "0 takes"),
        ([answer("one", takes=3, picked=3)], "take 3 is picked"),
        ([answer("one", takes=3, picked=-1)], "take -1 is picked"),
    ],
)
def test_items_that_cannot_be_checked(tmp_path: Path, items: list[CheckItem], match: str) -> None:
    with pytest.raises(DataError, match=match):
        CheckSession(items, tmp_path / "d.jsonl", "ann")


@pytest.mark.parametrize(
    ("decision", "match"),
    [
        (yes("ann", item="three"), "no item 'three'"),
        (yes("ben", item="one"), "'ben'"),
        (yes("ann", 3, "one"), "no take 3"),
        (yes("ann", -1, "one"), "no take -1"),
    ],
)
def test_decisions_that_are_refused_leave_no_trace(tmp_path: Path, decision: Decision, match: str) -> None:
    session = CheckSession([answer("one")], tmp_path / "d.jsonl", "ann")
    with pytest.raises(DataError, match=match):
        session.decide(decision)
    assert session.progress() == (0, 1)
    assert not session.path.exists()


def test_a_file_about_other_takes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    CheckSession([answer("one", takes=5)], path, "ben").decide(yes("ben", 4, "one"))
    with pytest.raises(DataError, match="take 4 of 'one', which has 3") as caught:
        CheckSession([answer("one", takes=3)], path, "ann")
    assert str(path) in str(caught.value)


def test_a_disk_that_refuses_leaves_the_item_undecided(tmp_path: Path) -> None:
    session = CheckSession([query("one")], tmp_path / "d.jsonl", "ann")
    session.path.mkdir()
    with pytest.raises(StorageError):
        session.decide(yes("ann", item="one"))
    assert session.progress() == (0, 1)
    assert not session.can_undo()


@pytest.mark.parametrize(
    ("paces_s", "remaining", "expected"),
    [
        ([], 10, ""),
        ([5, 5], 10, ""),
        ([5, 5, 5], 0, ""),
        ([5, 5, 5], 5, "less than a minute left"),
        ([3, 4, 5], 15, "about 1 min left"),
        # A lunch break counts for nothing.
        ([3, 3_600, 3, 2], 240, "about 12 min left"),
        ([10, 10, 10], 720, "about 2 h 0 min left"),
        ([10, 10, 10], 750, "about 2 h 5 min left"),
    ],
)
def test_time_left(paces_s: list[float], remaining: int, expected: str) -> None:
    assert time_left(paces_s, remaining) == expected


# --- the server ---


@dataclass
class Page:
    """A running server, and how a test talks to it."""

    session: CheckSession
    url: str
    thread: threading.Thread

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    def get(self, path: str, token: str | None = None, host: str | None = None) -> tuple[int, Message, bytes]:
        token = self.token if token is None else token
        return self._send(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}?token={token}"), host)

    def post(self, path: str, host: str | None = None, **values: Any) -> tuple[int, Message, bytes]:
        return self.post_raw(path, json.dumps({"token": self.token, **values}).encode(), host)

    def post_raw(self, path: str, body: bytes, host: str | None = None) -> tuple[int, Message, bytes]:
        return self._send(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=body), host)

    def raw(self, request: str) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
            connection.sendall(request.encode())
            return connection.makefile("rb").read()

    def _send(self, request: urllib.request.Request, host: str | None) -> tuple[int, Message, bytes]:
        if host is not None:
            request.add_header("Host", host)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=WAIT_S) as reply:
                return reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    pages: list[Page] = []

    def open_one(items: list[CheckItem] | None = None, annotator: str = "ann") -> Page:
        session = CheckSession(items_on_disk(tmp_path) if items is None else items, tmp_path / "d.jsonl", annotator)
        urls: queue.Queue[str] = queue.Queue()
        thread = threading.Thread(target=serve, args=(session, 0, urls.put), daemon=True)
        thread.start()
        pages.append(Page(session, urls.get(timeout=WAIT_S), thread))
        return pages[-1]

    yield open_one
    for page in pages:
        if page.thread.is_alive():
            page.post("/done")
        page.thread.join(WAIT_S)
        assert not page.thread.is_alive()


def items_on_disk(folder: Path) -> list[CheckItem]:
    items = [query("one", folder), answer("two", folder=folder), query("three", folder)]
    for item in items:
        for clip in item.clips:
            clip.write_bytes(b"RIFF" + clip.name.encode() * 1_000 + bytes(range(256)))
    (folder / "secret.txt").write_text("nobody's business")
    return items


def test_the_page(open_page: Callable[..., Page]) -> None:
    page = open_page()
    assert page.url.startswith("http://127.0.0.1:")
    status, headers, body = page.get("/")
    text = body.decode()
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert "Words of one." in text
    # The token stands in the address only, and nothing comes from elsewhere.
    assert page.token not in text
    assert "http://" not in text
    assert "https://" not in text


def test_texts_are_escaped(open_page: Callable[..., Page], tmp_path: Path) -> None:
    clip = tmp_path / "one.wav"
    page = open_page([CheckItem(HOSTILE, "query", HOSTILE, HOSTILE, (clip,), 0, {HOSTILE: HOSTILE})])
    text = page.get("/")[2].decode()
    assert text.count("</script>") == 2
    assert "<script>alert" not in text
    state = text.partition('<script type="application/json" id="state">')[2].partition("</script>")[0]
    assert json.loads(state)["item"]["text"] == HOSTILE
    assert page.post("/decide", item_id=HOSTILE, accept=True, note=HOSTILE)[0] == 200
    assert load_decisions(page.session.path) == [Decision(HOSTILE, "ann", True, None, HOSTILE)]


def test_clips_are_the_files(open_page: Callable[..., Page]) -> None:
    page = open_page()
    for index, item in enumerate(page.session.items):
        for take, clip in enumerate(item.clips):
            status, headers, body = page.get(f"/clip/{index}/{take}")
            assert (status, body) == (200, clip.read_bytes())
            assert headers["Content-Type"] == {".wav": "audio/wav", ".flac": "audio/flac"}[clip.suffix]
            assert headers["Content-Length"] == str(len(body))
            assert headers["Accept-Ranges"] == "none"
    page.session.items[0].clips[0].unlink()
    assert page.get("/clip/0/0")[::2] == (404, b"one.wav cannot be read: No such file or directory")


def test_decisions_reach_the_file(open_page: Callable[..., Page]) -> None:
    page = open_page()
    status, headers, body = page.post("/decide", item_id="one", accept=True, choice=0, note="  ")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    state = json.loads(body)
    assert (state["decided"], state["total"], state["can_undo"]) == (1, 3, True)
    assert state["item"] == {
        "id": "two", "index": 1, "kind": "answer", "text": "Words of two.", "style": "gentle", "takes": 3, "picked": 1,
        "details": [],
    }  # fmt: skip
    assert load_decisions(page.session.path) == [yes("ann", item="one")]
    page.post("/decide", item_id="two", accept=True, choice=2, note="calmer")
    state = json.loads(page.post("/decide", item_id="three", accept=False, choice=None, note="")[2])
    assert state["item"] is None
    assert (state["accepted"], state["rejected"], state["other_take"]) == (2, 1, 1)
    expected = [yes("ann", item="one"), yes("ann", 2, "two", "calmer"), no("ann", item="three")]
    assert load_decisions(page.session.path) == expected
    # Taken back, it is shown again.
    state = json.loads(page.post("/undo")[2])
    assert (state["item"]["id"], state["decided"]) == ("three", 2)
    assert load_decisions(page.session.path) == expected[:2]


def test_a_page_opened_again_goes_on(open_page: Callable[..., Page]) -> None:
    first = open_page()
    first.post("/decide", item_id="one", accept=False)
    assert first.post("/done")[0] == 200
    first.thread.join(WAIT_S)
    second = open_page()
    assert second.token != first.token
    state = json.loads(second.post("/undo")[2])
    assert (state["item"]["id"], state["decided"], state["can_undo"]) == ("two", 1, False)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"item_id": "nine", "accept": True}, "there is no item 'nine'"),
        ({"item_id": "one"}, "accept"),
        ({"item_id": "one", "accept": "true"}, "accept"),
        ({"item_id": "one", "accept": True, "choice": 1}, "no take 1"),
        ({"item_id": "one", "accept": True, "choice": 0.5}, "choice"),
        ({"item_id": "one", "accept": True, "annotator": "ben"}, "annotator"),
        ({"item_id": "one", "accept": True, "note": "x" * 1_001}, "note"),
    ],
)
def test_decisions_that_make_no_sense(open_page: Callable[..., Page], values: dict[str, Any], reason: str) -> None:
    page = open_page()
    status, _, body = page.post("/decide", **values)
    assert status == 400
    assert reason in body.decode()
    assert b"\n" not in body
    assert not page.session.path.exists()


@pytest.mark.parametrize(
    "body", [b"", b"accept", b"[1]", b"null", b'{"token": ', b"\xff\xfe", b"[" * 16_000], ids=lambda body: repr(body[:8])
)
def test_a_body_that_is_no_json_object(open_page: Callable[..., Page], body: bytes) -> None:
    page = open_page()
    assert page.post_raw("/decide", body)[0] == 400
    assert not page.session.path.exists()


@pytest.mark.parametrize("length", [MAX_BODY_BYTES + 1, 200_000])
def test_a_body_that_is_too_long(open_page: Callable[..., Page], length: int) -> None:
    page = open_page()
    body = json.dumps({"token": page.token, "item_id": "one", "accept": True}).encode().ljust(length)
    assert page.post_raw("/decide", body)[::2] == (413, b"a request may have 16384 bytes")
    assert not page.session.path.exists()


@pytest.mark.parametrize("token", ["", "wrong", "ü", None, 7, ["x"], "\ud800"])
def test_a_wrong_token(open_page: Callable[..., Page], token: Any) -> None:
    page = open_page()
    for path in ("/decide", "/undo", "/done"):
        status, _, body = page.post(path, token=token, item_id="one", accept=True)
        assert status == 403
        assert body.startswith(b"wrong token")
    if token in ("", "wrong"):
        for path in ("/", "/clip/0/0"):
            assert page.get(path, token=token)[0] == 403
    assert not page.session.path.exists()
    assert page.thread.is_alive()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}.evil.example", ""]
)
def test_a_wrong_host(open_page: Callable[..., Page], host: str) -> None:
    page = open_page()
    host = host.format(port=page.port)
    for path in ("/", "/clip/0/0"):
        assert page.get(path, host=host)[0] == 403
    assert page.post("/decide", host=host, item_id="one", accept=True)[0] == 403
    assert page.post("/done", host=host)[0] == 403
    assert not page.session.path.exists()
    assert page.get("/", host=f"LOCALHOST:{page.port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/d.jsonl",
        "/../secret.txt",
        "/clip/../secret.txt",
        "/clip/0/../../secret.txt",
        "/clip/%2e%2e/secret.txt",
        "/clip/0/..%2fsecret.txt",
        "/clip/0/one.wav",
        "/clip//etc/passwd",
        "//etc/passwd",
        "/clip/0/1",
        "/clip/3/0",
        "/clip/-1/0",
        "/clip/0/-1",
        "/clip/%30/0",
        "/clip/0/00000000000000000000",
        "/clip/0",
        "/clip/0/0/",
        "/decide",
        "/favicon.ico",
    ],
)
def test_other_paths_are_not_there(open_page: Callable[..., Page], path: str) -> None:
    page = open_page()
    # By hand, past what a client thinks a path may look like.
    reply = page.raw(f"GET {path}?token={page.token} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n")
    assert b" 404 " in reply.splitlines()[0]
    assert b"nobody's business" not in reply


def test_posts_elsewhere_and_without_a_length(open_page: Callable[..., Page]) -> None:
    page = open_page()
    assert page.post("/")[0] == 404
    assert page.post("/clip/0/0")[0] == 404
    reply = page.raw(f"POST /done HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n")
    assert b" 411 " in reply.splitlines()[0]
    assert page.thread.is_alive()


def test_a_full_disk_is_shown_on_the_page(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.session.path.mkdir()
    status, _, body = page.post("/decide", item_id="one", accept=True)
    assert (status, body.count(b"\n")) == (507, 0)
    assert b"cannot write" in body
    assert page.session.progress() == (0, 3)


def test_only_the_loopback_answers(open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[Any] = []
    bind = socket.socket.bind
    monkeypatch.setattr(socket.socket, "bind", lambda self, address: (bound.append(address), bind(self, address))[1])
    open_page()
    assert bound == [("127.0.0.1", 0)]


def test_done_ends_it_and_frees_the_port(open_page: Callable[..., Page]) -> None:
    page = open_page()
    assert page.post("/done")[0] == 200
    page.thread.join(WAIT_S)
    assert not page.thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", page.port), timeout=WAIT_S)


def test_an_interrupt_ends_it_quietly(tmp_path: Path) -> None:
    opened: list[int] = []

    def interrupt(url: str) -> None:
        opened.append(int(urlsplit(url).port or 0))
        raise KeyboardInterrupt

    serve(CheckSession([], tmp_path / "d.jsonl", "ann"), 0, interrupt)
    assert len(opened) == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", opened[0]), timeout=WAIT_S)


def test_a_port_in_use_is_named(open_page: Callable[..., Page], tmp_path: Path) -> None:
    session = CheckSession([], tmp_path / "d.jsonl", "ann")
    for port in (open_page().port, 70_000):
        with pytest.raises(ConfigError, match=f"port: {port}"):
            serve(session, port, lambda url: None)
