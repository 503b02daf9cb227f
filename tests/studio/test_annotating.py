"""Annotating in a real Chromium with the real server, which is killed while people work.

Not covered: other browsers, and whether a clip is audible.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from data_gen.test_human_check import dataset
from studio.browser import PATIENCE_MS, findings, opened, served
from tiny.processes import PATIENCE_S
from tiny.studies import QUESTIONS, answer_pair, make, pair_items, single_items

from paras2s.data_gen.curation.human_check import load_decisions, open_check
from paras2s.studies.clicks import other_side
from paras2s.studies.store import StudyStore
from paras2s.studio.annotation.export import export_study
from paras2s.utils.io import read_json, read_jsonl

ITEMS = 20
HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\">"
LABELS = {"1": "1", "2": "2", "g": "both_good", "b": "both_bad"}

# Resolves once the browser keeps so many clicks, or after so many milliseconds.
UNTIL_KEPT = """([clicks, patience]) => new Promise((resolve, reject) => {
  const end = Date.now() + patience;
  const look = () => {
    if (Object.keys(localStorage).length === clicks) resolve();
    else if (Date.now() > end) reject(new Error("clicks kept: " + Object.keys(localStorage).length));
    else setTimeout(look, 20);
  };
  look();
})"""


def wait_for_text(page: Any, selector: str, text: str) -> None:
    page.wait_for_selector(f'{selector}:text-is("{text}")')


class Server:
    """The studio as its own process, on a port that the kernel gives to nobody else between two starts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        code = "from paras2s.cli.app import main; main()"
        command = [sys.executable, "-c", code, "studio", str(self.folder), "--port", str(self.port), "--no-open"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        watch = threading.Timer(PATIENCE_S, self.process.kill)
        watch.start()
        # It prints its address once the socket takes connections.
        assert str(self.port) in self.process.stdout.readline()
        watch.cancel()

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


def free_port() -> int:
    """A port below those that the kernel hands out."""
    for port in range(20_000 + os.getpid() % 10_000, 31_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened() as one:
        yield one


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(tmp_path)
    yield one
    one.kill()


def open_page(browser: Any, errors: list[str], **settings: Any) -> Any:
    context = browser.new_context(**settings)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    return page


def keys_of(item: int) -> str:
    """Four choices that differ from item to item."""
    return "".join("12gb"[(item + 3 * at) % 4] for at in range(4))


def play_both(page: Any) -> None:
    for key, clip in (("a", "1"), ("s", "2")):
        page.keyboard.press(key)
        wait_for_text(page, f"[data-clip='{clip}'] .plays", "played once")


def wait_for_count(page: Any, done: int, total: int = ITEMS) -> None:
    wait_for_text(page, "#count", f"{done} of {total}")


def wait_until_stored(page: Any) -> None:
    wait_for_text(page, "#saved", "saved")


def test_twenty_items_by_keyboard_with_the_server_killed_twice(browser: Any, server: Server, tmp_path: Path) -> None:
    store = make(tmp_path, "pair", pair_items(tmp_path, ITEMS), "ann")
    (ann,) = store.annotators()
    errors: list[str] = []
    server.start()
    page = open_page(browser, errors)
    page.goto(f"http://127.0.0.1:{server.port}/annotate/{ann.token}")
    for done in range(ITEMS):
        wait_for_count(page, done)
        play_both(page)
        first, *others = keys_of(done)
        page.keyboard.press(first)
        if done in (6, 13):
            wait_until_stored(page)
            server.kill()
            # Clicks into the void: the page holds them.
            page.keyboard.press(others[0])
            page.wait_for_selector("#banner:not([hidden])")
            server.start()
            wait_until_stored(page)
            if done == 13:
                # And the page itself may be opened anew.
                page.reload()
                page.wait_for_selector("[data-question]")
            others = others[1:]
        for key in others:
            page.keyboard.press(key)
        page.keyboard.press("Enter")
    page.wait_for_selector("#end:not([hidden])")
    # Failures to reach the server are the only errors of the console.
    assert all("net::ERR_" in error for error in errors), errors
    check_export(store, tmp_path)


def test_two_windows_keep_each_others_clicks(browser: Any, server: Server, tmp_path: Path) -> None:
    store = make(tmp_path, "single", single_items(tmp_path, [1.0, 2.0]), "ann")
    (ann,) = store.annotators()
    server.start()
    first = open_page(browser, [])
    second = first.context.new_page()
    for page in (first, second):
        page.goto(f"http://127.0.0.1:{server.port}/annotate/{ann.token}")
        wait_for_count(page, 0, 2)
    server.kill()
    first.keyboard.press("4")
    second.keyboard.press("2")
    kept = "Object.keys(localStorage).length"
    for page in (first, second):
        # A browser tells the other window's process of a click in its own time. Not by wait_for_function: its second
        # look evaluates a string, which the studio's security policy forbids.
        page.evaluate(UNTIL_KEPT, [2, PATIENCE_MS])
    server.start()
    for page in (first, second):
        wait_until_stored(page)
    assert first.evaluate(kept) == 0
    # Both were sent; the later one is of the same question and stands.
    assert store.count_clicks() == 2


def check_export(store: StudyStore, tmp_path: Path) -> None:
    """The export is that of a study whose server was never killed."""
    calm = make(tmp_path / "calm", "pair", pair_items(tmp_path / "calm", ITEMS), "ann")
    (ann,) = calm.annotators()
    for at, place in enumerate(calm.order(ann)):
        answer_pair(calm, "ann", place.item, *(other_side(LABELS[key], place.flipped) for key in keys_of(at)))
    for one, out in ((store, "killed"), (calm, "never")):
        export_study(one, tmp_path / out)
    labels = [read_json(tmp_path / out / "labels.json") for out in ("killed", "never")]
    assert labels[0] == labels[1]
    assert len(labels[0]) == ITEMS
    rows = [list(read_jsonl(tmp_path / out / "annotations.jsonl")) for out in ("killed", "never")]
    for name in ("id", "values", "plays", "skipped", "comment"):
        assert [row[name] for row in rows[0]] == [row[name] for row in rows[1]], name
    # One item each: two plays, four choices and the end; nothing twice.
    assert len(store.clicks("ann")) == ITEMS * (2 + len(QUESTIONS) + 1)


def test_skip_comment_and_undo_on_a_phone_in_the_dark(browser: Any, tmp_path: Path) -> None:
    hostile = {"question_text": HOSTILE, "context": HOSTILE}
    items = [item.model_copy(update=hostile) for item in single_items(tmp_path, [1.0, 2.0])]
    store = make(tmp_path, "single", items, "ann")
    (ann,) = store.annotators()
    errors: list[str] = []
    with served([tmp_path]) as address:
        page = open_page(browser, errors, viewport={"width": 400, "height": 800}, color_scheme="dark")
        page.goto(f"{address}/annotate/{ann.token}")
        wait_for_count(page, 0, 2)
        assert page.inner_text("#text") == HOSTILE
        assert page.title() == "A study"
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert findings(page) == []
        page.keyboard.press("c")
        page.keyboard.type("5 " + HOSTILE)
        page.keyboard.press("Escape")
        page.keyboard.press("x")
        page.keyboard.type("silence")
        page.click("#why button[value=skip]")
        wait_for_count(page, 1, 2)
        page.keyboard.press("u")
        wait_for_count(page, 0, 2)
        # The comment stands, and typing a digit into it has chosen nothing.
        assert page.input_value("#comment") == "5 " + HOSTILE
        assert page.locator("input:checked").count() == 0
        page.keyboard.press("a")
        wait_for_text(page, "[data-clip='1'] .plays", "played once")
        page.keyboard.press("4")
        page.keyboard.press("2")
        page.keyboard.press("Enter")
        wait_for_count(page, 1, 2)
        assert errors == []
        first = store.order(ann)[0].item
        assert store.progress("ann").item(first).choices == {"mos": "4", "fitness": "2"}
        assert json.dumps(store.progress("ann").item(first).comment) == json.dumps("5 " + HOSTILE)


def test_takes_are_checked_by_keyboard(browser: Any, tmp_path: Path) -> None:
    config = dataset(tmp_path / "curated", queries=4)
    store, ann = open_check(config, "ann")
    errors: list[str] = []
    with served([store.folder]) as address:
        page = open_page(browser, errors)
        page.goto(f"{address}/annotate/{ann.token}")
        page.wait_for_selector('[data-clip="1"] .plays:has-text("once")')
        assert page.inner_text("#text") == "Words."
        assert page.inner_text("#questions .choices").split("\n") == ["Accept 1", "Reject r"]
        assert findings(page) == []
        for done, key in enumerate("1rr1"):
            wait_for_count(page, done, 5)
            assert page.inner_text("#left") == ("less than a minute left" if done == 3 else "")
            page.keyboard.press(key)
            page.wait_for_selector('[data-clip="1"] .plays:has-text("once")')
            page.keyboard.press("Enter")
        wait_for_count(page, 4, 5)
        # The picked take plays, then the take that is chosen; there is no fourth.
        page.wait_for_selector('[data-clip="2"] .plays:has-text("once")')
        assert page.inner_text('[data-clip="2"] h2').startswith("Take 2, picked")
        page.keyboard.press("4")
        page.keyboard.press("3")
        page.wait_for_selector('[data-clip="3"] .plays:has-text("once")')
        page.keyboard.press("c")
        page.keyboard.type("calmer")
        page.keyboard.press("Escape")
        wait_until_stored(page)
        page.keyboard.press("Enter")
        page.wait_for_selector("#end:not([hidden])")
    assert errors == []
    decided = load_decisions(config.folder)
    assert [(one.accept, one.choice, one.note) for one in decided] == [
        (True, None, ""), (False, None, ""), (False, None, ""), (True, None, ""), (True, 2, "calmer"),
    ]  # fmt: skip


def test_a_person_is_added_and_the_link_works(browser: Any, tmp_path: Path) -> None:
    make(tmp_path, "pair", pair_items(tmp_path, 2))
    errors: list[str] = []
    with served([tmp_path]) as address:
        page = open_page(browser, errors, viewport={"width": 400, "height": 800})
        page.goto(f"{address}/studies")
        assert findings(page) == []
        page.click("main a")
        # Its script runs: else the form would be sent as a link.
        page.wait_for_selector("#results:has-text('no item has two annotators')")
        page.fill("#name", "eve")
        page.keyboard.press("Enter")
        page.wait_for_selector(".links a")
        page.wait_for_selector("#results:has-text('no item has two annotators')")
        assert findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.click(".links a")
        page.wait_for_selector("#item:not([hidden])")
        assert findings(page) == []
        wait_for_count(page, 0, 2)
        assert errors == []
