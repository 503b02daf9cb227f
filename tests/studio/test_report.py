"""The report of a run, in the studio and as one file: what it shows, what it embeds, and that model-written text stays text.

Not covered: another browser than Chromium.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from studio.browser import opened, serious_findings
from tiny.answers import answer as made_answer
from tiny.world import invoke

from paras2s.audio.clip import make_clip, read_clip, write_clip
from paras2s.bench.results import AnswerRow, save_rows
from paras2s.configs.schema.base import dump_config
from paras2s.configs.schema.run import RunConfig
from paras2s.errors import ConfigError, DataError
from paras2s.studio import report
from paras2s.studio.app import make_app
from paras2s.utils.io import write_json, write_jsonl, write_text

RATE_HZ = 16_000
SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img src="http://evil.example/x" onerror="alert(2)">'


class Page(HTMLParser):
    """Tags with attributes, and all text, of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.chunks: list[str] = []
        self.source = source
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.chunks.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.chunks).split())

    def all(self, tag: str, css_class: str = "") -> list[dict[str, str | None]]:
        found = [attributes for name, attributes in self.tags if name == tag]
        return [one for one in found if not css_class or css_class in (one.get("class") or "").split()]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    wave = 0.3 * np.sin(2 * np.pi * 220 * np.arange(RATE_HZ // 4) / RATE_HZ)
    for name in ("q.wav", "a.wav"):
        write_clip(folder / "samples" / name, make_clip(wave, RATE_HZ))
    config = RunConfig.model_validate({"name": "quick", "run_dir": str(folder)})
    write_text(folder / "config.resolved.yaml", dump_config(config))
    return folder


def answer(score: float | None, system: str = "sft", contrast: str = "c1", style: str = "happy", **changes: Any) -> Any:
    unscored = "the clip is silent" if score is None else None
    own = {"system": system, "unscored": unscored, "reason": "words and tone fit", "duration_s": 0.25, "word_error_rate": 0.1}
    return made_answer(score, contrast, style, **own | changes)


def write_run(
    run_dir: Path,
    systems: Mapping[str, Sequence[AnswerRow]],
    metrics: Sequence[dict[str, Any]] = (),
    independent: Mapping[str, Sequence[AnswerRow]] | None = None,
    **remarks: Any,
) -> None:
    """A finished run's files; a system is named by its file."""
    for below, rows in (("bench", systems), ("bench/independent", independent or {})):
        for name, answers in rows.items():
            save_rows(run_dir / below / f"{name}.jsonl", list(answers))
    write_jsonl(run_dir / "metrics.jsonl", metrics)
    facts = {"subtitle": "what it did", "facts": [["seed", "0"]], "notes": ["a note"], "systems": list(systems)}
    write_json(run_dir / "report.json", facts | remarks)


def served(run_dir: Path) -> Page:
    reply = TestClient(make_app([run_dir]), base_url="http://127.0.0.1:8017").get("/report?run=0")
    assert reply.status_code == 200, reply.text
    return Page(reply.text)


def written(run_dir: Path, systems: Mapping[str, Sequence[AnswerRow]], **more: Any) -> Page:
    write_run(run_dir, systems, **more)
    return served(run_dir)


def exported(run_dir: Path) -> Page:
    out = run_dir.parent / "mail.html"
    invoke("studio", run_dir, "--export", out)
    return Page(out.read_text())


def clips_of(page: Page) -> list[str]:
    return [str(button["data-clip"]) for button in page.all("button", "play")]


def files_of(page: Page) -> dict[str, Any]:
    """The files that the report holds, by the name of their address."""
    found = re.search(r'files: JSON\.parse\(("(?:[^"\\]|\\.)*")\)', page.source)
    assert found is not None
    return dict(json.loads(json.loads(found[1])))


def test_everything_is_escaped_and_nothing_is_loaded(run_dir: Path) -> None:
    hostile = answer(
        4, transcript=SCRIPT, text_stream=IMAGE, reason=IMAGE, question_text=SCRIPT, tone=IMAGE, style=IMAGE, system=IMAGE,
        contrast_id=IMAGE, judge=SCRIPT,
    )  # fmt: skip
    silent = answer(None, contrast="c2", unscored=IMAGE, answer_clip=f"samples/{SCRIPT}.wav")
    remarks = {"subtitle": IMAGE, "facts": [[SCRIPT, IMAGE]], "notes": [SCRIPT, "</script>"]}
    write_run(run_dir, {"<b>&x": [hostile, silent]}, [{"step": 1, "reward_mean": 2.0}], **remarks)
    for page in (served(run_dir), exported(run_dir)):
        assert page.all("img") == []
        assert page.all("b") == []
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.source
        assert "&#34;&gt;&lt;img src=" in page.source
        assert SCRIPT not in page.source
        assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert "<b>&x" in page.chunks


def test_one_file_refers_to_nothing_outside_itself(run_dir: Path) -> None:
    write_run(run_dir, {"sft": [answer(4)]}, [{"step": 1, "reward_mean": 2.0}])
    page = exported(run_dir)
    urls = [attributes[key] for _, attributes in page.tags for key in ("src", "href") if key in attributes]
    assert urls == ["#main"]
    assert page.all("link") == []
    assert "url(" not in page.source
    assert "@import" not in page.source
    (policy,) = [one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert not re.search("'self'|file:|http|'unsafe", policy)
    # Scripts, styles and data are in it, and the place of the run on this machine is not.
    files = files_of(page)
    assert '["/api/metrics",["run","0"]]' in files
    assert "reward_mean" in page.source
    assert str(run_dir) not in page.source
    assert [script.get("type") for script in page.all("script")] == ["text/plain"] * 3 + [None]


def test_clips_are_embedded_and_decode(run_dir: Path) -> None:
    write_run(run_dir, {"sft": [answer(4)]})
    page = exported(run_dir)
    assert len(clips_of(page)) == 2
    assert all(button["aria-label"] for button in page.all("button", "play"))
    sounds = [value for name, value in files_of(page).items() if name.startswith('["/clip"')]
    assert len(sounds) == 2
    for sound in sounds:
        kind, data = sound.split(",")
        assert kind in ("data:audio/ogg;base64", "data:audio/flac;base64")
        assert read_clip(base64.b64decode(data)).duration_s == pytest.approx(0.25, abs=0.02)


def test_a_missing_or_broken_clip_is_said_so(run_dir: Path) -> None:
    (run_dir / "samples" / "broken.wav").write_bytes(b"not audio")
    rows = [answer(4, answer_clip="samples/gone.wav"), answer(4, style="sad", answer_clip="samples/broken.wav")]
    page = written(run_dir, {"sft": rows})
    # Both questions play; the broken answer has a button that says so in a browser.
    assert len(clips_of(page)) == 3
    assert "clip missing: samples/gone.wav" in page.text
    assert len(clips_of(exported(run_dir))) == 3


@pytest.mark.parametrize("where", ["../outside.wav", "samples/../../outside.wav", "{root}/outside.wav"])
def test_a_clip_outside_the_run_folder_is_not_played(run_dir: Path, where: str) -> None:
    outside = where.format(root=run_dir.parent)
    write_clip(run_dir.parent / "outside.wav", make_clip(np.zeros(RATE_HZ), RATE_HZ))
    write_run(run_dir, {"sft": [answer(4, answer_clip=outside)]})
    for page in (served(run_dir), exported(run_dir)):
        assert len(clips_of(page)) == 1
        assert "outside the folders" in page.text


def test_what_the_pipeline_says_stands_on_the_page(run_dir: Path) -> None:
    page = written(run_dir, {"sft": [answer(4)]}, notes=["one note", "another"])
    assert "what it did seed 0 one note another" in page.text


def test_a_run_without_answers_has_no_report_and_one_file_holds_one_run(run_dir: Path) -> None:
    with pytest.raises(DataError, match="it was not benched"):
        exported(run_dir)
    write_text(run_dir.parent / "other/config.resolved.yaml", (run_dir / "config.resolved.yaml").read_text())
    with pytest.raises(ConfigError, match="one file holds one run; name it with --run: "):
        invoke("studio", run_dir.parent, "--export", run_dir.parent / "mail.html")
    with pytest.raises(ConfigError, match="one file holds the report alone"):
        invoke("studio", run_dir, "--export", run_dir.parent / "mail.html", "--dry-run")


def test_what_cannot_be_read_is_said_beside_what_can(run_dir: Path) -> None:
    write_run(run_dir, {"sft": [answer(4)]}, facts="none", notes=7, played=[3])
    write_text(run_dir / "bench/broken.jsonl", "{}\n")
    page = served(run_dir)
    assert "broken.jsonl:1" in page.text
    assert "sft 4.00" in page.text
    write_text(run_dir / "report.json", "[")
    assert "report.json: " in served(run_dir).text


def test_table_shows_errors_counts_the_best_and_first_whether_reinforcement_helped(run_dir: Path) -> None:
    before = [answer(2, "sft", "c1"), answer(2, "sft", "c2"), answer(None, "sft", "c3")]
    after = [answer(3, "aligned", "c1"), answer(5, "aligned", "c2"), answer(5, "aligned", "c3")]
    page = written(run_dir, {"sft": before, "aligned": after})
    # Gains 1 and 3 on the two questions scored in both: mean 2, error sqrt(2/1 * (1 + 1) / 4) = 1, Student's t 12.71.
    verdict = "No difference shown: these questions cannot tell the aligned policy from its SFT warm-up."
    line = "by the rubric judge: +2.00 (95 % interval -10.71 to +14.71; 2 questions of 2 contrasts)"
    assert f"{verdict} {line} A difference of this size would show over about 81 contrasts" in page.text
    assert page.text.index(verdict) < page.text.index("Step of GRPO")
    assert "sft 2.00 ± 0.00 2 of 3" in page.text
    assert "aligned 4.33" in page.text
    best = page.all("td", "best")
    assert len(best) == 2 + 2  # aligned in overall and emotion; equal word errors are best twice
    assert "Scores run from 1 to 5, given by rubric/1" in page.text


def test_the_independent_judge_has_a_column_and_a_gain_of_its_own(run_dir: Path) -> None:
    systems = {"sft": [answer(2), answer(3, style="sad")], "aligned": [answer(4, "aligned"), answer(5, "aligned", style="sad")]}
    second = {"sft": [answer(2), answer(2, style="sad")], "aligned": [answer(3, "aligned"), answer(2, "aligned", style="sad")]}
    page = written(run_dir, systems, independent=second, played=["aligned"])
    assert (
        "Whether reinforcement helped was not measured. by the rubric judge: +2.00 (no interval; 2 questions of 1" in page.text
    )
    assert "by the independent judge: +0.50 (no interval; 2 questions of 1" in page.text
    assert "independent judge" in page.text.split("system overall")[1].split("emotion")[0]
    # Two questions and the aligned policy's two answers; those of the warm-up are not played.
    assert len(clips_of(page)) == 4


def test_a_share_of_all_has_wilsons_interval_on_the_page(run_dir: Path) -> None:
    """Two contrasts, both told apart: 2 / (2 + z^2) = 0.3424."""
    rows = [answer(5, "sft", contrast, style) for contrast in ("c1", "c2") for style in ("happy", "sad")]
    assert "100.0% (34.2% to 100.0%) 2 of 2 pairs" in written(run_dir, {"sft": rows}).text


def test_no_gain_without_both_systems_and_no_best_of_one(run_dir: Path) -> None:
    page = written(run_dir, {"sft": [answer(4)]})
    assert page.all("div", "gain") == []
    assert page.all("td", "best") == []


def test_cards_show_score_words_and_why_there_is_no_score(run_dir: Path) -> None:
    rows = [answer(3.5, model_score=3.25), answer(None, style="sad", transcript=None)]
    page = written(run_dir, {"sft": rows, "topline": [answer(5, "topline")]})
    assert [chip["class"] for chip in page.all("span", "chip") if "chip-" in str(chip["class"])] == [
        "chip chip-4", "chip chip-5", "chip chip-none"
    ]  # fmt: skip
    assert "Unscored ▶ 0.2 s text How lovely. transcript not measured tone cheerful 90% judge the clip is silent" in page.text
    assert "words and tone fit (reward model: 3.25)" in page.text
    assert "topline no answer" in page.text


def test_contrasts_are_capped_in_turn_and_filtered_by_category(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [answer(4, contrast=f"e{index}") for index in range(3)]
    rows += [answer(4, contrast=f"s{index}", category="sarcasm") for index in range(3)]
    chosen = report.choose_contrasts(rows, 3)
    monkeypatch.setattr(report, "choose_contrasts", lambda rows: chosen)
    page = written(run_dir, {"sft": rows})
    assert [card["data-category"] for card in page.all("article")] == ["emotion", "emotion", "sarcasm"]
    assert [button["data-filter"] for button in page.all("button") if "data-filter" in button] == ["", "emotion", "sarcasm"]
    assert "3 of 6 contrasts" in page.text
    assert "sft 4.00 ± 0.00 6 of 6" in page.text


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_one_file_in_a_browser(run_dir: Path, width: int, scheme: str) -> None:
    rows = [answer(4), answer(None, style="sad"), answer(5, contrast="c2", category="sarcasm")]
    write_run(run_dir, {"sft": rows}, [{"step": step, "reward_mean": 2.0 + step, "kl_text": 0.1} for step in range(4)])
    exported(run_dir)
    out = (run_dir.parent / "mail.html").rename(run_dir.parent / "alone.html")
    with opened() as browser:
        # axe-core sets inline styles of its own to measure contrast.
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
        errors: list[str] = []
        loaded: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: loaded.append(request.url))
        page.goto(out.as_uri())
        page.wait_for_selector("#plots canvas")
        assert page.locator("#plots h3").all_inner_texts()[0] == "Reward"
        page.locator(".card .play").first.click()
        page.wait_for_selector(".play[aria-pressed=true]")
        page.wait_for_selector(".play[aria-pressed=true]", state="detached")
        page.click("button:text-is('sarcasm')")
        assert page.locator(".card:visible").count() == 1
        assert serious_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert errors == []
        assert {url.partition(":")[0] for url in loaded} <= {"file", "blob", "data"}
        assert [url for url in loaded if url.startswith("file")] == [out.as_uri()]
