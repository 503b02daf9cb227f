"""Alerts on curves, by tables of rows that are made to raise one or none.

Not covered: whether the thresholds suit a run of another reward than those that they were chosen on.
"""

from __future__ import annotations

from typing import Any

import pytest

from paras2s.studio.alerts import find_alerts, unusual_steps


def rows(count: int, **curves: Any) -> list[dict[str, Any]]:
    """Rows of a calm run; a curve is a function of the step, whose None is left out."""
    calm = {
        "reward_mean": 3.0, "reward_std": 1.0, "kl": 0.05, "entropy_text": 2.0, "entropy_audio": 3.0, "same_text_share": 0.05,
        "parity_text_mean": 1e-6, "parity_audio_mean": 1e-7, "unscored": 0, "zero_spread_groups": 0,
    }  # fmt: skip
    made = []
    for step in range(count):
        row = {"step": step, **calm, **{key: curve(step) for key, curve in curves.items()}}
        made.append({key: value for key, value in row.items() if value is not None})
    return made


def every_fifth(values: list[float]) -> Any:
    return lambda step: values[step // 5] if step % 5 == 0 else None


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("reward without validation",
         rows(21, reward_mean=lambda step: 3 + 0.05 * step, validation_reward=every_fifth([3.0, 3.4, 3.5, 3.2, 3.0]))),
        ("entropy collapse", rows(20, entropy_text=lambda step: 2.0 if step < 10 else 0.3)),
        ("one answer", rows(10, same_text_share=lambda step: 0.9)),
        ("drift", rows(10, kl=lambda step: 0.3 * step)),
        ("sampler-learner gap", rows(20, parity_text_mean=lambda step: 1e-4 if step < 15 else 5e-3)),
        ("length", rows(20, length_steps=lambda step: 30 + step)),
        ("length", rows(20, length_steps=lambda step: 40 - step)),
        ("sources apart",
         rows(20, **{"reward/judge": lambda step: 3 - 0.03 * step, "reward/length": lambda step: 3 + 0.05 * step})),
        ("unscored", rows(10, unscored=lambda step: 20)),
        ("zero spread groups", rows(10, zero_spread_groups=lambda step: 13)),
    ],
)  # fmt: skip
def test_a_curve_that_leaves_its_band_is_named(kind: str, made: list[dict[str, Any]]) -> None:
    found = find_alerts(made, group_size=8, queries=16)
    assert [(alert.kind, alert.step) for alert in found] == [(kind, made[-1]["step"])]


@pytest.mark.parametrize(
    "made",
    [
        [],
        rows(1),
        rows(50),
        # The length wavers by less than a quarter; too few steps to tell; one source rises alone; both rise.
        rows(20, length_steps=lambda step: 30 + 0.4 * step),
        rows(9, length_steps=lambda step: 30 + 5 * step),
        rows(20, **{"reward/judge": lambda step: 3.0, "reward/length": lambda step: 3 + 0.05 * step}),
        rows(20, **{"reward/judge": lambda step: 3 + 0.05 * step, "reward/length": lambda step: 3 + 0.05 * step}),
        # Both rise; both fall; the validation reward wavers by less than chance; the reward rose before the best point.
        rows(21, reward_mean=lambda step: 3 + 0.05 * step, validation_reward=every_fifth([3.0, 3.2, 3.3, 3.4, 3.6])),
        rows(21, reward_mean=lambda step: 4 - 0.05 * step, validation_reward=every_fifth([3.5, 3.4, 3.2, 3.1, 2.9])),
        rows(21, reward_mean=lambda step: 3 + 0.05 * step, validation_reward=every_fifth([3.0, 3.4, 3.5, 3.4, 3.3])),
        rows(21, reward_mean=lambda step: min(4.0, 3 + 0.5 * step), validation_reward=every_fifth([3.0, 3.6, 3.5, 3.3, 3.2])),
        # The reward model was trained again, and gives less to everything.
        rows(
            21,
            reward_mean=lambda step: 3 + 0.05 * step,
            validation_reward=every_fifth([3.0, 3.4, 3.5, 3.2, 3.0]),
            reward_model_step=lambda step: 0 if step < 13 else 13,
        ),
        # A policy that learns becomes surer; a gap that is rounding; too few steps to say.
        rows(20, entropy_text=lambda step: 2.0 if step < 10 else 0.9),
        rows(20, parity_text_mean=lambda step: 1e-7 if step < 15 else 5e-6),
        rows(4, same_text_share=lambda step: 1.0),
        rows(10, unscored=lambda step: 12, zero_spread_groups=lambda step: 8),
        [{"step": step} for step in range(30)],
    ],
)
def test_a_calm_run_raises_none(made: list[dict[str, Any]]) -> None:
    assert find_alerts(made, group_size=8, queries=16) == []


def test_steps_at_which_kl_or_gradient_leap_are_unusual() -> None:
    made = [{"step": step, "kl": 0.01 * (step + 1), "grad_norm": 1.0} for step in range(40)]
    assert unusual_steps(made) == []
    made[20]["kl"], made[30]["grad_norm"] = 1.9, 4.0
    # The median around step 20 is 0.21; one that is not measured counts for nothing.
    made[31]["grad_norm"] = None
    found = [(one.step, one.key, one.text) for one in unusual_steps(made)]
    assert found == [
        (20, "kl", "KL to the warm-up 1.90, 9 times the usual"),
        (30, "grad_norm", "gradient norm 4.00, 4 times the usual"),
    ]
    for step in range(10):
        made[3 * step]["grad_norm"] = 50.0 + step
    assert [one.step for one in unusual_steps(made) if one.key == "grad_norm"] == [21, 24, 27]
