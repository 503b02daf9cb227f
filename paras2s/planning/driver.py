"""The driver's steps in time: which role works when, on devices of its own or on the same as the others."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from paras2s.planning.cluster import Driver
from paras2s.planning.queues import SpeechBatch, speak

ROLES = ("rollout", "speak", "reward", "learner")
# The driver's first steps fill its pipeline and its last ones empty it; the rate is taken between.
FILL_STEPS, RATED_STEPS = 8, 24


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step's phases; `speak` has batches of its devices, ready n seconds after the rollout's end (at most 0)."""

    rollout: float
    reward: float
    learner: float
    sync: float
    speak: tuple[SpeechBatch, ...] = ()


@dataclass(frozen=True)
class Rhythm:
    """Timing of steps: seconds a step, share of the time each role works, and what they wait for."""

    step_s: float
    busy: dict[str, float]
    bottleneck: str


def run_driver(
    times: Sequence[StepTimes],
    driver: Driver,
    colocated: bool,
    reward_on_devices: bool,
    judged_at_once: int = 1,
    speakers: int = 1,
) -> Rhythm:
    """Simulate the steps, starting whichever task can start first; `times` are taken in turn.

    Colocated roles share one resource. A reward that is asked elsewhere has its own, with room for `judged_at_once` steps.
    Each of the `speakers` continues with the next step's batches while others still work on this one's.
    """
    # Speaking has devices of its own, or takes no time.
    resource_of = {role: "devices" if colocated and role != "speak" else role for role in ROLES}
    if not reward_on_devices:
        resource_of["reward"] = "elsewhere"
    room = {"elsewhere": judged_at_once, "speak": speakers}
    free = {resource: [0.0] * room.get(resource, 1) for resource in resource_of.values()}
    ended: dict[str, list[float]] = {role: [] for role in (*ROLES, "sync")}
    busy: list[tuple[str, float, float]] = []
    count = FILL_STEPS + RATED_STEPS + FILL_STEPS

    def ready(task: str) -> float | None:
        """Return when the task's next step may start at the earliest; None if not known yet."""
        step = len(ended[task])
        if step == count:
            return None
        if task == "rollout":
            behind = step - 1 - driver.max_staleness
            if behind >= 0 and len(ended["sync"]) <= behind:
                return None
            return max(free[resource_of["rollout"]][0], ended["sync"][behind] if behind >= 0 else 0.0)
        before = {"speak": "rollout", "reward": "speak", "learner": "reward", "sync": "learner"}[task]
        if len(ended[before]) <= step:
            return None
        if task == "speak":
            first_s = min((batch.ready_s for batch in times[step % len(times)].speak), default=0.0)
            return max(ended[before][step] + first_s, free[resource_of[task]][0])
        if task == "sync":
            return max(ended["learner"][step], free[resource_of["rollout"]][0])
        return max(ended[before][step], free[resource_of[task]][0])

    while len(ended["sync"]) < count:
        # Of tasks that can start at the same time, prefer the last of a step.
        starts = {task: ready(task) for task in ("sync", "learner", "reward", "speak", "rollout")}
        task = min((name for name in starts if starts[name] is not None), key=lambda name: starts[name] or 0.0)
        began = starts[task] or 0.0
        step = len(ended[task])
        phases = times[step % len(times)]
        if task == "speak":
            turns = speak(phases.speak, free["speak"], ended["rollout"][step])
            ended[task].append(max([ended["rollout"][step], *(ends for _, ends in turns)]))
            busy += [(task, *turn) for turn in turns]
            continue
        ends = began + getattr(phases, task)
        # A learner gives its weights away before it learns again, and samplers take them before they sample again, each in
        # time of its own; devices that do both do it once.
        sending_s = phases.sync if task == "learner" and not colocated else 0.0
        heapq.heapreplace(free[resource_of["rollout" if task == "sync" else task]], ends + sending_s)
        ended[task].append(ends)
        busy.append((task, began, ends))
    return _rhythm(ended["learner"], busy, speakers)


def _rhythm(learned: Sequence[float], busy: Sequence[tuple[str, float, float]], speakers: int) -> Rhythm:
    since, until = learned[FILL_STEPS - 1], learned[FILL_STEPS + RATED_STEPS - 1]
    span = max(until - since, 1e-12)
    shares = dict.fromkeys((*ROLES, "sync"), 0.0)
    for task, began, ends in busy:
        shares[task] += max(0.0, min(ends, until) - max(began, since)) / span
    shares["speak"] /= speakers
    return Rhythm((until - since) / RATED_STEPS, shares, max(shares, key=lambda task: shares[task]))
