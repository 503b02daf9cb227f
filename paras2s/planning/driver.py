"""The driver's steps in time: which role works when, on devices of its own or on the same as the others."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from paras2s.planning.cluster import Driver

ROLES = ("rollout", "speak", "reward", "learner")
# The driver's first steps fill its pipeline and its last ones empty it; the rate is taken between.
FILL_STEPS, RATED_STEPS = 8, 24


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step's phases, each by itself.

    `speak` is 0 where no device has it as its role. It begins `early` seconds before its rollout ends.
    """

    rollout: float
    reward: float
    learner: float
    sync: float
    speak: float = 0.0
    early: float = 0.0


@dataclass(frozen=True)
class Rhythm:
    """Timing of steps: seconds a step, share of the time each role works, and what they wait for."""

    step_s: float
    busy: dict[str, float]
    bottleneck: str


def run_driver(
    times: Sequence[StepTimes], driver: Driver, colocated: bool, reward_on_devices: bool, judged_at_once: int = 1
) -> Rhythm:
    """Work through the steps, whatever can start first going first; `times` are taken in turn.

    Colocated roles share one resource. A reward that is asked elsewhere has its own, with room for so many steps at once.
    """
    # Who speaks has devices of its own, or takes no time.
    place = {role: "devices" if colocated and role != "speak" else role for role in ROLES}
    if not reward_on_devices:
        place["reward"] = "elsewhere"
    free = {resource: [0.0] * (judged_at_once if resource == "elsewhere" else 1) for resource in place.values()}
    ended: dict[str, list[float]] = {role: [] for role in (*ROLES, "sync")}
    busy: list[tuple[str, float, float]] = []
    count = FILL_STEPS + RATED_STEPS + FILL_STEPS

    def ready(task: str) -> float | None:
        """When its step may start at the earliest, None where that is not known yet."""
        step = len(ended[task])
        if step == count:
            return None
        if task == "rollout":
            behind = step - 1 - driver.max_staleness
            if behind >= 0 and len(ended["sync"]) <= behind:
                return None
            return max(free[place["rollout"]][0], ended["sync"][behind] if behind >= 0 else 0.0)
        before = {"speak": "rollout", "reward": "speak", "learner": "reward", "sync": "learner"}[task]
        if len(ended[before]) <= step:
            return None
        if task == "speak":
            return max(ended[before][step] - times[step % len(times)].early, free[place[task]][0])
        if task == "sync":
            return max(ended["learner"][step], free[place["learner"]][0], free[place["rollout"]][0])
        return max(ended[before][step], free[place[task]][0])

    while len(ended["sync"]) < count:
        # Of those that can start at once, the one that ends a step.
        starts = {task: ready(task) for task in ("sync", "learner", "reward", "speak", "rollout")}
        task = min((one for one in starts if starts[one] is not None), key=lambda one: starts[one] or 0.0)
        began = starts[task] or 0.0
        one = times[len(ended[task]) % len(times)]
        ends = began + getattr(one, task)
        for resource in {place["learner"], place["rollout"]} if task == "sync" else {place[task]}:
            heapq.heapreplace(free[resource], ends)
        ended[task].append(ends)
        busy.append((task, began, ends))
    return _rhythm(ended["learner"], busy)


def _rhythm(learned: Sequence[float], busy: Sequence[tuple[str, float, float]]) -> Rhythm:
    since, until = learned[FILL_STEPS - 1], learned[FILL_STEPS + RATED_STEPS - 1]
    span = max(until - since, 1e-12)
    shares = dict.fromkeys((*ROLES, "sync"), 0.0)
    for task, began, ends in busy:
        shares[task] += max(0.0, min(ends, until) - max(began, since)) / span
    return Rhythm((until - since) / RATED_STEPS, shares, max(shares, key=lambda task: shares[task]))
