"""Listening in a real Chromium: loudness, the change of clips at one position, loops, zoom, words, by keyboard, accessible.

Not covered: what comes out of a loudspeaker, and the look of the spectrogram.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio.browser import PATIENCE_MS, findings, opened, served
from studio.test_verdict_files import HOSTILE, LABELS, VERDICT

from paras2s.audio.clip import Clip, write_clip
from paras2s.bench.made_from import MadeFrom, fusion_of, keep_verdict
from paras2s.reward.blueprint.loudness import INTEGRATED, LoudnessExtractor
from paras2s.reward.fusion import find_rule
from paras2s.types import Measured, to_json

# The rate at which the norm gives its filters: at another one the browser resamples.
SECONDS, RATE_HZ = 3.0, 48_000


def speechlike(level: float, seed: int) -> Clip:
    """Noise in bursts, so that the norm's gates have something to leave out."""
    rng = np.random.default_rng(seed)
    samples = level * rng.standard_normal(int(SECONDS * RATE_HZ))
    samples[RATE_HZ : 2 * RATE_HZ] *= 0.01
    return Clip(samples.clip(-1, 1).astype(np.float32), RATE_HZ)


# In the order of the page: the question's picture comes last, since it is played from the page's title.
CLIPS = {"answer 1": speechlike(0.2, 1), "answer 2": speechlike(0.02, 2), "question": speechlike(0.1, 0)}


def loudness(name: str) -> float:
    (fields,) = LoudnessExtractor().measure([CLIPS[name]])
    found = fields[INTEGRATED]
    assert isinstance(found, Measured)
    return float(found.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verdicts")
    given = path.parent / f"{path.name}-given"
    given.mkdir()
    for name, clip in CLIPS.items():
        write_clip(given / f"{name}.wav", clip)
    fusion = (fusion_of("speakbench", find_rule("speakbench"), LABELS),)
    made_from = MadeFrom(words=HOSTILE, prompts=(HOSTILE,), fusion=fusion)
    found = {"verdict": {**to_json(VERDICT), "reply": HOSTILE}, "overall": "2"}
    keep_verdict(path, "pair", found, made_from, {name: given / f"{name}.wav" for name in CLIPS})
    return path


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served([folder]) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened() as browser:
        yield browser


def open_page(browser: Any, address: str, **options: Any) -> tuple[Any, list[str]]:
    page, wrong = browser.new_page(viewport={"width": 1280, "height": 900}, **options), []
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{address}/verdicts")
    page.click("tbody a")
    page.click("tbody a")
    page.locator(".level", has_text="LUFS").nth(2).wait_for()
    return page, wrong


def position(page: Any) -> str:
    return str(page.text_content(".deck .soft"))


def wait_for_position(page: Any, pattern: str) -> None:
    page.locator(".deck .soft", has_text=re.compile(pattern)).wait_for()


def wait_for_buttons(page: Any, *texts: str) -> None:
    """Waits until the clips' buttons have these texts: of those that play it is Stop."""
    for place, text in enumerate(texts):
        page.locator(".sound").nth(place).locator("button", has_text=text).wait_for()


def levels(page: Any) -> list[str]:
    return [text.replace("−", "-") for text in page.locator(".level").all_text_contents()]


def test_clips_are_matched_changed_and_looped_by_keyboard(browser: Any, address: str) -> None:
    page, wrong = open_page(browser, address)
    # All three at the loudness of the quietest; the norm in Python and in the browser must agree.
    measured = [float(text.split()[0]) for text in levels(page)]
    assert measured == pytest.approx([loudness(name) for name in CLIPS], abs=0.1)
    played = [float(text.split(" at ")[1].split()[0]) for text in levels(page)]
    assert played == pytest.approx([min(-30.0, *measured) - one for one in measured], abs=0.11)
    page.keyboard.press("e")
    assert all(text.endswith("as it is") for text in levels(page))
    page.keyboard.press("e")
    # A click on the waveform's middle, then the other answer stands there too.
    wave = page.locator("section[data-answer] .wave").first
    box = wave.bounding_box()
    wave.click(position={"x": box["width"] / 2, "y": 20})
    wait_for_position(page, r"^A answer 1, 1\.")
    page.keyboard.press("[")
    before = position(page).split(",")[1].strip()
    page.keyboard.press("x")
    assert position(page).startswith(f"B answer 2, {before}")
    wave = page.locator("section[data-answer] .wave").nth(1)
    wave.click(position={"x": 0.8 * box["width"], "y": 20})
    wait_for_position(page, r"^B answer 2, 2\.")
    page.keyboard.press("]")
    assert f"loop {before.split()[0]} to 2." in position(page)
    page.keyboard.press("Space")
    wait_for_buttons(page, "Play", "Stop", "Play")
    page.keyboard.press("x")
    wait_for_buttons(page, "Stop", "Play", "Play")
    page.keyboard.press("Space")
    page.keyboard.press("\\")
    assert "loop" not in position(page)
    # The zoomed picture scrolls inside its box.
    page.keyboard.press("+")
    assert page.locator(".wave .scroll").first.evaluate("(one) => one.scrollWidth > one.clientWidth")
    page.locator(".sound select").first.select_option("2000")
    page.locator(".wave").first.locator("canvas").nth(2).wait_for(state="attached")
    assert "owned" not in page.title()
    assert wrong == []
    page.close()


WORDS = '{"duration_s": 3.0, "words": [{"text": "<b>one</b>", "start_s": 0.6, "end_s": 1.2, "p": 0.5}]}'


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_words_stand_in_their_places_on_an_accessible_page(browser: Any, address: str, width: int, scheme: str) -> None:
    page, wrong = open_page(browser, address, bypass_csp=True, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.route("**/api/words?*", lambda route: route.fulfill(body=WORDS, content_type="application/json"))
    page.locator("section[data-answer] button", has_text="Words in their places").first.click()
    line = page.locator("section[data-answer] .wave").first.locator("[data-words='1'] span")
    line.wait_for(state="attached")
    assert line.text_content() == "<b>one</b>"
    assert line.evaluate("(one) => [one.style.left, one.style.width]") == ["20%", "20%"]
    for summary in page.locator(".verdict summary").all():
        if summary.locator("xpath=..").get_attribute("open") is None:
            summary.click()
    assert page.locator(".verdict pre").first.text_content() == HOSTILE
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert wrong == []
    page.close()
