"""Correction of a plan by a timed run: for each part of a step, measured over predicted seconds.

A factor holds for the device, the code and roughly the sizes it was measured with. What a run did not do has none: the plan
keeps its own rates there, and says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paras2s.configs.schema.run import RunConfig
from paras2s.errors import ConfigError
from paras2s.planning.cluster import Cluster, KnownPolicy, Rates
from paras2s.planning.simulate import make_plan

# The phases of a plan that one span of a worker covers. An engine that does not tell prompts from answers has "sample" alone.
PARTS = {
    "encode": ("encode",),
    "sample": ("read", "decode"),
    "prefill": ("read",),
    "decode": ("decode",),
    "speak": ("speak", "speak_apart"),
    "judge": ("judge",),
    "learn": ("reference", "forward", "backward", "optimiser", "exchange"),
    "sync": ("sync",),
}
# Parts of a phase, which are corrected with it.
WITHIN = {"straggling": "decode", "speak_behind": "speak_apart"}


@dataclass(frozen=True)
class PhaseTimes:
    """The timed steps of a run: median seconds of each part on its slowest worker, None if no worker did it.

    `step_s` is the median step, evaluation left out, and `length_steps` the mean length of answers; `workers` counts by role.
    `encoded_s` is of one prompt, by one worker: all are encoded before the first step.
    """

    seconds: dict[str, float | None]
    step_s: float
    length_steps: float
    steps: int
    workers: dict[str, int]
    encoded_s: float | None = None


@dataclass(frozen=True)
class PartFactor:
    """One part of a step: predicted and measured seconds; `factor` is None, with the reason, if one of them is 0."""

    part: str
    predicted_s: float
    measured_s: float | None
    factor: float | None
    why_none: str | None = None


@dataclass(frozen=True)
class Calibration:
    """Factors of a timed run, and how its steps would have been predicted without them."""

    parts: tuple[PartFactor, ...]
    predicted_step_s: float
    measured_step_s: float
    steps: int

    @property
    def factors(self) -> dict[str, float]:
        """The factor of each phase of a plan; a phase without one is not in it."""
        by_name = {name: part.factor for part in self.parts if part.factor is not None for name in PARTS[part.part]}
        return by_name | {part: by_name[phase] for part, phase in WITHIN.items() if phase in by_name}


def part_factor(part: str, predicted_s: float, measured_s: float | None) -> PartFactor:
    """Return the factor of one part."""
    if measured_s is None or measured_s <= 0:
        return PartFactor(part, predicted_s, measured_s, None, "the run did no such work")
    if predicted_s <= 0:
        return PartFactor(part, predicted_s, measured_s, None, "the plan has no such work in this run")
    return PartFactor(part, predicted_s, measured_s, measured_s / predicted_s)


def calibrate(ran: RunConfig, on: Cluster, rates: Rates, known: KnownPolicy, times: PhaseTimes) -> Calibration:
    """Compare the times of a run with its own config's plan. Raises ConfigError: it had another number of workers."""
    for role in ("rollout", "speak", "learner"):
        devices = on.count(role)
        if (worked := times.workers.get(role, 0)) != devices:
            raise ConfigError(
                f"--calibrate: {worked} {role} workers were timed, and {on.name} has {devices}; name the cluster that the run "
                "was on by --measured-on"
            )
    answer_s = (times.length_steps - known.sizes.audio_delay_steps - 1) / known.facts.steps_per_s.value
    plan = make_plan(ran, on, rates, known, answer_s=max(answer_s, 1 / known.facts.steps_per_s.value))
    seconds = dict(times.seconds)
    if times.encoded_s is not None:
        # The plan counts as if each step encoded its own.
        seconds["encode"] = times.encoded_s * math.ceil(ran.align.sampling.queries_per_step / on.count("rollout"))
    parts = tuple(
        part_factor(part, sum(getattr(plan.phases, name) for name in names), seconds.get(part)) for part, names in PARTS.items()
    )
    return Calibration(parts, plan.rhythm.step_s, times.step_s, times.steps)


def refuse_other_device(cluster: Cluster, on: Cluster) -> None:
    """Refuse a run on another device, whose factors say nothing of this one. Raises ConfigError: the devices differ."""
    if cluster.rates != on.rates:
        raise ConfigError(f"--measured-on {on.name}: its device differs from that of {cluster.name}, so its times do not apply")
