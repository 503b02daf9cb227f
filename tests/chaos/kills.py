"""The campaign of kills: a run in miniature, killed at random moments of every stage, ends as the undisturbed run does.

Each trial starts one stage from the undisturbed run's files of the stages before, kills the command or a process below it with
signal 9 at a moment drawn over the stage's whole time, and gives the same command again until it ends well. Every file must
then be the undisturbed run's, no process and no folder of Ray may be left, and no traceback may be printed. The second round of
trials kills nothing: the run is on a disk of its own that is read-only, then full in the midst of the stage, then has room.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = """
name: chaos
run_dir: run
cache_dir: cache
data: {categories: [sarcasm], demonstration_contrasts: 2, preference_contrasts: 2, rl_contrasts: 2, validation_contrasts: 1,
  test_contrasts: 1, demonstration_speakers: 1, answers_per_query: 1, answer_takes: 1}
policy: {hidden_size: 32, intermediate_size: 48, num_layers: 2, tap_layer: 0, max_answer_steps: 16, text_pieces: 300}
warmup: {demonstration_contrasts: 2, steps: 30, batch_size: 4}
distill: {answers_per_query: 2, degenerate_answers: 2, steps: 60, batch_size: 8, hidden_size: 16, layers: 1}
align:
  steps: 6
  checkpoint_every: 2
  evaluate_every: 3
  sampling: {queries_per_step: 2, group_size: 3}
  objective: {groups_per_update: 2}
  optimizer: {warmup_steps: 1}
bench: {answers_per_query: 1}
"""
VERBS = {
    "data": ("data", "run.yaml"),
    "warmup": ("warmup", "run.yaml"),
    "distill": ("distill", "run.yaml", "--anyway"),
    "align": ("align", "run.yaml", "--resume", "--anyway"),
    "bench": ("bench", "contrasts", "run.yaml"),
}
# How long something took, who holds the folder, and what tells of the machine.
OWN_FILES = ("took.json", "timings.json", "timeline.jsonl", "origin.json", "progress.json", ".lock", "resources.json")
OWN_KEYS = ("seconds", "took", "latency", "wall_s", "per_s", "created", "path")
# Longer than any stage takes on a machine with other work.
LONGEST_S, GONE_WITHIN_S = 1800.0, 20.0
# Names by which a process of a run is known among the command's descendants.
VICTIMS = {
    "gcs_server": "Ray's GCS", "raylet": "raylet", "ray::": "a worker or agent of Ray",
    "resource_tracker": "Python's tracker of semaphores", "multiprocessing": "a worker of the pool",
}  # fmt: skip
DRIVER, NOTHING = "the command", "nothing: the command had ended"
MARK = "PARAS2S_CHAOS"
# What a disk in memory gives out at once.
PAGE = 4096


def killed_for_memory() -> int:
    """Return how many processes the kernel has killed for memory since this machine's start."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines())
    return int(counters.get("oom_kill", 0))


def commit() -> str:
    """Return the commit that is measured."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=120).stdout.strip() or "unknown"


@dataclass
class KillsResult:
    """Kills by stage and by victim, refusing disks by stage, and every failure; `ended` says why the campaign ended early."""

    stages: Counter[str] = field(default_factory=Counter)
    victims: Counter[str] = field(default_factory=Counter)
    disks: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    ended: str = ""

    def add(self, other: KillsResult) -> None:
        """Add another result's kills, disks and failures."""
        self.stages += other.stages
        self.victims += other.victims
        self.disks += other.disks
        self.failures += other.failures


class Trial:
    """A folder with a run, a mark in the environment of all its processes, and a folder of temporary files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.mark = f"{os.getpid()}-{self.temporary.name}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.yaml").write_text(CONFIG, encoding="utf-8")

    def start(self, stage: str) -> subprocess.Popen[bytes]:
        """Start a stage's command; what it says goes to a file."""
        environment = os.environ | {
            "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(self.temporary), MARK: self.mark, "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with (self.folder / "said.txt").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "paras2s", *VERBS[stage]], cwd=self.folder, env=environment, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip

    def finish(self, stage: str) -> float:
        """Run a stage to its end; return the seconds it took."""
        started = time.monotonic()
        process = self.start(stage)
        try:
            code = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"{stage} did not end within {LONGEST_S:.0f} s") from None
        assert code == 0, f"{stage} ended with {code}: {self.last_line()}"
        return time.monotonic() - started

    def said(self) -> str:
        """Return all that the commands said."""
        path = self.folder / "said.txt"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def last_line(self) -> str:
        """Return the end of the last line that the commands said."""
        lines = self.said().split("\n")
        return next((line.strip()[-200:] for line in reversed(lines) if line.strip()), "nothing")

    def processes(self) -> dict[int, str]:
        """Return the processes with this trial's mark, with their command lines."""
        found: dict[int, str] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
                # Ray's agents write their name over their environment.
                if marked or any(os.readlink(path).startswith(str(self.temporary)) for path in (folder / "fd").iterdir()):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
        return found

    def end(self) -> None:
        """End every process of this trial."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def left(self) -> list[str]:
        """Return what is left of a trial after a while: processes, and folders of Ray."""
        until = time.monotonic() + GONE_WITHIN_S
        while (alive := self.processes()) and time.monotonic() < until:
            time.sleep(0.2)
        folders = [path.name for path in self.temporary.glob("*ray*")]
        return [f"process left: {line[:80]}" for line in alive.values()] + [f"folder left: {name}" for name in folders]

    def disk(self, options: str) -> None:
        """Mount a disk at the run's folder, or change it."""
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", self.folder / "run"], check=True, timeout=60)

    def close(self, failed: bool) -> None:
        """Remove everything; what a failed trial has made stays as long as the campaign's folder."""
        self.end()
        if os.path.ismount(self.folder / "run"):
            try:
                if failed:
                    shutil.copytree(self.folder / "run", self.folder / "run of the disk")
            finally:
                subprocess.run(["umount", "--lazy", self.folder / "run"], check=True, timeout=60)
        shutil.rmtree(self.temporary, ignore_errors=True)
        if not failed:
            shutil.rmtree(self.folder, ignore_errors=True)


def victim_of(trial: Trial, driver: int, draw: np.random.Generator) -> tuple[str, int]:
    """Draw the kind of a victim among those alive, then one of the kind."""
    kinds: dict[str, list[int]] = {DRIVER: [driver]}
    for pid, line in trial.processes().items():
        kind = next((kind for name, kind in VICTIMS.items() if name in line), None)
        if kind and pid != driver:
            kinds.setdefault(kind, []).append(pid)
    # Half of the kills are the command's own.
    others = sorted(set(kinds) - {DRIVER})
    kind = DRIVER if not others or draw.random() < 0.5 else others[int(draw.integers(len(others)))]
    return kind, kinds[kind][int(draw.integers(len(kinds[kind])))]


def kill_in(trial: Trial, stage: str, after_s: float, draw: np.random.Generator) -> str:
    """Start a stage and kill one of its processes after a while; return which, once the command has ended."""
    process = trial.start(stage)
    try:
        process.wait(after_s)
        return NOTHING
    except subprocess.TimeoutExpired:
        kind, pid = victim_of(trial, process.pid, draw)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        kind = f"{kind}, which had ended"
    try:
        code = process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        trial.end()
        raise AssertionError(f"the command did not end after the death of {kind}") from None
    allowed = (-signal.SIGKILL,) if kind == DRIVER else (0, 2)
    assert code in allowed, f"{code} after the death of {kind}: {trial.last_line()}"
    return kind


def without_time(value: Any) -> Any:
    """Return a JSON value without the keys that tell how long something took."""
    if isinstance(value, dict):
        return {key: without_time(one) for key, one in value.items() if not any(word in key for word in OWN_KEYS)}
    return [without_time(one) for one in value] if isinstance(value, list) else value


def content(path: Path) -> Any:
    """Return what must be equal of a file."""
    if path.suffix == ".json":
        return without_time(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".jsonl":
        return [without_time(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return path.read_bytes()


def files_of(run: Path) -> dict[str, Path]:
    """Return a run's files that must be equal, by their names in it."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name not in OWN_FILES)
    return {path.relative_to(run).as_posix(): path for path in files}


def differences(found: Path, expected: Path) -> list[str]:
    """Return how two runs' folders differ."""
    own, right = files_of(found), files_of(expected)
    apart = [f"{name}: missing" for name in sorted(right.keys() - own.keys())]
    apart += [f"{name}: not of the undisturbed run" for name in sorted(own.keys() - right.keys())]
    return apart + [
        f"{name}: differs" for name in sorted(own.keys() & right.keys()) if content(own[name]) != content(right[name])
    ]


@dataclass(frozen=True)
class Undisturbed:
    """The undisturbed run's folder after each stage, and the seconds of each stage's command."""

    folder: Path
    took_s: dict[str, float]

    def after(self, stage: str) -> Path:
        """Return the run's folder as it was after a stage."""
        return self.folder / "after" / stage


def undisturbed(folder: Path, stages: Sequence[str], jobs: int = 1) -> Undisturbed:
    """Run all stages once, and keep the run as it is after each.

    With `jobs` the same run is made so many times at once, so that its seconds are those under the load of the trials; all of
    them must end alike.
    """

    def run(number: int) -> tuple[Path, dict[str, float]]:
        own = folder / f"undisturbed-{number}" if number else folder
        trial, took_s = Trial(own / "whole"), {}
        for stage in stages:
            took_s[stage] = trial.finish(stage)
            shutil.copytree(trial.folder / "run", own / "after" / stage)
        assert trial.left() == []
        return own / "after", took_s

    with ThreadPoolExecutor(jobs) as pool:
        (_, took_s), *others = pool.map(run, range(jobs))
    for after, _ in others:
        assert (apart := [differences(after / stage, folder / "after" / stage) for stage in stages]) == [[]] * len(stages), (
            apart
        )
    return Undisturbed(folder, took_s)


def kills_of(trial: Trial, base: Undisturbed, stage: str, draw: np.random.Generator, result: KillsResult) -> None:
    """Kill one to three times in a stage."""
    for _ in range(int(draw.integers(1, 4))):
        victim = kill_in(trial, stage, float(draw.uniform(0.3, 1.0)) * base.took_s[stage], draw)
        result.stages[stage] += victim != NOTHING
        result.victims[victim] += 1


def size_of(folder: Path) -> int:
    """Return the bytes of a folder on a disk of pages."""
    return sum(-(-path.stat().st_size // PAGE) * PAGE for path in folder.rglob("*") if path.is_file())


def refusals_of(trial: Trial, base: Undisturbed, stage: str, draw: np.random.Generator, result: KillsResult) -> None:
    """Start a stage on a disk that is read-only, and on one that has room for a part of what the stage writes."""
    run, before = trial.folder / "run", 0
    if run.is_dir():
        before = size_of(run)
        run.rename(trial.folder / "before")
    run.mkdir()
    room = before + int(draw.uniform(0.1, 0.9) * (size_of(base.after(stage)) - before))
    trial.disk(f"size={max(PAGE, room // PAGE * PAGE)}")
    if before:
        shutil.copytree(trial.folder / "before", run, dirs_exist_ok=True)
    # The second: there is no room for a file, or the run's checkpoints will not fit.
    for options, said in (("remount,ro", "the disk is read-only"), ("remount,rw", r"free (disk space|some)")):
        trial.disk(options)
        code = trial.start(stage).wait(LONGEST_S)
        assert code == 2, f"{code} on a disk that refuses: {trial.last_line()}"
        assert re.search(said, trial.said()), f"not said: {said!r}, but: {trial.last_line()}"
    trial.disk("remount,size=4g")
    result.disks[stage] += 1


Trouble = Callable[[Trial, Undisturbed, str, np.random.Generator, KillsResult], None]


def without_tracker(said: str) -> str:
    """Return what was said without the tracebacks of Python's own tracker of semaphores, whose predecessor was killed."""
    return re.sub(
        r'Traceback \(most recent call last\):\n  File ".*/multiprocessing/resource_tracker\.py".*\n +cache\[.*\n'
        r"(?: +[~^]+\n)?KeyError: .*",
        "",
        said,
    )


def attempt(base: Undisturbed, stage: str, seed: int, trouble: Trouble = kills_of) -> KillsResult:
    """Make one trial: trouble in a stage, then its end."""
    draw, result = np.random.default_rng([seed, sum(stage.encode())]), KillsResult()
    killed_before = killed_for_memory()
    trial, before = Trial(base.folder / f"trial-{stage}-{seed}"), list(VERBS)[list(VERBS).index(stage) - 1]
    if stage != "data":
        shutil.copytree(base.after(before), trial.folder / "run")
    # Sentences once spoken are not spoken again; a stage of data with half of them begins in their midst.
    shutil.copytree(base.folder / "whole" / "cache", trial.folder / "cache", copy_function=shutil.copy2)
    try:
        trouble(trial, base, stage, draw, result)
        trial.finish(stage)
        faults = [*differences(trial.folder / "run", base.after(stage)), *trial.left()]
        faults += ["a traceback is printed"] if "Traceback (most recent call last)" in without_tracker(trial.said()) else []
    except (AssertionError, subprocess.SubprocessError) as error:
        faults = [str(error)]
    if faults and (n_killed := killed_for_memory() - killed_before):
        # Else a command that ended by signal 9 is a riddle.
        faults.insert(0, f"meanwhile the kernel killed {n_killed} processes for memory")
    result.failures += [f"{stage}, seed {seed}: {fault}" for fault in faults[:5]]
    trial.close(failed=bool(faults))
    return result


def run_kills(
    kills: int,
    seed: int,
    folder: Path,
    stages: Sequence[str] = tuple(VERBS),
    minutes: float = math.inf,
    jobs: int = 1,
    tell: Callable[[KillsResult], None] = lambda result: None,
) -> KillsResult:
    """Kill at least `kills` times, stage after stage in turn, but start no trial after `minutes`; `tell` after each trial.

    With `jobs` that many trials run at once, which is also two runs at once on one machine.
    """
    result, until, merging = KillsResult(), time.monotonic() + 60 * minutes, threading.Lock()
    base = undisturbed(folder, list(VERBS)[: 1 + max(list(VERBS).index(stage) for stage in stages)], jobs)

    def trial(number: int) -> None:
        if sum(result.stages.values()) >= kills:
            return
        if time.monotonic() > until:
            result.ended = f"the {minutes:g} minutes were over"
            return
        trouble = refusals_of if number // len(stages) == 1 else kills_of
        made = attempt(base, stages[number % len(stages)], seed + number, trouble)
        with merging:
            result.add(made)
            print(f"{sum(result.stages.values())} kills, failures: {result.failures}", file=sys.stderr, flush=True)
            tell(result)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(trial, range(kills + len(stages))))
    tell(result)
    return result


def kills_section(result: KillsResult, n_kills: int, seed: int, jobs: int) -> str:
    """Return the part of the page on kills."""
    stages = [f"| {name} | {result.stages[name]} | {result.disks[name]} |" for name in VERBS]
    victims = [f"| {name} | {number} |" for name, number in result.victims.most_common()]
    failures = [textwrap.fill(f"- {line}", 118, subsequent_indent="  ") for line in result.failures[:50]] or ["No failure."]
    n_ran = sum(result.stages.values())
    options = f"--kills {n_kills} --jobs {jobs} --seed {seed}"
    short = f" The others were not run: {result.ended}." if result.ended else ""
    return "\n".join([
        "## Kills", "",
        "A run in miniature, with Ray, whose processes are killed with signal 9 at random moments of every stage, one to three",
        "times before the same command may end; or its disk is read-only, then full in the midst of a stage, then has room.",
        "Then every file (data, weights, logs, tables) must be that of the undisturbed run, but for times; no process and no",
        "folder of Ray may be left, and no traceback printed.", "", "```bash",
        f"python tests/chaos/campaign.py --only kills {options} --out docs/reliability.md", "```", "",
        f"Commit {commit()}; {n_ran} of {n_kills} kills.{short}", "",
        "| stage | kills | disks that refused |", "|---|---|---|", *stages, "",
        "| killed | times |", "|---|---|", *victims, "", *failures, "",
    ])  # fmt: skip
