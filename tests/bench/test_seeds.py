"""Figures over seeds and their intervals against numbers worked out by hand, and a gain that is none.

Not covered: whether the intervals keep their 95 % for so few seeds, which is the bootstrap's own property.
"""

from __future__ import annotations

import numpy as np
import pytest
from tiny.answers import answer

from paras2s.bench.paras2s.seeds import Nested, gain_over, interquartile_mean, mean_score, of_both, of_system, with_intervals
from paras2s.bench.results import AnswerRow


def rows(scores: dict[str, list[float | None]], category: str = "emotion") -> list[AnswerRow]:
    """Answers to the happy question of each contrast."""
    return [
        answer(score, contrast, answer_index=n, category=category)
        for contrast, answers in scores.items()
        for n, score in enumerate(answers)
    ]


def stacked(seed: Nested) -> list[np.ndarray]:
    return [np.concatenate(contrasts) for contrasts in seed]


def test_categories_and_seeds_weigh_the_same_and_what_is_unscored_is_left_out() -> None:
    first = of_system([*rows({"a": [1, 3], "b": [4, None], "c": [None]}), *rows({"d": [5]}, "age")])
    # Emotion: (2 + 4) / 2 = 3; age: 5; so 4. The other seed: 2.
    second = of_system([*rows({"a": [1]}), *rows({"d": [3]}, "age")])
    assert mean_score([stacked(first)]) == 4
    assert mean_score([stacked(first), stacked(second)]) == 3


def test_a_gain_by_hand() -> None:
    after, before = rows({"a": [5, 3], "b": [2, 2]}), rows({"a": [3, 1], "b": [2, 4]})
    gain = gain_over([of_both(after, before)])
    # Means 4 and 2 over 2 and 3: 3 against 2.5.
    assert gain.difference.value == pytest.approx(0.5)
    assert gain.percent.value == pytest.approx(20)
    # a: 5 above both, 3 equal to one and above the other: (1 + 1 + 0.5 + 1) / 4; b: 2 equals 2 and is below 4, twice: 1 / 4.
    assert gain.improvement.value == pytest.approx((0.875 + 0.25) / 2)
    # Resamples: a twice +2, b twice -1, both +0.5.
    assert (gain.difference.low, gain.difference.high) == (-1, 2)
    assert (gain.difference.seeds, gain.difference.n) == (1, 2)


def test_the_middle_half_does_not_see_the_ends() -> None:
    questions = np.array([[0.0], [2.0], [4.0], [100.0]])
    assert interquartile_mean([[questions]], 0) == 3


def test_an_interval_over_seeds_is_wider_than_that_of_their_questions() -> None:
    def seed(level: float) -> Nested:
        return of_system(rows({f"c{n}": [level + 0.1 * (n % 3)] for n in range(30)}))

    (alike,) = with_intervals([seed(3), seed(3), seed(3)], lambda drawn: [mean_score(drawn)])
    (apart,) = with_intervals([seed(2), seed(3), seed(4)], lambda drawn: [mean_score(drawn)])
    assert apart.value == pytest.approx(alike.value)
    # The means of 27 equally likely draws of three seeds go from 2 to 4; two of them are the ends, 3.7 % each.
    assert alike.high - alike.low < 0.1 < 1.5 < apart.high - apart.low


def test_the_same_system_has_no_gain() -> None:
    same = rows({f"c{n}": [1 + n % 5] for n in range(20)})
    gain = gain_over([of_both(same, same)])
    assert (gain.difference.low, gain.difference.value, gain.difference.high) == (0, 0, 0)
    assert gain.improvement.value == 0.5


def test_a_category_without_a_score_is_refused() -> None:
    with pytest.raises(ValueError, match="no questions"):
        gain_over([of_both(rows({"a": [None]}), rows({"a": [3]}))])
    with pytest.raises(ValueError, match="no questions"):
        gain_over([])


def test_an_answer_that_is_always_better_has_wilsons_interval_over_contrasts() -> None:
    """By hand, z^2 = 3.8415: four contrasts reach down to 4 / (4 + z^2) = 0.5101, be they asked once or of three seeds."""
    after, before = (rows({name: [score] for name in "abcd"}) for score in (5, 3))
    for seeds in (1, 3):
        gain = gain_over([of_both(after, before)] * seeds).improvement
        assert (gain.value, gain.low, gain.high) == (1.0, pytest.approx(0.5101, abs=1e-4), 1.0)
    never = gain_over([of_both(before, after)]).improvement
    assert (never.low, never.high) == (0.0, pytest.approx(0.4899, abs=1e-4))
