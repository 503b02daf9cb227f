"""Alerts on a run's curves: pure functions of the rows of metrics.jsonl.

A threshold is a share of the rewards' own standard deviation where a reward's scale is arbitrary. An alert says where
to look and is no proof; `paras2s bench curve` has other judges decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from paras2s.studio.curves import REWARD_PREFIX as SOURCE
from paras2s.studio.curves import ROUNDING

Row = dict[str, Any]

# Steps whose mean stands for "now", and for "at the start".
WINDOW = 5
# A validation query is sampled once, so its mean moves by chance: with 60 queries by 0.13 standard deviations.
VALIDATION_FALL, REWARD_RISE = 0.25, 0.1
# Of the entropy at the start. A policy that learns becomes surer, but not at once and not by this much.
ENTROPY_LEFT = 0.2
# Of a step's answers that are the same text, though the questions differ.
SAME_TEXT = 0.5
# Nats a token from the warm-up: beyond it the policy speaks of other things in another way.
KL_LIMIT = 1.0
# Sampler against learner: GAP_FACTOR times the run's median, and never less than what rounding makes.
GAP_FACTOR, GAP_FLOOR = 10.0, ROUNDING
UNSCORED_SHARE, FLAT_SHARE = 0.1, 0.5
# Of the length at the start. A reward is easily raised by saying more, or less.
LENGTH_CHANGE = 0.25
# One source rises and another falls, each by this much on the scale from 1 to 5 that all sources share.
SOURCES_APART = 0.3
# A step is unusual at UNUSUAL_FACTOR times the median of the NEAR steps before and after it; the largest are marked.
WATCHED = {"kl": "KL to the warm-up", "grad_norm": "gradient norm"}
UNUSUAL_FACTOR, NEAR, MOST_UNUSUAL = 4.0, 10, 3


@dataclass(frozen=True)
class UnusualStep:
    """A step at which a curve is a multiple of what it is around it."""

    step: int
    key: str
    text: str


@dataclass(frozen=True)
class Alert:
    """A curve that left its band: its kind, the step at which that is seen, and a sentence. `keys` are the curves."""

    kind: str
    step: int
    text: str
    keys: tuple[str, ...]


def find_alerts(rows: Sequence[Row], group_size: int | None = None, queries: int | None = None) -> list[Alert]:
    """Return all alerts at the end of these rows. B `queries` by G `group_size` give shares of unscored and flat groups."""
    # A reward model that was trained again while the policy was aligned gives other numbers than the one before.
    alike = [row for row in rows if row.get("reward_model_step") == rows[-1].get("reward_model_step")]
    alerts = [
        reward_without_validation(alike),
        sources_apart(alike),
        length_change(rows),
        *(entropy_collapse(rows, stream) for stream in ("text", "audio")),
        one_answer(rows),
        drift(rows),
        *(sampler_gap(rows, stream) for stream in ("text", "audio")),
        too_many(rows, "unscored", UNSCORED_SHARE, queries * group_size if queries and group_size else None),
        too_many(rows, "zero_spread_groups", FLAT_SHARE, queries),
    ]
    return [alert for alert in alerts if alert is not None]


def reward_without_validation(rows: Sequence[Row]) -> Alert | None:
    """Alert when the reward rose since the validation reward's best point, and the validation reward fell."""
    points = [(index, row["validation_reward"]) for index, row in enumerate(rows) if _is_number(row.get("validation_reward"))]
    rewards: list[Any] = [row.get("reward_mean") for row in rows]
    spreads = _values(rows, "reward_std")
    if len(points) < 3 or not spreads:
        return None
    spread = median(spreads)
    best, best_value = max(points[:-1], key=lambda point: point[1])
    last, last_value = points[-1]
    then = [value for value in rewards[max(0, best - WINDOW // 2) : best + WINDOW // 2 + 1] if _is_number(value)]
    now = [value for value in rewards[max(best + 1, last - WINDOW + 1) : last + 1] if _is_number(value)]
    if not then or not now or spread == 0:
        return None
    rise, fall = fmean(now) - fmean(then), best_value - last_value
    if fall < VALIDATION_FALL * spread or rise < REWARD_RISE * spread:
        return None
    text = (
        f"the reward rose by {rise:.2f} since step {rows[best]['step']}, and on validation queries it fell by {fall:.2f}: "
        "the policy may be learning the training prompts or a gap in the reward"
    )
    return Alert("reward without validation", rows[last]["step"], text, ("reward_mean", "validation_reward"))


def sources_apart(rows: Sequence[Row]) -> Alert | None:
    """Alert when one source of the reward rose and another fell: the policy pays for the one with the other."""
    changes = {key: _change(rows, key) for key in dict.fromkeys(key for row in rows for key in row) if key.startswith(SOURCE)}
    known = {key: now - start for key, means in changes.items() if means is not None for start, now in (means,)}
    if len(known) < 2:
        return None
    up, down = max(known, key=lambda key: known[key]), min(known, key=lambda key: known[key])
    if known[up] < SOURCES_APART or known[down] > -SOURCES_APART:
        return None
    text = (
        f"{up.removeprefix(SOURCE)} rose by {known[up]:.2f} and {down.removeprefix(SOURCE)} fell by {-known[down]:.2f}: "
        "listen to answers that the one scores high and the other low"
    )
    return Alert("sources apart", rows[-1]["step"], text, (up, down))


def length_change(rows: Sequence[Row]) -> Alert | None:
    """Alert when answers are much longer or shorter than at the start."""
    key = "length_steps"
    means = _change(rows, key)
    if means is None or not means[0] or abs(means[1] / means[0] - 1) < LENGTH_CHANGE:
        return None
    start, now = means
    text = (
        f"answers went from {start:.0f} to {now:.0f} steps: the reward may pay {'length' if now > start else 'shortness'}; "
        "see which source rose with it"
    )
    return Alert("length", rows[-1]["step"], text, (key,))


def entropy_collapse(rows: Sequence[Row], stream: str) -> Alert | None:
    """Alert when the entropy of a stream is a fraction of its value at the start."""
    key = f"entropy_{stream}"
    values = _values(rows, key)
    if len(values) < 2 * WINDOW:
        return None
    start, now = fmean(values[:WINDOW]), fmean(values[-WINDOW:])
    if start <= 0 or now >= ENTROPY_LEFT * start:
        return None
    text = f"the {stream} stream's entropy fell from {start:.2f} to {now:.2f} nats a token: answers are becoming the same"
    return Alert("entropy collapse", rows[-1]["step"], text, (key,))


def one_answer(rows: Sequence[Row]) -> Alert | None:
    """Alert when most answers of a step are one text."""
    values = _values(rows, "same_text_share")
    if len(values) < WINDOW or fmean(values[-WINDOW:]) <= SAME_TEXT:
        return None
    share = fmean(values[-WINDOW:])
    text = f"{100 * share:.0f} % of the answers to all questions are one text: the policy no longer answers the question"
    return Alert("one answer", rows[-1]["step"], text, ("same_text_share",))


def drift(rows: Sequence[Row]) -> Alert | None:
    """Alert when the policy is far from its warm-up."""
    values = _values(rows, "kl")
    if len(values) < WINDOW or fmean(values[-WINDOW:]) <= KL_LIMIT:
        return None
    text = (
        f"the KL to the warm-up is {fmean(values[-WINDOW:]):.2f} nats: the policy has drifted; raise align.objective.kl_weight"
    )
    return Alert("drift", rows[-1]["step"], text, ("kl",))


def sampler_gap(rows: Sequence[Row], stream: str) -> Alert | None:
    """Alert when sampler and learner no longer give the same log-probs."""
    key = f"parity_{stream}_mean"
    values = _values(rows, key)
    if len(values) < 2 * WINDOW:
        return None
    usual, now = median(values[:-WINDOW]), fmean(values[-WINDOW:])
    if now <= max(GAP_FLOOR, GAP_FACTOR * usual):
        return None
    times = now / max(usual, 1e-12)
    text = f"sampler and learner differ by {now:.4f} nats a token in the {stream} stream, {times:.0f} times the usual"
    return Alert("sampler-learner gap", rows[-1]["step"], text, (key,))


def too_many(rows: Sequence[Row], key: str, share: float, total: int | None) -> Alert | None:
    """Alert when a count of the last steps is more than a share of the total."""
    values = _values(rows, key)
    if not total or len(values) < WINDOW or fmean(values[-WINDOW:]) <= share * total:
        return None
    now = fmean(values[-WINDOW:])
    what = "answers are unscored" if key == "unscored" else "groups have no spread and teach nothing"
    return Alert(
        key.replace("_", " "), rows[-1]["step"], f"{now:.1f} of {total} {what}, in the mean of the last {WINDOW} steps", (key,)
    )


def unusual_steps(rows: Sequence[Row]) -> list[UnusualStep]:
    """Return the steps at which KL or gradient leap for a step: at the learner's own answers one sees why."""
    unusual: list[UnusualStep] = []
    for key, name in WATCHED.items():
        points = [(row["step"], float(row[key])) for row in rows if _is_number(row.get(key))]
        values = [value for _, value in points]
        leaps = []
        for at, (step, value) in enumerate(points):
            near = values[max(0, at - NEAR) : at] + values[at + 1 : at + 1 + NEAR]
            usual = median(near) if len(near) >= WINDOW else 0.0
            if usual > 0 and value >= UNUSUAL_FACTOR * usual:
                leaps.append(
                    (value / usual, UnusualStep(step, key, f"{name} {value:.2f}, {value / usual:.0f} times the usual"))
                )
        unusual += [leap for _, leap in sorted(leaps, key=lambda leap: -leap[0])[:MOST_UNUSUAL]]
    return sorted(unusual, key=lambda leap: leap.step)


def _change(rows: Sequence[Row], key: str) -> tuple[float, float] | None:
    """Return the means of the first steps and of the last steps; None if they are too few to be apart."""
    values = _values(rows, key)
    return None if len(values) < 2 * WINDOW else (fmean(values[:WINDOW]), fmean(values[-WINDOW:]))


def _values(rows: Sequence[Row], key: str) -> list[float]:
    return [row[key] for row in rows if _is_number(row.get(key))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
