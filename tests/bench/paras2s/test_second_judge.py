"""Two judges of the same answers: agreement by hand, whose gain is seen by whom, and rows judged again from their clips.

Not covered: the judges themselves (tests/reward), and `bench contrasts` from end to end (tests/integration).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paras2s.audio.clip import make_clip, write_clip
from paras2s.bench.paras2s.judges import Answer, JudgedAnswer
from paras2s.bench.paras2s.second_judge import (
    agreement,
    answers_of,
    compare_judges,
    describe_agreement,
    judge_again,
    take_evenly,
)
from paras2s.bench.results import AnswerRow
from paras2s.bench.systems import Progress
from paras2s.types import PastTurn, Unscored, Verdict


def row(score: float | None, number: int = 0, system: str = "sft", contrast: str | None = None) -> AnswerRow:
    contrast_id = contrast or f"c{number}"
    return AnswerRow(
        system=system, query_id=f"{contrast_id}-happy", contrast_id=contrast_id, category="emotion", style="happy",
        question_text="Hi", question_clip="q.wav", answer_index=0, text_stream="How lovely", transcript="how lovely",
        tone="cheerful", tone_scores={"cheerful": 1.0}, score=score, unscored=None if score else "no", reason="r",
        family="happy", fitting=score is not None and score >= 4, answer_clip=f"{number}.wav", duration_s=1.0,
        word_error_rate=0.0, judge="rubric/2", model_score=3.0,
    )  # fmt: skip


def rows(scores: Sequence[float | None], system: str = "sft") -> list[AnswerRow]:
    return [row(score, number, system) for number, score in enumerate(scores)]


def test_agreement_by_hand() -> None:
    found = agreement(rows([1, 2, 3, 5, None, 4]), rows([1, 3, 5, 5, 2, None]))
    # Of six, four are scored by both; two are equal, three within a point.
    assert (found["asked"], found["n"], found["exact"], found["within_one"]) == (6, 4, 0.5, 0.75)
    assert found["pearson"] == pytest.approx(np.corrcoef([1, 2, 3, 5], [1, 3, 5, 5])[0, 1])


def test_a_limit_takes_contrasts_of_each_category_in_turn_and_keeps_the_order() -> None:
    both = [
        replace(row(1, 0, contrast=name), category=name[0], style=style) for name in ["a1", "a2", "b1", "b2"] for style in "xy"
    ]
    ids = [(each.contrast_id, each.style) for each in take_evenly(both, 5)]
    assert ids == [("a1", "x"), ("a1", "y"), ("a2", "x"), ("b1", "x"), ("b1", "y")]
    assert take_evenly(both, None) == take_evenly(both, 99) == both
    assert take_evenly(both, 1) == both[:1]


def test_where_nothing_varies_or_nothing_is_scored_there_is_no_number() -> None:
    assert agreement(rows([3, 3]), rows([1, 5]))["pearson"] is None
    assert agreement(rows([1, 5]), rows([None, None])) == {
        "n": 0, "asked": 2, "exact": None, "within_one": None, "pearson": None,
    }  # fmt: skip
    assert describe_agreement(compare_judges({"topline": rows([5])}, {"topline": rows([5])})) == []


RISE, FLAT, NOISE = [4, 5, 4, 5], [2, 3, 2, 3], [2, 4, 1, 4]


@pytest.mark.parametrize(
    ("teacher", "other", "flagged"),
    [(RISE, RISE, False), (RISE, FLAT, True), (RISE, NOISE, True), (FLAT, RISE, False), (FLAT, FLAT, False)],
)
def test_a_gain_that_only_the_teacher_sees_is_flagged(teacher: list[float], other: list[float], flagged: bool) -> None:
    before = rows([2, 3, 2, 3])
    first = {"sft": before, "aligned": rows(teacher, "aligned")}
    second = {"sft": before, "aligned": rows(other, "aligned")}
    report = compare_judges(first, second)
    assert report["only_teacher"] is flagged
    assert any("only the teacher sees a gain" in line for line in describe_agreement(report)) is flagged
    assert report["policies"]["n"] == 8


class ByLength:
    """Scores 5 where the clip is long, 1 else; hears nothing in a clip of 0.1 s."""

    name = "length/1"

    def judge_all(self, answers: Sequence[Answer], on_progress: Progress) -> list[JudgedAnswer]:
        on_progress(len(answers), len(answers))
        found = []
        for _, one in answers:
            if one.clip is None:
                found.append(JudgedAnswer(Unscored("length", one.failed or "")))
            elif one.clip.duration_s < 0.2:
                found.append(JudgedAnswer(Unscored("length", "too short to hear")))
            else:
                score = 5.0 if one.clip.duration_s > 1 else 1.0
                measured = {"transcript": "how lonely", "family": "sad", "tone": "calm"}
                found.append(JudgedAnswer(Verdict("length", "1", "", score, "long", "", 0.0, 0.0, **measured)))
        return found


def test_rows_are_judged_again_from_their_clips(tmp_path: Path) -> None:
    for number, duration_s in enumerate((2.0, 0.5, 0.1)):
        write_clip(tmp_path / f"{number}.wav", make_clip(0.1 * np.ones(int(8000 * duration_s)), 8000))
    first = rows([1, 5, 4, 4])
    again = judge_again(first, tmp_path, ByLength(), lambda done, total: None)
    assert [one.score for one in again] == [5.0, 1.0, None, None]
    assert again[2].unscored == "too short to hear"
    assert "3.wav" in (again[3].unscored or "")
    assert {one.judge for one in again} == {"length/1"}
    # One of two words is another.
    assert (again[0].word_error_rate, again[0].family, again[0].tone, again[0].fitting) == (0.5, "sad", "calm", True)
    assert (again[0].model_score, again[2].word_error_rate, again[2].fitting) == (None, None, False)
    kept = ("system", "query_id", "answer_index", "text_stream", "answer_clip", "duration_s")
    assert all(getattr(one, key) == getattr(other, key) for one, other in zip(first, again, strict=True) for key in kept)
    assert judge_again([replace(first[0], answer_clip="1.wav")], tmp_path, ByLength(), lambda *_: None)[0].score == 1.0


def test_a_question_is_judged_again_behind_its_own_turns(tmp_path: Path) -> None:
    turns = (PastTurn("user", "I lost my job."), PastTurn("assistant", "I am sorry."))
    answers = answers_of(rows([1, 2]), tmp_path, {"c1-happy": turns})
    assert [question.history for question, _ in answers] == [(), turns]
