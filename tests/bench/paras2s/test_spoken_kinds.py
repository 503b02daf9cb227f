"""The kind of answers in their text streams and in their sound, by hand.

Not covered: the rubric's own rules (tests/reward/test_rubric.py), and the bench from end to end (tests/integration).
"""

from __future__ import annotations

from typing import Any

import pytest

from paras2s.bench.paras2s.metrics import spoken_kinds
from paras2s.bench.results import AnswerRow
from paras2s.data_gen.scripted.scripts import load_families
from paras2s.reward.judges.rubric import RubricJudge

HAPPY = load_families()["happy"].answers[0]


def row(text: str, sound: float | None, family: str | None, contrast: str) -> AnswerRow:
    scored: dict[str, Any] = {"score": sound, "unscored": None} if sound else {"score": None, "unscored": "silent"}
    return AnswerRow(
        system="sft", query_id=f"{contrast}-happy", contrast_id=contrast, category="emotion", style="happy", question_text="Hi",
        question_clip="q.wav", answer_index=0, text_stream=text, transcript="", tone="cheerful", tone_scores={}, reason="",
        family=family, fitting=sound is not None and sound >= 4, answer_clip="a.wav", duration_s=1.0, word_error_rate=0.0,
        judge="rubric/3", model_score=None, parts={} if sound is None else {"kind": sound}, **scored,
    )  # fmt: skip


def test_an_answer_that_is_right_and_cannot_be_understood_is_seen() -> None:
    rows = [
        row(HAPPY, 5.0, "happy", "1"),
        row(HAPPY, 1.0, None, "2"),
        row("How lovely.", 1.0, None, "3"),
        row(HAPPY, None, None, "4"),
    ]
    found = spoken_kinds(rows, RubricJudge())
    means = [one.estimate.mean for one in (found.text, found.sound, found.gap, found.garbled)]
    assert means == pytest.approx([(5 + 5 + 1) / 3, (5 + 1 + 1) / 3, 4 / 3, 2 / 3])
    assert (found.gap.estimate.n, found.gap.n_asked) == (3, 4)
    assert found.to_json()["garbled"]["mean"] == pytest.approx(2 / 3)


def test_of_another_judges_rows_there_is_nothing_to_say() -> None:
    found = spoken_kinds([row(HAPPY, None, None, "1")], RubricJudge())
    assert found.gap.estimate.mean is None
    assert found.gap.n_asked == 1
