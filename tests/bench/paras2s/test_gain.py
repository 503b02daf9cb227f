"""The verdict in words on a run's gain, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from tiny.answers import answer

from paras2s.bench.paras2s.gain import GainVerdict, judge_gain, verdict_on_gain
from paras2s.bench.results import AnswerRow


def rows(*scores: float | None) -> list[AnswerRow]:
    """One answer to one question of each contrast."""
    return [answer(score, f"c{number}") for number, score in enumerate(scores)]


def test_a_gain_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, error sqrt(3 / 2 * (1 + 0 + 1)) / 3 = 0.5774, and Student's 4.3027 at two degrees."""
    gain = judge_gain("rubric", rows(1, 1, 1), rows(2, 3, 4))
    assert gain.difference == 2
    assert (gain.low, gain.high) == (pytest.approx(2 - 2.4842, abs=1e-3), pytest.approx(2 + 2.4842, abs=1e-3))
    assert (gain.questions, gain.contrasts, gain.outcome) == (3, 3, "no difference shown")
    # 3 * (2.4842 / 2)^2 = 4.63.
    assert gain.contrasts_needed == 5


def test_categories_weigh_the_same_as_in_the_scores_above_the_sentence() -> None:
    """Differences 1, 2, 3 and 2, 4: means 2 and 3, errors 0.5774 and 1; their mean's is half the root of the sum of squares.

    Five contrasts, less a degree for each category: Student's 3.1824 at three.
    """

    def both(sad: tuple[float, ...], old: tuple[float, ...]) -> list[AnswerRow]:
        rows = [answer(score, f"s{number}", category="emotion") for number, score in enumerate(sad)]
        return rows + [answer(score, f"a{number}", category="age") for number, score in enumerate(old)]

    gain = judge_gain("rubric", both((1, 1, 1), (1, 1)), both((2, 3, 4), (3, 5)))
    error = (1 / 3 + 1) ** 0.5 / 2
    assert gain.difference == 2.5
    assert (gain.low, gain.high) == (
        pytest.approx(2.5 - 3.1824 * error, abs=1e-3),
        pytest.approx(2.5 + 3.1824 * error, abs=1e-3),
    )
    # A category without a scored answer is no 0, and the other category is not the whole.
    unscored = [answer(2, "s0", category="emotion"), answer(2, "s1", category="emotion"), answer(None, "a0", category="age")]
    assert judge_gain("rubric", both((1, 1), (1,)), unscored).outcome == "not measured"


@pytest.mark.parametrize(
    ("rubric", "independent", "outcome"),
    [
        ((4, 4.1, 4), (4, 4.1, 4), "better"),
        ((4, 4.1, 4), (3, 3.5, 2.9), "no difference shown"),
        ((3, 3.5, 2.9), (3, 3.5, 2.9), "no difference shown"),
        ((2.5, 2.4, 2.5), (3, 3.5, 2.9), "worse"),
        ((2.5, 2.4, 2.5), (4, 4.1, 4), "no difference shown"),
        ((4, 4.1, 4), (None, None, None), "not measured"),
    ],
)
def test_all_judges_must_agree_that_it_is_better(
    rubric: tuple[float, ...], independent: tuple[float | None, ...], outcome: str
) -> None:
    before = rows(3, 3, 3)
    verdict = verdict_on_gain(
        {
            "rubric judge": {"sft": before, "aligned": rows(*rubric)},
            "independent judge": {"sft": before, "aligned": rows(*independent)},
        }
    )
    assert verdict is not None
    assert verdict.outcome == outcome
    assert ("when-it-did-not-help" in "\n".join(verdict.lines())) == (outcome != "better")
    assert verdict.to_json()["outcome"] == outcome


def test_no_verdict_without_both_policies_and_none_from_one_contrast() -> None:
    assert verdict_on_gain({"rubric judge": {"sft": rows(1, 2)}}) is None
    gain = judge_gain("rubric", rows(1), rows(5))
    assert (gain.difference, gain.low, gain.outcome) == (4, None, "not measured")
    assert "no interval" in gain.describe()
    assert GainVerdict((gain,)).outcome == "not measured"


def test_unscored_answers_are_left_out_and_not_a_zero() -> None:
    gain = judge_gain("rubric", rows(1, None, 1), rows(2, 5, 2))
    assert (gain.difference, gain.questions, gain.contrasts) == (1, 2, 2)
