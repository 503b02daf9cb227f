"""The studio in a real Chromium: lists, compares, follows a run, filters and plays, by keyboard, at 400 px, dark, accessible.

Not covered: another browser, and what comes out of a loudspeaker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from studio.browser import PATIENCE_MS, opened, serious_findings, served
from studio.world import make_run, metrics_row

from paras2s.utils.io import append_jsonl, write_jsonl

# A clip plays for half a second, which a busy machine may not see: what has played is noted on the page.
NOTE_PLAYING = """() => new MutationObserver(() => {
  if (document.querySelector(".play[aria-pressed=true]")) document.body.dataset.played = "yes";
}).observe(document.body, { subtree: true, attributes: true, attributeFilter: ["aria-pressed"] })"""
PAGES = ("/", "/run?run=0/one", "/compare?run=0/one&run=0/two", "/rollouts?run=0/one&step=2", "/timeline?run=0/one")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "one")
    make_run(folder / "two", score=3.0, seed=7)
    live = make_run(folder / "live", steps=20)
    for name in ("bench/summary.json", "aligned/trainer.json"):
        (live / name).unlink()
    write_jsonl(live / "metrics.jsonl", [metrics_row(step) for step in range(3)])
    # The order of the list, whatever the clock's resolution.
    for age_s, name in enumerate(("one", "two", "live")):
        config = folder / name / "config.resolved.yaml"
        os.utime(config, (time.time() - age_s, time.time() - age_s))
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served([runs]) as address:
        yield address


@contextmanager
def watched(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page of its own, on which nothing may go wrong: no error on the console, no request that leaves the machine."""
    context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 900}, **options)
    context.set_default_timeout(PATIENCE_MS)
    page, wrong = context.new_page(), []
    here = (address, "blob:", "data:")
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: None if request.url.startswith(here) else wrong.append(request.url))
    yield page
    title = page.title()
    context.close()
    assert "owned" not in title
    assert wrong == []


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with watched(browser, address) as page:
        yield page


@pytest.fixture
def examined_page(browser: Any, address: str) -> Iterator[Any]:
    """A page for axe-core, which sets inline styles of its own to measure contrast."""
    with watched(browser, address, bypass_csp=True) as page:
        yield page


def test_runs_are_found_chosen_and_compared_by_keyboard(page: Any) -> None:
    page.goto("/")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.text_content("#chosen") == "2 chosen"
    page.keyboard.press("c")
    page.wait_for_selector("#plots[data-read='4']")
    assert page.text_content("h1") == "Comparison of 2 runs"
    assert page.locator("#plots .panel").count() > 10
    # Two lines over each other in every plot.
    assert page.locator("#plots .panel").first.locator(".legend li").count() == 2
    page.evaluate(NOTE_PLAYING)
    page.locator(".questions .play").first.click()
    page.wait_for_selector("body[data-played]")
    page.go_back()
    page.keyboard.press("/")
    page.keyboard.type("tw")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?find=tw")
    assert page.locator("#runs tbody tr").count() == 1


def test_a_run_is_followed_as_it_goes(page: Any, runs: Path) -> None:
    page.clock.install()
    page.goto("/run?run=0/live")
    page.wait_for_selector("#run[data-state=running][data-read]")
    assert page.text_content("#steps") == "3"
    for step in range(3, 12):
        append_jsonl(runs / "live/metrics.jsonl", metrics_row(step) | {"same_text_share": 0.9})
    page.clock.run_for(4000)
    page.locator("#steps", has_text="12").wait_for()
    page.wait_for_selector("#alerts .notice")
    assert "one answer, step 11" in page.text_content("#alerts")
    assert page.locator(".panel.flagged h3").all_text_contents() == ["Same text"]
    before = page.input_value("#smoothing")
    page.keyboard.press("]")
    assert float(page.input_value("#smoothing")) > float(before)


def test_rollouts_are_sorted_filtered_played_and_opened(page: Any) -> None:
    page.goto("/rollouts?run=0/one")
    page.wait_for_selector("#rollouts[data-step='3']")
    titles = page.locator("#groups .question h2")
    assert titles.all_text_contents() == ["question q0", "question q1", "question q2"]
    page.select_option("#sort", "spread")
    assert titles.all_text_contents() == ["question q2", "question q1", "question q0"]
    page.select_option("#sort", "gain")
    assert titles.first.text_content() == "question q1"
    page.select_option("#filter", "flat")
    assert titles.all_text_contents() == ["question q0"]
    page.select_option("#filter", "unscored")
    assert titles.all_text_contents() == ["question q2"]
    assert "llm: <img src=x" in page.text_content("#groups .problem")
    page.select_option("#filter", "all")
    page.fill("#find", "to q1")
    assert titles.all_text_contents() == ["question q1"]
    page.locator("h1").click()
    page.keyboard.press("j")
    page.evaluate(NOTE_PLAYING)
    page.keyboard.press("Space")
    page.wait_for_selector("body[data-played]")
    page.keyboard.press("l")
    assert page.is_checked("#loop")
    page.keyboard.press("Enter")
    page.wait_for_selector(".detail .token")
    # The waveform's and the spectrogram's.
    page.locator(".wave canvas").nth(1).wait_for(state="attached")
    assert page.locator(".detail .audio-bars i").count() == 6
    # Two open answers stand on the deck, in the order of the page; one that is closed leaves it.
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    choices = page.locator("#deck .choices button")
    choices.nth(1).wait_for()
    assert choices.all_text_contents() == ["group 2, answer 1", "group 2, answer 2"]
    page.keyboard.press("x")
    assert choices.nth(1).get_attribute("aria-pressed") == "true"
    page.locator("tr.answer.at").focus()
    page.keyboard.press("Enter")
    assert choices.all_text_contents() == ["group 2, answer 1"]
    page.locator("tr.answer.at").focus()
    page.keyboard.press("t")
    page.wait_for_selector("#strip .columns li")
    assert page.locator("#strip .columns li").count() == 4
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#rollouts[data-step='2']")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_pages_are_accessible_and_fit(examined_page: Any, width: int, scheme: str) -> None:
    page = examined_page
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    for place in PAGES:
        page.goto(place)
        page.wait_for_load_state("networkidle")
        if place.startswith("/rollouts"):
            page.wait_for_selector("tr.answer")
            page.keyboard.press("j")
            page.keyboard.press("Enter")
            page.wait_for_selector(".detail .token")
        assert serious_findings(page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(15, 20, 26)") == (scheme == "dark")
    page.keyboard.press("d")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background


def test_a_page_that_is_not_there_says_so_and_is_left_by_keyboard(page: Any) -> None:
    page.goto("/")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto("/rollouts?run=0/two&step=1")
    page.wait_for_selector("tr.answer")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/")
