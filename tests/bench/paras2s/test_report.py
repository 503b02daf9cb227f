"""The report page, parsed: what it shows, what it embeds, and that model-written text stays text.

Not covered: how the page looks and whether a browser plays the clips; that was checked by eye.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.answers import answer as made_answer

from paras2s.audio.clip import make_clip, read_clip, write_clip
from paras2s.bench.paras2s.report import write_report
from paras2s.bench.results import AnswerRow
from paras2s.errors import DataError

RATE_HZ = 16_000


class Page(HTMLParser):
    """Tags with attributes, and all text, of a written page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.chunks: list[str] = []
        self.source = path.read_text()
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
    wave = 0.3 * np.sin(2 * np.pi * 220 * np.arange(RATE_HZ // 4) / RATE_HZ)
    for name in ("q.wav", "a.wav"):
        write_clip(tmp_path / "run" / "samples" / name, make_clip(wave, RATE_HZ))
    return tmp_path / "run"


def answer(score: float | None, system: str = "sft", contrast: str = "c1", style: str = "happy", **changes: Any) -> Any:
    unscored = "the clip is silent" if score is None else None
    own = {"system": system, "unscored": unscored, "reason": "words and tone fit", "duration_s": 0.25, "word_error_rate": 0.1}
    return made_answer(score, contrast, style, **own | changes)


def written(run_dir: Path, systems: dict[str, list[AnswerRow]], metrics: Sequence[dict[str, Any]] = (), **changes: Any) -> Page:
    path = run_dir / "report.html"
    given: dict[str, Any] = {"title": "demo", "subtitle": "what it did", "facts": [("seed", "0")], "notes": ["a note"]}
    write_report(path, systems=systems, metrics=list(metrics), run_dir=run_dir, **{**given, **changes})
    return Page(path)


def test_everything_is_escaped_and_nothing_is_loaded(run_dir: Path) -> None:
    script, image = "<script>alert(1)</script>", '"><img src="http://evil.example/x" onerror="alert(2)">'
    hostile = answer(
        4,
        transcript=script,
        text_stream=image,
        reason=image,
        question_text=script,
        tone=image,
        style=image,
        system=image,
        contrast_id=image,
        judge=script,
    )
    silent = answer(None, contrast="c2", unscored=image, answer_clip=f"samples/{script}.wav")
    page = written(
        run_dir,
        {image: [hostile, silent]},
        [{"step": 1, "reward_mean": 2.0}],
        title=script,
        subtitle=image,
        facts=[(script, image)],
        notes=[script],
    )
    assert page.all("img") == []
    assert len(page.all("script")) == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.source
    assert "&#34;&gt;&lt;img src=" in page.source
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    urls = [attributes[key] for _, attributes in page.tags for key in ("src", "href") if key in attributes]
    assert len(urls) == 3
    assert all(url is not None and url.startswith(("data:", "#")) for url in urls)
    assert "url(" not in page.source
    assert "@import" not in page.source


def test_clips_are_embedded_and_decode(run_dir: Path) -> None:
    page = written(run_dir, {"sft": [answer(4)]})
    players = page.all("audio")
    assert len(players) == 2
    for player in players:
        assert player["aria-label"]
        kind, data = str(player["src"]).split(",")
        assert kind == "data:audio/ogg;base64"
        assert read_clip(base64.b64decode(data)).duration_s == pytest.approx(0.25, abs=0.01)


def test_a_fast_clip_is_embedded_at_16_khz(run_dir: Path) -> None:
    write_clip(run_dir / "samples" / "a.wav", make_clip(np.zeros(12_000), 48_000))
    page = written(run_dir, {"sft": [answer(4)]})
    data = str(page.all("audio")[1]["src"]).split(",")[1]
    assert read_clip(base64.b64decode(data)).sample_rate_hz == 16_000


def test_a_missing_or_broken_clip_is_said_so(run_dir: Path) -> None:
    (run_dir / "samples" / "broken.wav").write_bytes(b"not audio")
    rows = [answer(4, answer_clip="samples/gone.wav"), answer(4, style="sad", answer_clip="samples/broken.wav")]
    page = written(run_dir, {"sft": rows})
    assert len(page.all("audio")) == 2
    assert "clip missing: samples/gone.wav" in page.text
    assert "samples/broken.wav: clip of bytes: cannot be decoded as audio" in page.text


@pytest.mark.parametrize("where", ["../outside.wav", "samples/../../outside.wav", "{root}/outside.wav"])
def test_a_clip_outside_the_run_folder_is_refused(run_dir: Path, where: str) -> None:
    outside = where.format(root=run_dir.parent)
    write_clip(run_dir.parent / "outside.wav", make_clip(np.zeros(RATE_HZ), RATE_HZ))
    with pytest.raises(DataError, match="outside the run folder"):
        written(run_dir, {"sft": [answer(4, answer_clip=outside)]})


def test_table_shows_errors_counts_the_best_and_the_gain(run_dir: Path) -> None:
    before = [answer(2, "sft", "c1"), answer(2, "sft", "c2"), answer(None, "sft", "c3")]
    after = [answer(3, "aligned", "c1"), answer(5, "aligned", "c2"), answer(5, "aligned", "c3")]
    page = written(run_dir, {"sft": before, "aligned": after})
    # Gains 1 and 3 on the two questions scored in both: mean 2, error sqrt(2/1 * (1 + 1) / 4) = 1.
    assert "+2.00 ± 1.00 gain of aligned over sft , +100.0%" in page.text
    assert "mean over 2 of 3 questions in 2 contrasts" in page.text
    assert "sft 2.00 ± 0.00 2 of 3" in page.text
    assert "aligned 4.33" in page.text
    best = page.all("td", "best")
    assert len(best) == 2 + 2  # aligned in overall and emotion; equal word errors are best twice
    assert "Scores run from 1 to 5, given by rubric/1" in page.text


def test_the_independent_judge_has_a_column_and_a_gain_of_its_own(run_dir: Path) -> None:
    systems = {"sft": [answer(2), answer(3, style="sad")], "aligned": [answer(4, "aligned"), answer(5, "aligned", style="sad")]}
    second = {"sft": [answer(2), answer(2, style="sad")], "aligned": [answer(3, "aligned"), answer(2, "aligned", style="sad")]}
    page = written(run_dir, systems, independent=second, played=("aligned",))
    assert "+2.00 gain of aligned over sft" in page.text
    assert "+0.50" in page.text
    assert "by the independent judge" in page.text
    assert "independent judge" in page.text.split("system overall")[1].split("emotion")[0]
    # Two questions and the aligned policy's two answers; those of the warm-up are not played.
    assert len(page.all("audio")) == 4
    assert "independent" not in written(run_dir, systems).text


def test_a_share_of_all_has_wilsons_interval_on_the_page(run_dir: Path) -> None:
    """Two contrasts, both told apart: 2 / (2 + z^2) = 0.3424."""
    rows = [answer(5, "sft", contrast, style) for contrast in ("c1", "c2") for style in ("happy", "sad")]
    assert "100.0% (34.2% to 100.0%) 2 of 2 pairs" in written(run_dir, {"sft": rows}).text


def test_no_gain_without_both_systems_and_no_best_of_one(run_dir: Path) -> None:
    page = written(run_dir, {"sft": [answer(4)]})
    assert "gain of" not in page.text
    assert page.all("td", "best") == []


def test_cards_show_score_words_and_why_there_is_no_score(run_dir: Path) -> None:
    rows = [answer(3.5, model_score=3.25), answer(None, style="sad", transcript=None)]
    page = written(run_dir, {"sft": rows, "topline": [answer(5, "topline")]})
    assert [chip["class"] for chip in page.all("span", "chip")] == ["chip chip-4", "chip chip-5", "chip chip-none"]
    assert "Unscored 0.2 s text How lovely. transcript not measured tone cheerful 90% judge the clip is silent" in page.text
    assert "words and tone fit (reward model: 3.25)" in page.text
    assert "topline no answer" in page.text


def test_contrasts_are_capped_in_turn_and_filtered_by_category(run_dir: Path) -> None:
    rows = [answer(4, contrast=f"e{index}") for index in range(3)]
    rows += [answer(4, contrast=f"s{index}", category="sarcasm") for index in range(3)]
    page = written(run_dir, {"sft": rows}, max_contrasts=3)
    assert [card["data-category"] for card in page.all("article")] == ["emotion", "emotion", "sarcasm"]
    assert [button["data-filter"] for button in page.all("button")] == ["", "emotion", "sarcasm"]
    assert "3 of 6 contrasts" in page.text
    assert "sft 4.00 ± 0.00 6 of 6" in page.text


def test_panels_are_drawn_for_what_was_measured_only(run_dir: Path) -> None:
    metrics: list[dict[str, Any]] = [
        {"step": 1, "reward_mean": 2.0, "reward_std": 0.5, "kl_text": 0.0},
        {"step": 2, "kl_text": None},
        {"step": 3, "reward_mean": 3.0, "reward_std": 0.5, "kl_text": float("nan")},
    ]
    page = written(run_dir, {"sft": [answer(4)]}, metrics)
    labels = [str(svg["aria-label"]) for svg in page.all("svg")]
    assert labels == ["Reward by step. reward 2 → 3", "KL to the reference policy by step. text 0 → 0"]
    assert "Parity" not in page.text
    assert len(written(run_dir, {"sft": [answer(4)]}).all("svg")) == 0
