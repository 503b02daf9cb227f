"""The verdicts of a benched run: tables, two answers side by side, missing and hostile parts, and the page in Chromium.

Not covered: whether the contours are right (tests/reward/test_blueprint.py), and the look of the spectrogram.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from studio.browser import PATIENCE_MS, findings, opened, served
from tiny.studies import bench_row, bench_run, tone

from paras2s.run import RESOLVED
from paras2s.studio.answers import read_bench
from paras2s.studio.app import make_app

HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\">"
ONE = {"run": "0", "query": "q1", "n": "0"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / RESOLVED).write_text("name: x\n")
    return bench_run(tmp_path)


@pytest.fixture
def client(run: Path) -> TestClient:
    return TestClient(make_app([run]), base_url="http://127.0.0.1:8017")


def test_rows_stand_by_question_system_and_judge(run: Path) -> None:
    found = read_bench(run)
    assert list(found.rows) == [("q1", 0), ("q1", 1), ("q2", 0)]
    assert [row.judge for row in found.rows["q1", 0]["a"]] == ["rubric/1/x", "other/1/y"]
    assert found.systems == ["a", "b"]


def test_a_link_out_of_the_run_is_not_followed(run: Path, client: TestClient, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    bench_run(outside)
    for path in (run / "bench").glob("*.jsonl"):
        path.unlink()
        path.symlink_to(outside / "bench" / path.name)
    found = read_bench(run)
    assert all("a link that leaves the run" in problem for problem in found.problems)
    assert found.problems
    rollouts = run / "rollouts"
    rollouts.mkdir()
    (rollouts / "step_000000.parquet").symlink_to(outside / "x.parquet")
    answer = client.get("/api/rollouts/step?run=0&step=0")
    assert (answer.status_code, "a link" in answer.text) == (403, True)


def scores(client: TestClient, question: int, answer: int) -> list[float | None]:
    found = client.get("/api/answers?run=0").json()["questions"][question]["answers"][answer]
    return [None if one is None else one["score"] for one in found["verdicts"]]


def test_the_answers_and_a_question(client: TestClient) -> None:
    assert [scores(client, *at) for at in ((0, 0), (0, 1), (0, 2), (1, 1))] == [
        [5.0, 3.0],
        [2.0, None],
        [1.0, None],
        [None, None],
    ]
    page = client.get("/verdict", params={**ONE, "system": ["b", "a"]}).text
    assert page.index("<h2>b</h2>") < page.index("<h2>a</h2>")
    assert "other/1/y" in page
    why = client.get("/verdict", params={**ONE, "query": "q2"}).text
    assert "no words" in why
    # The same system twice is one answer, and one that gave none is passed over.
    assert client.get("/verdict", params={**ONE, "n": "1", "system": ["b", "a", "a"]}).text.count("<article") == 1


@pytest.mark.parametrize("change", [{"query": "q9"}, {"n": "7"}, {"n": "-1"}, {"run": "9"}, {"run": "0/.."}])
def test_questions_that_are_not_there(client: TestClient, change: dict[str, str]) -> None:
    page = client.get("/verdict", params={**ONE, **change})
    assert page.status_code in (403, 404)
    assert 'role="alert"' in page.text


def test_a_verdict_leads_to_the_pages_of_its_run(client: TestClient) -> None:
    """As every page of a run does: the same tabs, of which one is the page's own."""
    tabs = ["/run?run=0", "/answers?run=0", "/curves?run=0", "/rollouts?run=0", "/timeline?run=0"]
    places = [*tabs, "/report?run=0", "/verdict?run=0&query=q1&n=0", "/verdict?run=0&file=bench/a.jsonl&row=0"]
    own = ["/run", "/answers", "/curves", "/rollouts", "/timeline", "/run", "/answers", "/answers"]
    for place, current in zip(places, own, strict=True):
        text = client.get(place).text
        shown = text[text.index('<nav class="tabs"') : text.index("</nav>", text.index('<nav class="tabs"'))]
        assert re.findall(r'href="([^"]+)"', shown) == tabs, place
        assert re.findall(r'href="([^"?]+)[^"]*" aria-current="page"', shown) == [current], place


def test_a_broken_file_stands_beside_the_others(client: TestClient, run: Path) -> None:
    (run / "bench" / "c.jsonl").write_text('{"system": 3}\n{"\n{}\n')
    assert "c.jsonl" in client.get("/answers?run=0").text
    assert scores(client, 0, 0) == [5.0, 3.0]


def test_a_run_without_a_bench_says_so(tmp_path: Path) -> None:
    client = TestClient(make_app([tmp_path]), base_url="http://127.0.0.1:8017")
    assert "was not benched" in client.get("/run?run=0").text
    assert client.get("/api/answers?run=0").json()["questions"] == []


def test_measurements_have_units_or_a_reason(client: TestClient, run: Path) -> None:
    pytest.importorskip("swift_f0")
    tone(run / "long.wav", 220, duration_s=1.0)
    found = client.get("/api/measured?run=0&name=long.wav").json()
    assert found["duration_s"] == 1.0
    fields = {field["name"]: field for field in found["fields"]}
    assert fields["pitch_mean_hz"]["value"] == pytest.approx(220, rel=0.02)
    assert fields["pitch_mean_hz"]["unit"] == "Hz"
    # A sine of amplitude 0.1 at 220 Hz; a clip under 0.4 s has no loudness.
    assert fields["loudness_integrated_lufs"]["unit"] == "LUFS"
    short = {field["name"]: field for field in client.get("/api/measured?run=0&name=q1.wav").json()["fields"]}
    assert "shorter than" in short["loudness_integrated_lufs"]["absent"]


@pytest.mark.parametrize("name", ["gone.wav", "../x.wav", RESOLVED, "bench"])
def test_what_cannot_be_measured(client: TestClient, name: str) -> None:
    assert client.get("/api/measured", params={"run": "0", "name": name}).status_code in (403, 404)


def test_a_damaged_clip_is_named(client: TestClient, run: Path) -> None:
    (run / "bad.wav").write_bytes(b"RIFF nothing")
    found = client.get("/api/measured?run=0&name=bad.wav")
    assert found.status_code == 422
    assert "bad.wav" in found.json()["error"]


def test_the_page_in_a_browser_with_a_missing_clip_and_hostile_words(run: Path) -> None:
    row = {**bench_row("a", "q1", 0, 5.0), "question_text": HOSTILE, "reason": HOSTILE, "transcript": HOSTILE}
    (run / "bench" / "a.jsonl").write_text(json.dumps(row) + "\n")
    (run / str(row["answer_clip"])).unlink()
    with opened() as browser, served([run]) as address:
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.set_default_timeout(PATIENCE_MS)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{address}/answers?run=0")
        page.wait_for_selector(".question-box")
        assert findings(page) == []
        page.click(".question-box li a")
        # The other system's sound is drawn, the missing one has its reason in place.
        page.wait_for_selector("section[aria-label='Answer of a'] .notice:has-text('missing')")
        page.wait_for_selector("section[data-clip^='b-'] .wave > div")
        assert page.locator("article.verdict p").first.inner_text() == HOSTILE
        assert "hacked" not in page.title()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert findings(page) == []
        assert wrong == []
