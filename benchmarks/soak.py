"""A long run of a tiny Kimi-Audio with every role: whether memory stays flat, files stay bounded and stops change nothing.

Two rollout workers, two learner ranks, a speak worker and a judge. The same job runs twice: once through, and once stopped so
many times between two checkpoints and resumed. Memory is each process's own (PSS), looked at after every step.

    python benchmarks/soak.py [--steps 2000] [--prompts 10000] [--resumes 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from figures import REPOSITORY, Figure, add_json_option, write_figures

sys.path.insert(0, str(REPOSITORY / "tests"))

CHECKPOINT_EVERY = 10
# Steps in which pools, caches and allocators fill.
SETTLED_STEPS = 100
# What the job keeps that grows with its steps by design: the log, the timeline, rollouts and answers to validation queries.
GROWING = ("metrics.jsonl", "timeline.jsonl", "rollouts", "validation")
MEMORY = "memory.jsonl"


class Stopped(Exception):
    """In place of a signal, at a step whose work is not saved."""


def run_job(folder: Path, steps: int, prompts: int, stop: int | None) -> None:
    """In a process of its own: goes on from the newest checkpoint, and notes the memory of every process after each step."""
    from tiny.job import counts, tiny_kimi_job

    from paras2s.grpo import GRPOJob, train_grpo
    from paras2s.utils.process_memory import descendants, proportional_gib

    roles = counts(rollout=2, speak=1, reward=1, learner=2)
    job = tiny_kimi_job(
        folder, roles, prompts + 2, 30, steps=steps, group_size=4, queries_per_step=4, micro_batch_size=8,
        checkpoint_every=CHECKPOINT_EVERY, evaluate_every=50,
    )  # fmt: skip
    log_and_checkpoint = GRPOJob.log_and_checkpoint

    def watched(job: GRPOJob, workers: Any, step: int, *more: Any) -> None:
        if step == stop:
            raise Stopped
        log_and_checkpoint(job, workers, step, *more)
        with (folder / MEMORY).open("a") as log:
            for pid in descendants(os.getpid()):
                if gib := proportional_gib(pid):
                    log.write(json.dumps({"step": step, "process": f"{name_of(pid)} {pid}", "mib": 1024 * gib}) + "\n")

    GRPOJob.log_and_checkpoint = watched  # type: ignore[method-assign]
    train_grpo(job, resume=True)


def name_of(pid: int) -> str:
    """A process by the name that Ray gives it, else by its program."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return "ended"
    return words[0] if words[0].startswith("ray::") else Path(words[0]).name


def run_stopped(folder: Path, steps: int, prompts: int, stops: list[int]) -> None:
    """The job in one process for each stop, and one that ends it."""
    for stop in [*stops, None]:
        command = [sys.executable, __file__, "--child", str(folder), "--steps", str(steps), "--prompts", str(prompts)]
        done = subprocess.run([*command, *([] if stop is None else ["--stop", str(stop)])], check=False)
        if (done.returncode == 0) != (stop is None):
            sys.exit(f"{folder}: the run that was to end at step {stop or steps} ended with {done.returncode}")


def growth_of(folder: Path) -> dict[str, float]:
    """Of each process that was there from the settled steps to the end: its last memory over its first, less 1."""
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for line in (folder / MEMORY).read_text().splitlines():
        row = json.loads(line)
        if row["step"] >= SETTLED_STEPS:
            seen[row["process"]].append((row["step"], row["mib"]))
    last = max((rows[-1][0] for rows in seen.values()), default=0)
    grown = {}
    for process, rows in seen.items():
        if rows[-1][0] == last and len(rows) >= 10:
            tenth = len(rows) // 10
            first, end = (statistics.median(mib for _, mib in part) for part in (rows[:tenth], rows[-tenth:]))
            grown[process] = end / first - 1
    return grown


def bounded_bytes(folder: Path) -> int:
    """Bytes of what must not grow with the steps."""
    run = folder / "run"
    return sum(
        path.stat().st_size for path in run.rglob("*") if path.is_file() and path.relative_to(run).parts[0] not in GROWING
    )


def differences(one: Path, other: Path) -> list[str]:
    """What two runs do not have in common: log rows, and tensors of the aligned policy."""
    from safetensors.numpy import load_file

    from paras2s.policy.weights import shard_files
    from paras2s.utils.io import read_jsonl

    rows = [[{k: v for k, v in row.items() if not k.startswith("seconds")} for row in read_jsonl(folder / "run/metrics.jsonl")]
            for folder in (one, other)]  # fmt: skip
    found = [f"step {a['step']}" for a, b in zip(*rows, strict=True) if a != b]
    tensors = [
        {k: v for path in shard_files(folder / "run/aligned") for k, v in load_file(path).items()} for folder in (one, other)
    ]
    return found + [name for name, value in tensors[0].items() if not np.array_equal(value, tensors[1][name])]


def main() -> None:
    """Runs the job straight and stopped, and says what grew and what differs; exits 1 where something is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--resumes", type=int, default=5)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=int, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    if options.child:
        run_job(options.child, options.steps, options.prompts, options.stop)
        return
    # Behind a checkpoint, so that some steps are done twice.
    stops = [
        options.steps * n // (options.resumes + 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY + 3
        for n in range(1, options.resumes + 1)
    ]
    with tempfile.TemporaryDirectory(prefix="paras2s-soak-") as held:
        straight, stopped = Path(held) / "straight", Path(held) / "stopped"
        run_stopped(straight, options.steps, options.prompts, [])
        run_stopped(stopped, options.steps, options.prompts, stops)
        grown, apart = growth_of(straight), differences(straight, stopped)
        size = bounded_bytes(straight), bounded_bytes(stopped)
    for process, share in sorted(grown.items(), key=lambda item: -item[1]):
        print(f"{process}: {100 * share:+.1f} % from step {SETTLED_STEPS} to {options.steps}")
    if not grown:
        print(f"no process was seen at enough steps behind {SETTLED_STEPS}: say nothing of memory")
    print(f"files that must not grow: {size[0] / 2**20:.1f} MiB, resumed {len(stops)} times {size[1] / 2**20:.1f} MiB")
    print(f"resumed and straight differ in: {', '.join(apart) or 'nothing'}")
    most = max(grown.values(), default=None)
    figures = [Figure("most that a process grew", "%", [100 * most], at_most=5)] if most is not None else []
    write_figures(options.json, [*figures, Figure("differences", "", [len(apart)], at_most=0)], grown=grown)
    sys.exit(1 if apart or (most is not None and most > 0.05) else 0)


if __name__ == "__main__":
    main()
