"""The turns before a question, on the pages that show its answers: in order, with their sounds, as text, and in an export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from studio.browser import PATIENCE_MS, findings, opened, served
from studio.world import HOSTILE, make_run, tone

from paras2s.audio.clip import write_clip
from paras2s.studio.answers import sounds_of
from paras2s.studio.app import make_app
from paras2s.studio.export.one_file import export_report

TURNS = [{"speaker": "user", "text": HOSTILE, "clip": "queries/before.wav"}, {"speaker": "assistant", "text": "I am sorry."}]
LOST = [{"speaker": "user", "text": "Who is it?", "clip": "queries/lost.wav"}]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = make_run(tmp_path / "one", steps=1)
    write_clip(folder / "data/queries/before.wav", tone(0.2))
    rows = [{"query_id": "q1", "turns": TURNS}, {"query_id": "t1", "turns": TURNS}, {"query_id": "t2", "turns": LOST}]
    (folder / "data/histories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def client_of(folder: Path) -> TestClient:
    return TestClient(make_app([folder]), base_url="http://127.0.0.1:8017")


def test_a_question_comes_with_the_turns_before_it(run: Path) -> None:
    client = client_of(run)
    shown = {question["query"]: question["before"] for question in client.get("/api/answers?run=0").json()["questions"]}
    assert shown["t0"] == []
    assert [(turn["speaker"], turn["text"], bool(turn["clip"])) for turn in shown["t1"]] == [
        ("user", HOSTILE, True), ("assistant", "I am sorry.", False),
    ]  # fmt: skip
    assert client.get(shown["t1"][0]["clip"]).headers["content-type"] == "audio/wav"
    assert (shown["t2"][0]["clip"], shown["t2"][0]["problem"]) == ("", "clip missing: data/queries/lost.wav")
    groups = client.get("/api/rollouts/step?run=0&step=0").json()["groups"]
    assert {group["question"]["id"]: group["question"]["before"] for group in groups} == {
        "q0": [], "q1": shown["t1"], "q2": [],
    }  # fmt: skip
    # A page in one file embeds the sound as well.
    assert shown["t1"][0]["clip"] in set(sounds_of(client.get("/api/answers?run=0").json()))


def test_turns_that_cannot_be_read_are_told_and_the_answers_are_shown(run: Path) -> None:
    (run / "data/histories.jsonl").write_text('{"query_id": "t1", "turns": [{"speaker": "narrator"}]}\n')
    client = client_of(run)
    assert {question["query"] for question in client.get("/api/answers?run=0").json()["questions"]} == {"t0", "t1", "t2", "t3"}
    # Named as it lies in the run, wherever that is.
    assert "the turns before the questions: data/histories.jsonl:1: turns.0.speaker" in client.get("/answers?run=0").text
    assert client.get("/api/rollouts/step?run=0&step=0").status_code == 200


def test_a_link_to_turns_elsewhere_is_not_followed(run: Path, tmp_path: Path) -> None:
    (run / "data/histories.jsonl").rename(tmp_path / "elsewhere.jsonl")
    (run / "data/histories.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    client = client_of(run)
    assert not any(question["before"] for question in client.get("/api/answers?run=0").json()["questions"])
    assert "the turns before the questions" in client.get("/answers?run=0").text


def test_a_page_in_one_file_has_the_turns_and_their_sounds(run: Path, tmp_path: Path) -> None:
    export_report([run], tmp_path / "mail.html", [])
    page = (tmp_path / "mail.html").read_text()
    # The name of an embedded file; the address that asks for it has %2F.
    assert "data/queries/before.wav" in page
    assert "I am sorry." in page


def test_a_reader_sees_and_plays_the_turns(run: Path) -> None:
    with served([run]) as url, opened() as browser:
        # axe-core sets inline styles of its own to measure contrast.
        page = browser.new_page(viewport={"width": 390, "height": 800}, bypass_csp=True)
        page.set_default_timeout(PATIENCE_MS)
        for address, place in (("answers", ".question-box"), ("rollouts", ".group")):
            page.goto(f"{url}/{address}?run=0")
            turns = page.locator(f"{place} .before").first.locator("li")
            turns.first.wait_for()
            assert [line.split("\n")[0] for line in turns.all_inner_texts()] == ["user", "assistant"]
            assert HOSTILE in turns.first.inner_text()
            turns.first.locator(".play").click()
            page.wait_for_selector(".play[aria-pressed=true]")
            assert findings(page) == []
            assert page.title() != "owned"
