"""Judged answers as the bench writes them, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paras2s.bench.results import AnswerRow


def answer(score: float | None, contrast: str = "c1", style: str = "happy", **changes: Any) -> AnswerRow:
    """One answer of the warm-up to one question of a contrast; `changes` are fields laid over."""
    row = AnswerRow(
        system="sft",
        query_id=f"{contrast}-{style}",
        contrast_id=contrast,
        category="emotion",
        style=style,
        question_text="I got the letter.",
        question_clip="samples/q.wav",
        answer_index=0,
        text_stream="How lovely.",
        transcript="how lovely",
        tone="cheerful",
        tone_scores={"cheerful": 0.9},
        score=score,
        unscored="no speech" if score is None else None,
        reason="",
        family=style,
        fitting=score is not None and score >= 4,
        answer_clip="samples/a.wav",
        duration_s=2.0,
        word_error_rate=None,
        judge="rubric/1",
        model_score=None,
    )
    return replace(row, **changes)
