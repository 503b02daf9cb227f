"""The seconds of a step's parts, from its spans: for the run's log, and read back so that a plan can be calibrated by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from paras2s.errors import DataError
from paras2s.planning.calibrate import PhaseTimes
from paras2s.rollout.timeline import FILE, Span
from paras2s.utils.io import read_jsonl

METRICS = "metrics.jsonl"
# The first steps start libraries, and fill caches and pipelines.
SETTLING_STEPS = 2
FEWEST_STEPS = 3
# A part of a step by the works that make it up.
WORKS = {
    "encode": ("encode",),
    "sample": ("sample",),
    "prefill": ("prefill",),
    "decode": ("decode",),
    "speak": ("speak",),
    "judge": ("score",),
    "learn": ("update",),
    "sync": ("gather weights", "load weights"),
}
# All prompts are encoded before the first step: that is logged by the prompt.
ENCODED_EACH = "seconds_a_prompt_encoded"
EVALUATE = "evaluate"
ROLES = ("rollout", "speak", "reward", "learner")


def seconds_by_part(spans: Sequence[Span]) -> dict[str, float]:
    """Return seconds of each part of a step on the worker that did most of it, without parts that no worker did."""
    seconds_of = {part: sum(_slowest(spans, work) for work in works) for part, works in WORKS.items()}
    return {part: seconds for part, seconds in seconds_of.items() if seconds}


def logged_seconds(spans: Sequence[Span], encoded: int) -> dict[str, float]:
    """Return a step's parts as its log has them; `encoded` prompts were encoded before it."""
    logged = {f"seconds_of_{part}": seconds for part, seconds in seconds_by_part(spans).items()}
    if encoded:
        logged[ENCODED_EACH] = sum(span.end_s - span.start_s for span in spans if span.work in WORKS["encode"]) / encoded
    return logged


def read_phase_times(run: Path) -> PhaseTimes:
    """Return the times of a run's steps after the first two, without evaluation. Raises DataError: a wrong file, or too few."""
    metrics = {row.get("step"): row for row in read_jsonl(run / METRICS)}
    steps = [
        (_spans(run, row), metrics[row["step"]])
        for row in read_jsonl(run / FILE)
        if row.get("step") in metrics and row["step"] >= SETTLING_STEPS
    ]
    steps = [(spans, row) for spans, row in steps if not any(span.work == EVALUATE for span in spans)]
    if len(steps) < FEWEST_STEPS:
        raise DataError(
            f"{run}: {len(steps)} steps of it were timed after the first {SETTLING_STEPS}, without evaluation; at least "
            f"{FEWEST_STEPS} are needed: run more, or raise align.evaluate_every"
        )
    of_steps = [seconds_by_part(spans) for spans, _ in steps]
    seconds = {part: median(step.get(part, 0.0) for step in of_steps) if any(part in step for step in of_steps) else None
               for part in WORKS}  # fmt: skip
    try:
        step_s = median(float(row["seconds"]) for _, row in steps)
        length_steps = fmean(float(row["length_steps"]) for _, row in steps)
        encoded_s = [float(row[ENCODED_EACH]) for row in metrics.values() if ENCODED_EACH in row]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{run / METRICS}: a step has no number for {error}") from error
    # A worker that was lost has a successor of another name: what counts is how many a step had.
    at_once = [{span.worker for span in spans} for spans, _ in steps]
    roles = {role: max(sum(name.split(" ")[0] == role for name in names) for names in at_once) for role in ROLES}
    return PhaseTimes(seconds, step_s, length_steps, len(steps), roles, encoded_s[-1] if encoded_s else None)


def _slowest(spans: Sequence[Span], work: str) -> float:
    """Return seconds of one kind of work by the worker that did most of it."""
    by_worker: dict[str, float] = {}
    for span in spans:
        if span.work == work:
            by_worker[span.worker] = by_worker.get(span.worker, 0.0) + span.end_s - span.start_s
    return max(by_worker.values(), default=0.0)


def _spans(run: Path, row: dict[str, Any]) -> list[Span]:
    try:
        return [Span(span["worker"], span["work"], float(span["start_s"]), float(span["end_s"])) for span in row["spans"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{run / FILE}: step {row.get('step')}: a span cannot be read ({error})") from error
