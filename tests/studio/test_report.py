"""Overview, answers and report of a run, in the studio and as one file: figures, embedded sounds, and text that stays text.

Not covered: another browser than Chromium.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from studio.browser import findings, opened
from tiny.answers import answer as made_answer
from tiny.world import invoke

from paras2s.audio.clip import make_clip, read_clip, write_clip
from paras2s.bench.results import AnswerRow, save_rows
from paras2s.configs.schema.base import dump_config
from paras2s.configs.schema.run import RunConfig
from paras2s.errors import ConfigError, DataError
from paras2s.studio.app import make_app
from paras2s.studio.export import one_file
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


def answers_of(run_dir: Path) -> dict[str, Any]:
    """The data of the page of answers."""
    return dict(TestClient(make_app([run_dir]), base_url="http://127.0.0.1:8017").get("/api/answers?run=0").json())


def exported(run_dir: Path) -> Page:
    out = run_dir.parent / "mail.html"
    invoke("studio", run_dir, "--export", out)
    return Page(out.read_text())


def clips_of(page: Page) -> list[str]:
    """The names of the clips that a report in one file holds."""
    return [name for name in files_of(page) if name.startswith('["/clip"')]


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
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.source
        assert "&#34;&gt;&lt;img src=" in page.source
        assert SCRIPT not in page.source
        assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert "<b>&x" in page.chunks
    assert [row["text"] for row in answers_of(run_dir)["questions"][0]["answers"]] == [IMAGE]


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
    assert {'["/api/metrics",["run","0"]]', '["/api/answers",["run","0"]]'} <= set(files)
    assert "reward_mean" in page.source
    assert str(run_dir) not in page.source
    assert [script.get("type") for script in page.all("script")] == ["text/plain"] * 3 + [None]


def test_clips_are_embedded_and_decode(run_dir: Path) -> None:
    write_run(run_dir, {"sft": [answer(4)]})
    page = exported(run_dir)
    sounds = [files_of(page)[name] for name in clips_of(page)]
    assert len(sounds) == 2
    for sound in sounds:
        kind, data = sound.split(",")
        assert kind in ("data:audio/ogg;base64", "data:audio/flac;base64")
        assert read_clip(base64.b64decode(data)).duration_s == pytest.approx(0.25, abs=0.02)


def test_a_missing_or_broken_clip_is_said_so(run_dir: Path) -> None:
    (run_dir / "samples" / "broken.wav").write_bytes(b"not audio")
    rows = [answer(4, answer_clip="samples/gone.wav"), answer(4, style="sad", answer_clip="samples/broken.wav")]
    write_run(run_dir, {"sft": rows})
    first, second = answers_of(run_dir)["questions"]
    # Both questions play; the broken answer has a button that says so in a browser.
    assert all(part["clip"] for part in (first, second, second["answers"][0]))
    assert first["answers"][0]["problem"] == "clip missing: samples/gone.wav"
    assert len(clips_of(exported(run_dir))) == 2


@pytest.mark.parametrize("where", ["../outside.wav", "samples/../../outside.wav", "{root}/outside.wav"])
def test_a_clip_outside_the_run_folder_is_not_played(run_dir: Path, where: str) -> None:
    outside = where.format(root=run_dir.parent)
    write_clip(run_dir.parent / "outside.wav", make_clip(np.zeros(RATE_HZ), RATE_HZ))
    write_run(run_dir, {"sft": [answer(4, answer_clip=outside)]})
    (found,) = answers_of(run_dir)["questions"][0]["answers"]
    assert (found["clip"], "outside the folders" in found["problem"]) == ("", True)
    assert len(clips_of(exported(run_dir))) == 1


def test_what_the_pipeline_says_stands_on_the_page(run_dir: Path) -> None:
    page = written(run_dir, {"sft": [answer(4)]}, notes=["one note", "another"])
    assert "what it did seed 0" in page.text
    assert "one note another" in page.text


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
    assert "Score 4.00" in page.text
    write_text(run_dir / "report.json", "[")
    assert "report.json: " in served(run_dir).text


def test_the_first_screen_says_whether_it_helped_with_the_policies_side_by_side(run_dir: Path) -> None:
    before = [answer(2, "sft", "c1"), answer(2, "sft", "c2"), answer(None, "sft", "c3")]
    after = [answer(3, "aligned", "c1"), answer(5, "aligned", "c2"), answer(5, "aligned", "c3", text_stream="Oh no.")]
    write_run(run_dir, {"sft": before, "aligned": after})
    # Gains 1 and 3 on the two questions scored in both: mean 2, error sqrt(2/1 * (1 + 1) / 4) = 1, Student's t 12.71.
    verdict = "No difference shown: these questions cannot tell the aligned policy from its SFT warm-up."
    line = "by the rubric judge: +2.00 (95 % interval -10.71 to +14.71; 2 questions of 2 contrasts)"
    client = TestClient(make_app([run_dir]), base_url="http://127.0.0.1:8017")
    for page in (Page(client.get("/run?run=0").text), served(run_dir)):
        assert f"{verdict} {line} A difference of this size would show over about 81 contrasts" in page.text
        assert page.text.index(verdict) < page.text.index("Before and after reinforcement")
        assert "sft aligned change Score 2.00 ± 0.00 2 of 3 4.33 ± 0.67 +2.00 -10.71 to +14.71" in page.text
        # Three answers of two texts, and of one.
        assert "Different texts 1 of 3 answers 2 of 3 answers" in page.text


def test_a_change_that_its_interval_shows_is_marked_by_category(run_dir: Path) -> None:
    contrasts = [("emotion", f"e{index}") for index in range(4)] + [("sarcasm", f"s{index}") for index in range(4)]
    before = [answer(3 if kind == "sarcasm" else 4, "sft", name, category=kind) for kind, name in contrasts]
    after = [answer(5 if kind == "sarcasm" else 3, "aligned", name, category=kind) for kind, name in contrasts]
    page = written(run_dir, {"sft": before, "aligned": after})
    assert "emotion 4.00 ± 0.00 3.00 ± 0.00 -1.00 -1.00 to -1.00 sarcasm 3.00 ± 0.00 5.00 ± 0.00 +2.00" in page.text
    # All: the mean of the two changes, which have no error within their categories.
    assert [cell["class"] for cell in page.all("td") if cell["class"] != "r"] == ["r better", "r worse", "r better"]


def test_the_independent_judge_has_a_row_and_a_gain_of_its_own(run_dir: Path) -> None:
    systems = {"sft": [answer(2), answer(3, style="sad")], "aligned": [answer(4, "aligned"), answer(5, "aligned", style="sad")]}
    second = {"sft": [answer(2), answer(2, style="sad")], "aligned": [answer(3, "aligned"), answer(2, "aligned", style="sad")]}
    page = written(run_dir, systems, independent=second, played=["aligned"])
    assert (
        "Whether reinforcement helped was not measured. by the rubric judge: +2.00 (no interval; 2 questions of 1" in page.text
    )
    assert "by the independent judge: +0.50 (no interval; 2 questions of 1" in page.text
    assert "Score, independent judge 2.00 2.50 +0.50" in page.text
    # The aligned policy's two answers and their question; those of the warm-up are not played.
    assert [row["system"] for row in answers_of(run_dir)["questions"][0]["answers"]] == ["sft", "aligned"]
    assert len(clips_of(exported(run_dir))) == 2


def test_baselines_and_ceilings_say_what_they_are_in_groups(run_dir: Path) -> None:
    systems = {
        name: [answer(score, name)] for name, score in (("topline", 5), ("bad", 1), ("flat", 4), ("mine", 3), ("cascade", 2))
    }
    page = written(run_dir, {"aligned": [answer(4, "aligned")], **systems})
    order = ["Baselines", "bad", "knows the style and answers the other one", "cascade", "reads the words", "Ceilings", "flat",
             "spoken neutrally", "topline", "Other systems", "mine"]  # fmt: skip
    places = [
        page.text.index(f" {words} ", page.text.index("What to read the scores against")) for words in order if " " not in words
    ]
    assert places == sorted(places)
    assert all(words in page.text for words in order)


def test_contradictions_of_reward_model_and_judge_are_counted_by_category(run_dir: Path) -> None:
    write_json(
        run_dir / "reward/agreement.json",
        {"held_out": {"n": 44, "pearson": 0.77}, "held_out_by_category": {"emotion": {"n": 24, "pearson": 0.48}}},
    )
    rows = [answer(5, "aligned", "c1", model_score=3.0), answer(5, "aligned", "c2", model_score=3.1)]
    rows += [answer(1, "aligned", "c3", category="sarcasm", model_score=4.8), answer(5, "aligned", "c4", model_score=None)]
    page = written(run_dir, {"aligned": rows, "bad": [answer(1, "bad", model_score=5.0)]})
    table = page.text[page.text.index("correlation contradictions") :]
    assert "emotion 0.48 weak 24 held out 1 of 2 answers sarcasm – 1 of 1 answers all 0.77 44 held out 2 of 3 answers" in table
    links = [str(one["href"]) for one in page.all("a") if "gap=reward" in str(one.get("href"))]
    assert links == [f"/answers?run=0&gap=reward&category={name}" for name in ("emotion", "sarcasm", "")]


def test_a_share_of_all_has_wilsons_interval_on_the_page(run_dir: Path) -> None:
    """Two contrasts, both told apart: 2 / (2 + z^2) = 0.3424."""
    rows = [answer(5, "sft", contrast, style) for contrast in ("c1", "c2") for style in ("happy", "sad")]
    assert "Contrasts told apart 100 % 34 % to 100 %" in written(run_dir, {"sft": rows}).text


def test_no_gain_without_both_systems(run_dir: Path) -> None:
    page = written(run_dir, {"sft": [answer(4)]})
    assert page.all("section", "gain") == []
    assert "sft Score 4.00 Contrasts told apart" in page.text


def test_answers_have_words_both_scores_and_why_there_is_no_score(run_dir: Path) -> None:
    rows = [answer(3.5, model_score=3.25), answer(None, style="sad", transcript=None)]
    write_run(run_dir, {"sft": rows, "topline": [answer(5, "topline")]}, independent={"sft": [answer(2, judge="other/1")]})
    found = answers_of(run_dir)
    assert (found["judges"], found["systems"]) == (["rubric/1", "other/1"], ["sft", "topline"])
    first, second = found["questions"]
    assert (first["style"], first["category"], second["style"]) == ("happy", "emotion", "sad")
    sft, topline = first["answers"]
    assert (sft["verdicts"], sft["model"]) == (
        [{"score": 3.5, "reason": "words and tone fit"}, {"score": 2, "reason": "words and tone fit"}],
        3.25,
    )
    assert topline["verdicts"][1] is None
    (unscored,) = second["answers"]
    assert (unscored["verdicts"][0], unscored["transcript"]) == ({"score": None, "reason": "the clip is silent"}, None)


def test_one_file_has_the_first_contrasts_of_each_category_in_turn(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [answer(4, contrast=f"e{index}", question_clip=f"samples/e{index}.wav") for index in range(3)]
    rows += [answer(4, contrast=f"s{index}", category="sarcasm", question_clip=f"samples/s{index}.wav") for index in range(3)]
    for row in rows:
        shutil.copy(run_dir / "samples/q.wav", run_dir / row.question_clip)
    write_run(run_dir, {"sft": rows})
    monkeypatch.setattr(one_file, "MAX_CONTRASTS", 3)
    names = [json.loads(name)[1][1] for name in clips_of(exported(run_dir))]
    assert sorted(names) == ["samples/a.wav", "samples/e0.wav", "samples/e1.wav", "samples/s0.wav"]
    assert answers_of(run_dir)["contrasts"] == [6, 6]


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
        page.locator(".question-box li .play").first.click()
        page.wait_for_selector(".play[aria-pressed=true]")
        page.wait_for_selector(".play[aria-pressed=true]", state="detached")
        page.select_option("[name=category]", "sarcasm")
        assert page.locator(".question-box").count() == 1
        assert findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert errors == []
        assert {url.partition(":")[0] for url in loaded} <= {"file", "blob", "data"}
        assert [url for url in loaded if url.startswith("file")] == [out.as_uri()]
