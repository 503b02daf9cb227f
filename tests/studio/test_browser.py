"""The studio in a real Chromium: lists, compares, follows a run, filters and plays, by keyboard, at 390 px, dark, accessible.

Not covered: another browser, and what comes out of a loudspeaker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studio.browser import PATIENCE_MS, findings, opened, served
from studio.talking import JUDGE, make_talking_run
from studio.world import GROUP, HOSTILE, QUERIES, make_run, metrics_row, rewards_of, rollout, tone
from tiny.studies import make, pair_items

from paras2s.audio.clip import encode_clip
from paras2s.bench.results import load_rows, save_rows
from paras2s.rollout.store import FOLDER, write_step
from paras2s.studio.talk.conversation import TalkQuestion
from paras2s.studio.talk.page import export_talk, make_talking_app
from paras2s.studio.talk.setup import open_conversation
from paras2s.train.advantages import advantages_of
from paras2s.utils.io import append_jsonl, write_jsonl

# A clip plays for half a second, which a busy machine may not see: what has played is noted on the page.
NOTE_PLAYING = """() => new MutationObserver(() => {
  if (document.querySelector(".play[aria-pressed=true]")) document.body.dataset.played = "yes";
}).observe(document.body, { subtree: true, attributes: true, attributeFilter: ["aria-pressed"] })"""
VERDICT = "/verdict?run=0/one&query=t0&n=0"
PAGES = (
    "/", "/run?run=0/one", "/answers?run=0/one&system=all", "/curves?run=0/one", "/rollouts?run=0/one&step=2",
    "/timeline?run=0/one", VERDICT, "/report?run=0/one", "/compare?run=0/one&run=0/two", "/verdicts", "/leaderboard",
    "/studies", "/study/0/study",
)  # fmt: skip
# As where the browser gives no microphone: on a page that is neither of https nor of this machine.
NO_MICROPHONE = "Object.defineProperty(window, 'isSecureContext', { value: false })"
# Answers that a page with all of a large step would draw.
MANY = 5000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    one = make_run(folder / "one")
    make_run(folder / "two", score=3.0, seed=7)
    benched = load_rows(one / "bench/aligned.jsonl")
    for system, scores in {"sft": (2.0, 5.0, None, 3.0), "topline": (5.0, 5.0, 5.0, 5.0)}.items():
        rows = [
            replace(row, system=system, score=score, unscored=None if score else HOSTILE, fitting=(score or 0) >= 4)
            for row, score in zip(benched, scores, strict=True)
        ]
        save_rows(one / f"bench/{system}.jsonl", rows)
    odd = [replace(row, model_score=1.5 if row.query_id == "t2" else row.score) for row in benched]
    save_rows(one / "bench/aligned.jsonl", odd)
    make(folder, "pair", pair_items(folder, 2), "ann")
    live = make_run(folder / "live", steps=20)
    for name in ("bench/summary.json", "aligned/trainer.json"):
        (live / name).unlink()
    write_jsonl(live / "metrics.jsonl", [metrics_row(step) for step in range(3)])
    many = [rollout(QUERIES[0], 0)] * (MANY // GROUP + 1)
    rewards = [rewards_of(0)[1]] * len(many)
    write_step(make_run(folder / "many", steps=1) / FOLDER, 1, many, rewards, advantages_of(rewards, "none").groups)
    # The order of the list, whatever the clock's resolution.
    for age_s, name in enumerate(("one", "two", "live", "many")):
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
    page.goto("/curves?run=0/live")
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


def test_a_curve_leads_to_the_rollouts_of_a_step_by_mouse_and_by_keyboard(page: Any) -> None:
    page.goto("/curves?run=0/one")
    page.wait_for_selector("#run[data-read]")
    # What never moves is folded away.
    assert page.locator("#quiet summary").text_content().startswith("Without signal: ")
    assert page.locator("#quiet .panel h3", has_text="Gradient norm").count() == 1
    curve = page.locator("#plots .plot").first
    box = curve.bounding_box()
    # The plot begins right of the labels of its axis; step 1 is at a third of four steps.
    curve.click(position={"x": 52 + (box["width"] - 52) / 3, "y": 60})
    page.wait_for_selector("#rollouts[data-step='1']")
    page.go_back()
    page.wait_for_selector("#run[data-read]")
    curve.focus()
    for key in ("ArrowLeft", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#rollouts[data-step='2']")


def shown_questions(page: Any) -> list[str]:
    return [
        str(change)
        for change in page.locator(".question-box .change").evaluate_all("all => all.map((one) => one.firstChild.data)")
    ]


def test_answers_are_sorted_by_change_filtered_and_all_of_it_is_in_the_address(page: Any) -> None:
    page.goto("/answers?run=0/one")
    page.wait_for_selector("#answers[data-shown='4']")
    # 4.5 less 5, 4.5 less 3, 4 less 2; one has no score of the warm-up.
    assert shown_questions(page) == ["-0.50", "+1.50", "+2.00"]
    first = page.locator(".question-box").first
    assert first.locator(".who").all_text_contents() == ["sft", "aligned"]
    assert first.locator("header .chip").all_text_contents() == ["age", "child"]
    page.select_option("[name=sort]", "best")
    page.select_option("[name=system]", "all")
    assert shown_questions(page) == ["+2.00", "+1.50", "-0.50"]
    assert page.locator(".question-box").first.locator(".who").all_text_contents() == ["sft", "aligned", "topline"]
    page.select_option("[name=gap]", "reward")
    assert page.locator(".contradicts").text_content() == "reward model 1.50"
    page.fill("[name=find]", "question")
    page.wait_for_url("**/answers?run=0%2Fone&sort=best&system=all&gap=reward&find=question")
    page.reload()
    page.wait_for_selector("#answers[data-shown='0']", state="attached")
    page.fill("[name=find]", "")
    page.wait_for_selector("#answers[data-shown='1']")
    page.evaluate(NOTE_PLAYING)
    page.locator("li .play").first.click()
    page.wait_for_selector("body[data-played]")
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/verdict?**")
    # The words and the scores stand above every picture of sound.
    page.locator(".wave canvas").nth(1).wait_for(state="attached")
    words, wave = page.locator("section[data-answer] article").first.bounding_box(), page.locator(".wave").first.bounding_box()
    assert words["y"] + words["height"] <= wave["y"]
    assert page.locator("nav.tabs [aria-current]").text_content() == "Answers"


def test_a_study_is_made_and_labels_are_kept(page: Any, runs: Path) -> None:
    page.goto("/studies")
    page.select_option("[name=run]", "0/one")
    page.fill("[name=people]", "ann, bo")
    page.fill("[name=name]", "my study")
    page.click("text=Make the study")
    page.wait_for_url("**/study/0/my%20study")
    links = page.locator("table.links a").all_text_contents()
    assert [link.partition("/annotate/")[0] for link in links] == [page.url.partition("/study/")[0]] * 2
    page.goto("/run?run=0/two")
    page.locator("details.labels summary").click()
    page.fill("#labels [name=tags]", "tried, twice")
    page.fill("#labels [name=notes]", HOSTILE)
    page.click("text=Save")
    page.locator(".notes-kept", has_text="& co").wait_for()
    assert page.locator("details.labels .chip").all_text_contents() == ["tried", "twice"]


def test_five_thousand_rollouts_are_sent_in_few_bytes_and_drawn_a_screen_at_a_time(page: Any) -> None:
    """What bounds the wait is counted; a clock counts the rest of the machine too (seconds: benchmarks/studio.py)."""
    answers: list[Any] = []
    page.on("response", lambda answer: answers.append(answer))  # Playwright marks its handlers, and no builtin.
    page.goto("/rollouts?run=0/many&step=1")
    page.wait_for_selector("#rollouts[data-step='1']")
    steps = [answer for answer in answers if "/api/rollouts/step" in answer.url]
    assert len(steps) == 1
    # Words and scores, 290 bytes a rollout: neither its tokens nor its sound.
    assert len(steps[0].body()) < 400 * MANY
    assert page.get_attribute("#rollouts", "data-shown") == str(MANY // GROUP + 1)
    drawn = page.locator("#groups article").count()
    assert 0 < drawn <= 40
    page.locator("button.more").scroll_into_view_if_needed()
    page.locator("#groups article").nth(drawn).wait_for()
    page.select_option("#filter", "flat")
    assert page.get_attribute("#rollouts", "data-shown") == "0"
    page.wait_for_url("**&step=1&filter=flat")


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


def test_advantages_have_one_scale_a_step_grey_below_the_judges_noise(page: Any) -> None:
    page.goto("/rollouts?run=0/one")
    page.wait_for_selector("#rollouts[data-step='3']")
    bars = page.locator("tr.answer .track i").evaluate_all("all => all.map((one) => [one.className, one.style.width])")
    # q0 has no spread, q1 is 1 around its mean and q2 is 2: the widest fills its side, and 0 is grey.
    grey, half, full = "above noise", "25%", "50%"
    assert bars == [[grey, "0%"]] * 3 + [["below", half], [grey, "0%"], ["above", half], ["below", full], ["above", full]]
    assert page.locator(".advantage").all_text_contents() == ["0.00", "0.00", "0.00", "-1.00", "0.00", "1.00", "-2.00", "2.00"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_are_accessible_and_fit(examined_page: Any, width: int, scheme: str) -> None:
    page = examined_page
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    places = list(PAGES)
    for place in places:
        page.goto(place)
        page.wait_for_load_state("networkidle")
        if place.startswith("/rollouts"):
            page.wait_for_selector("tr.answer")
            page.keyboard.press("j")
            page.keyboard.press("Enter")
            page.wait_for_selector(".detail .token")
        if place.startswith("/run?"):
            page.locator("details.labels summary").click()
        if place.startswith("/study/"):
            # The page of a person who takes part is behind a link alone.
            places.append(str(page.locator("table.links a").first.get_attribute("href")))
        assert findings(page) == [], place
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


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = make_talking_run(tmp_path_factory.mktemp("talk") / "my run", "sft", "aligned")
    opened = open_conversation(run, None, [JUDGE], None, None)
    opened[0].ask(TalkQuestion(tone(), "child", HOSTILE))
    return opened


@pytest.fixture(scope="module")
def talk_address(talk: Any) -> Iterator[str]:
    conversation, world, folder = talk
    with served([], make_talking_app(folder, conversation, world)) as address:
        yield address


def test_two_checkpoints_answer_microphone_and_file_and_get_a_vote(browser: Any, talk: Any, talk_address: str) -> None:
    with watched(browser, talk_address) as page:
        page.goto("/talk")
        page.select_option("#style", "child")
        page.locator("h1").click()
        page.keyboard.press("m")
        # The device beeps now and then.
        page.locator("#status", has_text="Recording: 2 of at most 30 s").wait_for()
        page.keyboard.press("m")
        newest = page.locator("#asked-1")
        newest.locator("section").nth(1).wait_for()
        assert newest.locator("section > .bar h3").all_text_contents() == ["Answer A", "Answer B"]
        assert page.evaluate("document.activeElement.id") == "asked-1"
        page.evaluate(NOTE_PLAYING)
        newest.locator("section .play").first.click()
        page.wait_for_selector("body[data-played]")
        newest.get_by_role("button", name="This answer is better").nth(1).click()
        newest.locator("section:nth-child(2) .chip", has_text="preferred").wait_for()
        assert talk[0].history[1].preferred == 1
        sides = [answer.side for answer in talk[0].history[1].answers]
        assert newest.locator("section > .bar h3").all_text_contents() == sides
        page.set_input_files("#file", [{"name": "my q.wav", "mimeType": "audio/wav", "buffer": encode_clip(tone(hz=300))}])
        page.locator("#asked-2 section").nth(1).wait_for()
        page.locator("#asked-2").get_by_role("button", name="Show names").click()
        page.locator("#asked-2 h3", has_text="aligned").wait_for()
        assert not talk[0].history[2].blind


def test_a_recording_that_is_no_question_is_refused_in_words(browser: Any, talk_address: str) -> None:
    # A refusal is an error on the browser's console.
    page = browser.new_page(base_url=talk_address)
    page.goto("/talk")
    page.set_input_files("#file", [{"name": "party.mp4", "mimeType": "video/mp4", "buffer": b"no sound"}])
    page.locator("#status.bad", has_text="party.mp4: cannot be decoded as audio").wait_for(timeout=PATIENCE_MS)
    assert page.is_enabled("#record")
    page.close()


def test_without_a_microphone_the_page_says_so_and_offers_the_rest(browser: Any, talk_address: str) -> None:
    with watched(browser, talk_address) as page:
        page.add_init_script(NO_MICROPHONE)
        page.goto("/talk")
        page.locator("#no-microphone", has_text="Choose a file, or type a question").wait_for()
        assert page.is_disabled("#record")
        assert page.is_enabled("#file")
        page.select_option("#example", index=1)
        assert (page.input_value("#text"), page.input_value("#style")) == (HOSTILE, "child")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_talk_page_and_its_recording_are_accessible_and_fit(
    browser: Any, talk: Any, talk_address: str, tmp_path: Path, scheme: str
) -> None:
    conversation, world, folder = talk
    recorded = tmp_path / "demo.html"
    # This thread has the browser's event loop.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(export_talk, folder, conversation, world, [], recorded, lambda *_: None).result(PATIENCE_MS / 1000)
    for address, place in ((talk_address, "/talk"), (recorded.as_uri(), recorded.as_uri())):
        with watched(browser, address, bypass_csp=True, color_scheme=scheme) as page:
            page.goto(place)
            page.locator("#asked-0 details").last.locator("summary").click()
            for width in (390, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                assert findings(page) == [], (place, width)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (place, width)
