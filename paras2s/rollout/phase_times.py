"""Reads the times of a run's steps from its folder, so that a plan can be calibrated by them."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median
from typing import Any

from paras2s.errors import DataError
from paras2s.planning.calibrate import PhaseTimes
from paras2s.rollout.timeline import FILE
from paras2s.utils.io import read_jsonl

METRICS = "metrics.jsonl"
# The first steps start libraries, and fill caches and pipelines.
SETTLING_STEPS = 2
FEWEST_STEPS = 3
# A part of a step by the works that make it up.
WORKS = {
    "sample": ("sample",),
    "speak": ("speak",),
    "judge": ("score",),
    "update": ("update",),
    "new weights": ("gather weights", "load weights"),
}
EVALUATE = "evaluate"
ROLES = ("rollout", "reward", "learner")


def read_phase_times(run: Path) -> PhaseTimes:
    """The times of a run's steps after the first two, without those that evaluated.

    Raises:
        DataError: a file is missing or wrong, or too few steps are left.
    """
    metrics = {row.get("step"): row for row in read_jsonl(run / METRICS)}
    steps = [
        (_spans(run, row), metrics[row["step"]])
        for row in read_jsonl(run / FILE)
        if row.get("step") in metrics and row["step"] >= SETTLING_STEPS
    ]
    steps = [(spans, row) for spans, row in steps if not any(work == EVALUATE for _, work, _ in spans)]
    if len(steps) < FEWEST_STEPS:
        raise DataError(
            f"{run}: {len(steps)} steps of it were timed after the first {SETTLING_STEPS}, without evaluation; at least "
            f"{FEWEST_STEPS} are needed: run more, or raise align.evaluate_every"
        )
    seconds: dict[str, float | None] = {}
    for part, works in WORKS.items():
        of_steps = [sum(_slowest(spans, work) for work in works) for spans, _ in steps]
        seconds[part] = median(of_steps) if any(of_steps) else None
    try:
        step_s = median(float(row["seconds"]) for _, row in steps)
        length_steps = fmean(float(row["length_steps"]) for _, row in steps)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{run / METRICS}: a step has no number for {error}") from error
    # A worker that was lost has a successor of another name: what counts is how many a step had.
    at_once = [{worker for worker, _, _ in spans} for spans, _ in steps]
    roles = {role: max(sum(one.split(" ")[0] == role for one in names) for names in at_once) for role in ROLES}
    return PhaseTimes(seconds, step_s, length_steps, len(steps), roles)


def _slowest(spans: list[tuple[str, str, float]], work: str) -> float:
    """Seconds of one kind of work by the worker that did most of it."""
    by_worker: dict[str, float] = {}
    for worker, name, took_s in spans:
        if name == work:
            by_worker[worker] = by_worker.get(worker, 0.0) + took_s
    return max(by_worker.values(), default=0.0)


def _spans(run: Path, row: dict[str, Any]) -> list[tuple[str, str, float]]:
    try:
        return [(one["worker"], one["work"], float(one["end_s"]) - float(one["start_s"])) for one in row["spans"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{run / FILE}: step {row.get('step')}: a span cannot be read ({error})") from error
