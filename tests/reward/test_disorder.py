"""Answers out of order, by hand.

Not covered: what a judge makes of them, which `paras2s distill` measures and writes down.
"""

from __future__ import annotations

import numpy as np
import pytest

from paras2s.reward.reward_model.disorder import KEPT_OUT, TAUGHT, disordered

CODES = np.stack([np.arange(12), 100 + np.arange(12)], 1)


def made(kind: str, seed: int = 0) -> list[int]:
    """The steps by name; both codebooks are moved together."""
    codes = disordered(kind, CODES, np.random.default_rng(seed))
    assert (codes[:, 1] - codes[:, 0] == 100).all()
    return [int(step) for step in codes[:, 0]]


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("twice", [*range(12), *range(12)]),
        ("reversed", list(range(11, -1, -1))),
        ("slow", [step for step in range(12) for _ in range(2)]),
        ("half", list(range(6))),
        ("halves_swapped", [*range(6, 12), *range(6)]),
    ],
)
def test_by_hand(kind: str, steps: list[int]) -> None:
    assert made(kind) == steps


def test_shuffled_keeps_every_step_and_no_long_run() -> None:
    for seed in range(20):
        steps = made("shuffled", seed)
        assert sorted(steps) == list(range(12))
    assert sum(made("shuffled", seed) != list(range(12)) for seed in range(20)) == 20


def test_a_stutter_repeats_one_stretch() -> None:
    for seed in range(20):
        steps = made("stutter", seed)
        assert 12 + 2 <= len(steps) <= 12 + 3 * 6
        back = [place for place in range(1, len(steps)) if steps[place] != steps[place - 1] + 1]
        # It jumps back by the same stretch each time.
        assert len({steps[place - 1] - steps[place] for place in back}) == 1
        assert sorted(set(steps)) == list(range(12))


@pytest.mark.parametrize("kind", [*TAUGHT, *KEPT_OUT])
def test_two_steps_are_enough(kind: str) -> None:
    assert len(disordered(kind, CODES[:2], np.random.default_rng(0))) >= 1


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="unknown kind 'sung'; there are shuffled"):
        made("sung")
    assert not set(TAUGHT) & set(KEPT_OUT)
