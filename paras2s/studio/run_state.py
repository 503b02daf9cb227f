"""The state of a run, read from its folder: how far it is, its score, and in plain words what cannot be shown.

Nothing here assumes that a file is there, complete or of this version. A run's process cannot be seen from its folder, so one
counts as running while its files change (`progress.json` every few seconds).
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from paras2s import __version__
from paras2s.configs.schema.run import DISTILLED, RunConfig
from paras2s.errors import DataError, one_line
from paras2s.run import ORIGIN, PROGRESS, RESOLVED
from paras2s.statistics.means import CERTAIN_FROM
from paras2s.studio.folders import Folders, FoundRun
from paras2s.utils.io import read_json, reading

State = Literal["running", "finished", "stopped", "unreadable"]
# Files whose changes show that a run is alive; whoever shows a bar writes one of them every few seconds.
SIGNS = (
    RESOLVED, PROGRESS, "metrics.jsonl", "warmup.jsonl", "timings.json", "data", "data/queries", "data/answers", "sft",
    "reward", "checkpoints/sft", "checkpoints/align", "rollouts", "validation", "aligned", "bench", "samples",
)  # fmt: skip
# The sign that a stage is done, in the order of the stages.
STAGE_ENDS = (
    ("data", "data/queries.parquet"),
    ("warmup", "sft/policy.json"),
    ("distill", "reward/reward_model.json"),
    ("align", "aligned/trainer.json"),
    ("bench", "bench/summary.json"),
)
# Longer than a stage is silent between two bars on a small machine; a run of slow steps is given four of them.
SILENT_S = 180.0
TAIL_BYTES = 65_536


@dataclass(frozen=True)
class Interval:
    """A mean with the ends of its 95 % interval; None if the error is unknown."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RunSummary:
    """A run as the list shows it. `problems` are plain messages about what could not be read; None is what is not known.

    `doing` says what a running stage is at ("answers judged 336 of 786"), `left_s` how long that takes yet.
    """

    address: str
    name: str
    state: State
    stage: str | None
    problems: tuple[str, ...]
    preset: str | None
    seed: int | None
    commit: str | None
    version: str | None
    steps_done: int
    steps: int | None
    doing: str | None
    left_s: float | None
    score: Interval | None
    minutes: float | None
    cost_usd: float | None
    changed_s: float


class RunFiles:
    """The files of one run. What cannot be read is a message in `problems` and None."""

    def __init__(self, folders: Folders, address: str) -> None:
        self.folders, self.address = folders, address
        self.problems: list[str] = []

    def path(self, name: str) -> Path | None:
        """Return the path of an existing file or folder inside the run."""
        try:
            path = self.folders.path(self.address, name)
        except DataError as error:
            self._say(str(error))
            return None
        return path if path.exists() else None

    def json(self, name: str) -> dict[str, Any] | None:
        """Return a JSON object; a missing file is no problem."""
        if (path := self.path(name)) is None:
            return None
        try:
            value = read_json(path)
        except DataError as error:
            self._say(f"{name}: {str(error).removeprefix(f'{path}: ')}")
            return None
        if not isinstance(value, dict):
            self._say(f"{name}: holds no object")
            return None
        return value

    def config(self) -> dict[str, Any]:
        """Return the resolved config as plain values; {} where it cannot be read."""
        if (path := self.path(RESOLVED)) is None:
            self._say(f"{RESOLVED}: missing")
            return {}
        try:
            return read_config(path, path.stat().st_mtime_ns)
        except (OSError, DataError) as error:
            self._say(f"{RESOLVED}: {error}")
            return {}

    def _say(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


@functools.lru_cache(maxsize=4096)
def read_config(path: Path, changed_ns: int) -> dict[str, Any]:
    """Return a resolved config's values; `changed_ns` renews the cache. Raises DataError: unreadable, or not settings."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with reading(RESOLVED):
        values = yaml.load(path.read_text(encoding="utf-8"), loader)
    if not isinstance(values, dict):
        raise DataError("is empty or cut off; the run was stopped while it was being written")
    return values


def last_row(path: Path) -> dict[str, Any] | None:
    """Return the last complete row of a log, without reading the rest of it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return row
    return None


def _needs_distillation(config: Mapping[str, Any]) -> bool:
    """Return whether a run makes a reward model; true where its config does not say."""
    reward = config.get("reward")
    sources = reward.get("sources") if isinstance(reward, dict) else None
    kinds = [source.get("kind") for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    return not kinds or any(kind in DISTILLED for kind in kinds)


def read_state(folders: Folders, address: str, now_s: float) -> RunSummary:
    """Return a run's state at `now_s` (seconds since 1970). Raises OutsideError: the address is not in the given folders."""
    folder = folders.path(address)
    files = RunFiles(folders, address)
    config, origin = files.config(), files.json(ORIGIN) or {}
    version = _text(origin.get("version"))
    _check_version(files, config, version)
    done = [name for name, sign in STAGE_ENDS if files.path(sign) is not None]
    left_out = () if _needs_distillation(config) else ("distill",)
    stage = next((name for name, _ in STAGE_ENDS if name not in (*done, *left_out)), None)
    metrics = files.path("metrics.jsonl")
    row = (last_row(metrics) if metrics else None) or {}
    step_s = _number(row.get("seconds"))
    changed_s = max((_changed_s(path) for name in SIGNS if (path := files.path(name)) is not None), default=0.0)
    align = config.get("align")
    steps = align.get("steps") if isinstance(align, dict) and isinstance(align.get("steps"), int) else None
    steps_done = int(row["step"]) + 1 if isinstance(row.get("step"), int) else 0
    # A clock that was set back must not keep a dead run alive for ever.
    silent_s = abs(now_s - changed_s)
    state: State = "stopped"
    if not config:
        state = "unreadable"
    elif stage is None:
        state = "finished"
    elif silent_s < max(SILENT_S, 4 * (step_s or 0.0)):
        state = "running"
    summary, agreement = files.json("bench/summary.json"), files.json("reward/agreement.json") or {}
    timings = files.json("timings.json") or {}
    doing, left_s = doing_now(files.json(PROGRESS) or {}) if state == "running" else (None, None)
    if state == "running" and stage == "align" and steps and step_s:
        left_s = (steps - steps_done) * step_s
    seconds = [value for value in map(_number, timings.values()) if value is not None]
    return RunSummary(
        address=address,
        name=folder.name,
        state=state,
        stage=stage,
        problems=tuple(files.problems),
        preset=_text(config.get("name")),
        seed=config.get("seed") if isinstance(config.get("seed"), int) else None,
        commit=_text(origin.get("commit")),
        version=version,
        steps_done=steps_done,
        steps=steps,
        doing=doing,
        left_s=left_s,
        score=score_of(summary or {}, "aligned"),
        minutes=sum(seconds) / 60 if seconds else None,
        cost_usd=_number(agreement.get("cost_usd")),
        changed_s=changed_s,
    )


def listed_state(folders: Folders, run: FoundRun, now_s: float) -> RunSummary:
    """Return a run's state for a list, which one unreadable file must not take away."""
    try:
        return read_state(folders, run.address, now_s)
    except Exception as error:
        unknown: dict[str, Any] = {field.name: None for field in fields(RunSummary)}
        problem = f"cannot be read ({type(error).__name__}: {one_line(error)[:200]})"
        known = {"address": run.address, "name": run.name, "state": "unreadable", "problems": (problem,)}
        return RunSummary(**unknown | known | {"steps_done": 0, "changed_s": run.changed_s})


def doing_now(progress: dict[str, Any]) -> tuple[str | None, float | None]:
    """Return the work that a run says it does, in words, and the seconds left of it; None if it does not say."""
    name, done, total = (progress.get(key) for key in ("name", "done", "total"))
    if not isinstance(name, str) or not isinstance(done, int) or not isinstance(total, int):
        return None, None
    return f"{name} {done} of {total}", _number(progress.get("left_s"))


def _changed_s(path: Path) -> float:
    """Return the time of a file's last change; 0 if it has gone meanwhile, as the end of a stage removes one."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def score_of(summary: dict[str, Any], system: str) -> Interval | None:
    """Return a system's overall score in a bench's summary."""
    entry = summary.get(system)
    overall = entry.get("overall") if isinstance(entry, dict) else None
    return interval_of(overall) if isinstance(overall, dict) else None


def interval_of(estimate: dict[str, Any]) -> Interval | None:
    """Return a stored mean and standard error as an interval; None without a mean."""
    mean, error = _number(estimate.get("mean")), _number(estimate.get("standard_error"))
    if mean is None:
        return None
    return Interval(mean, *((None, None) if error is None else (mean - CERTAIN_FROM * error, mean + CERTAIN_FROM * error)))


def _check_version(files: RunFiles, config: dict[str, Any], version: str | None) -> None:
    """Add a problem where the settings are not of this version."""
    if not config:
        return
    try:
        RunConfig.model_validate(config)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        newer = version is not None and _numbers(version) > _numbers(__version__)
        by = f"made by version {version}, newer than this one ({__version__})" if newer else "made by another version"
        files.problems.append(f"{by}: its setting {key} does not fit here; what can be read is shown")


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isascii() and part.isdigit())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
