"""A long run of a tiny Kimi-Audio with every role: whether memory stays flat, files stay bounded and stops change nothing.

Two rollout workers, two learner ranks, a speak worker and a judge. The same job runs twice: once through, and once stopped so
many times between two checkpoints and resumed, with --kill-every N a worker killed every N steps as well. Every figure and
weight of the two is compared, with --kill-every the questions and seeds of each step's answers. Of every process its own memory
is noted, and how many files and sockets it has open; of the steps, how long they take. With --folder both runs stay there, and
the same command goes on with them, whenever it was stopped.

    python benchmarks/soak.py [--steps 2000] [--prompts 10000] [--resumes 5] [--kill-every N] [--folder FOLDER [--so-far]]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from figures import REPOSITORY, Figure, add_json_option, write_figures

TESTS = REPOSITORY / "tests"
sys.path.insert(0, str(TESTS))

CHECKPOINT_EVERY, LOOK_EVERY = 25, 5
# Steps after its start in which a process fills its pools, caches and allocators.
SETTLED_STEPS = 100
MOST_GROWTH = 0.05
# What the job keeps that grows with its steps by design: the log, the timeline, rollouts and answers to validation queries.
GROWING = ("metrics.jsonl", "timeline.jsonl", "rollouts", "validation")
# The newest two and the best by validation. They are counted, and not among the bytes that must not grow.
CHECKPOINTS, MOST_CHECKPOINTS = "checkpoints", 3
# Of less than this, a page or a file more is no growth.
FLOOR = {"mib": 20.0, "open": 20.0, "sockets": 20.0, "step_s": 0.1}
# What is looked at, with its unit, and the most that it may grow; a step is timed on a machine that has other work.
LOOKED_AT = {
    "mib": ("memory", " MiB", MOST_GROWTH),
    "open": ("open files", "", MOST_GROWTH),
    "sockets": ("sockets", "", MOST_GROWTH),
    "step_s": ("time", " s", 0.25),
}
ROLES = ("ray::RolloutWorker", "ray::RewardWorker", "ray::SpeakWorker")
LOOKS, STOPS, SETTINGS = "looks.jsonl", "stops.jsonl", "soak.json"


class Stopped(Exception):
    """In place of a signal, at a step whose work is not saved."""


def kill_a_worker(number: int) -> None:
    """Kill one of the workers that are replaced, of each role in turn."""
    from paras2s.utils.process_memory import descendants

    role = ROLES[number % len(ROLES)]
    pids = [pid for pid in descendants(os.getpid()) if Path(f"/proc/{pid}").exists() and name_of(pid) == role]
    for pid in pids[:1]:
        os.kill(pid, signal.SIGKILL)


def run_job(folder: Path, steps: int, prompts: int, stop: int | None, kill_every: int) -> None:
    """In a process of its own: goes on from the newest checkpoint, and looks at every process now and then."""
    # Ray's workers make the clips, and must find their module.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    from tiny.job import Noise, counts, tiny_kimi_run

    from paras2s import grpo
    from paras2s.align.job import GRPOJob
    from paras2s.reward.sources.base import RewardQuestion
    from paras2s.rollout.prompts import PromptFiles
    from paras2s.types import Query
    from paras2s.utils.io import append_jsonl

    # Short answers: what counts is the number of steps, not what one of them does.
    run = tiny_kimi_run(
        folder, counts(rollout=2, speak=1, reward=1, learner=2), 12, steps=steps, group_size=3, queries_per_step=4,
        micro_batch_size=8, checkpoint_every=CHECKPOINT_EVERY, evaluate_every=50,
    )  # fmt: skip
    queries = [Query(f"q{n}", f"q{n}", None, None, "rl", "noise", str(n), 0.3, "hello", None, None) for n in range(prompts + 2)]
    questions = [RewardQuestion(query.id, None, query.transcript) for query in queries]
    # The two runs have one folder of prompts: they are named by their content.
    learned, held = (PromptFiles(folder.parent / "prompts", Noise(), part) for part in (queries[:-2], queries[-2:]))
    job = GRPOJob(run, learned, questions[:-2], held, questions[-2:], lambda prompt, _: prompt)
    finish_step = grpo.finish_step
    done: list[float] = []
    parent = os.getppid()

    def watched(job: GRPOJob, workers: Any, step: int, *more: Any) -> None:
        if step == stop:
            append_jsonl(folder / STOPS, {"step": step})
            raise Stopped
        if os.getppid() != parent:
            # The soak was ended from outside, and another may go on with this folder.
            raise Stopped
        finish_step(job, workers, step, *more)
        done.append(time.monotonic())
        if kill_every and step % kill_every == kill_every - 1:
            kill_a_worker(step // kill_every)
        if step % LOOK_EVERY == 0:
            for row in look(folder / "run"):
                append_jsonl(folder / LOOKS, {"step": step, **row})
            if len(done) > LOOK_EVERY:
                step_s = (done[-1] - done[-1 - LOOK_EVERY]) / LOOK_EVERY
                append_jsonl(folder / LOOKS, {"step": step, "of": f"a step of {folder.name}", "step_s": step_s})
        if step % CHECKPOINT_EVERY == 0 and len(done) > 1:
            each_s = (done[-1] - done[0]) / (len(done) - 1)
            left_min = each_s * (steps - 1 - step) / 60
            print(f"{folder.name}: step {step} of {steps}, {each_s:.2f} s each, {left_min:.0f} min left", flush=True)

    grpo.finish_step = watched
    grpo.train_grpo(job, resume=True)


# -- what is looked at ------------------------------------------------------------------------------------------------


def look(run: Path) -> Iterator[dict[str, Any]]:
    """Yields a row for this process and each of its descendants, one for Ray's object store, and one for the files.

    `mib` is a process's own memory (anonymous pages). Its share of common pages, which PSS counts, changes as neighbours come
    and go, and to read it the kernel walks all pages and holds the process up. Objects in Ray's store count once.
    """
    from paras2s.utils.process_memory import descendants

    for pid in descendants(os.getpid()):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            files = [os.readlink(file.path) for file in os.scandir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        name = name_of(pid)
        yield {"of": f"{name} {pid}", "mib": mib_of(status, "RssAnon"), "open": len(files),
               "sockets": sum(file.startswith("socket:") for file in files)}  # fmt: skip
        if name == "raylet":
            yield {"of": f"object store of {pid}", "mib": mib_of(status, "RssShmem")}
    yield {"of": "files", "bytes": bounded_bytes(run), "checkpoints": len(list(run.glob(f"{CHECKPOINTS}/*/step_*")))}


def mib_of(status: str, key: str) -> float:
    """A kind of memory from the text of /proc/PID/status."""
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(f"{key}:"))


def name_of(pid: int) -> str:
    """A process by the name that Ray gives it, without what it is doing; else by its program or script."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    if words[0].startswith("ray::"):
        return words[0].split(".")[0]
    return next((Path(word).name for word in words if word.endswith(".py")), Path(words[0]).name)


def bounded_bytes(run: Path) -> int:
    """Bytes of what must not grow with the steps."""
    return sum(
        path.stat().st_size
        for path in run.rglob("*")
        if path.is_file() and path.relative_to(run).parts[0] not in (*GROWING, CHECKPOINTS)
    )


# -- what is found ----------------------------------------------------------------------------------------------------


def growth_of(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, float]:
    """Of everything looked at ten times behind its settled steps: the growth of its median from the first tenth to the last."""
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        if key in row:
            seen[row["of"]].append((row["step"], row[key]))
    grown = {}
    for name, looks in seen.items():
        settled = [value for step, value in looks if step >= looks[0][0] + SETTLED_STEPS]
        if len(settled) >= 10:
            tenth = len(settled) // 10
            first, last = statistics.median(settled[:tenth]), statistics.median(settled[-tenth:])
            grown[name] = (last - first) / max(first, FLOOR[key])
    return grown


def files_of(rows: Sequence[Mapping[str, Any]]) -> tuple[float, int] | None:
    """The growth of bounded files from the settled steps' first half to the second, as a share, and the most checkpoints.

    None where there were no such steps.
    """
    looks = [row for row in rows if row["of"] == "files" and row["step"] >= SETTLED_STEPS]
    half = len(looks) // 2
    if not half:
        return None
    first, last = (max(row["bytes"] for row in part) for part in (looks[:half], looks[half:]))
    return last / first - 1, max(row["checkpoints"] for row in looks)


def differences(one: Path, other: Path) -> list[str]:
    """What two runs do not have in common: log rows, and tensors of the aligned policy."""
    from safetensors.numpy import load_file

    from paras2s.policy.weights import shard_files
    from paras2s.utils.io import read_jsonl

    def logged(run: Path) -> dict[int, dict[str, Any]]:
        rows = [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in read_jsonl(run / "metrics.jsonl")]
        return {row["step"]: row for row in rows}

    rows = logged(one), logged(other)
    steps = sorted(rows[0].keys() | rows[1].keys())
    tensors = [{k: v for path in shard_files(run / "aligned") for k, v in load_file(path).items()} for run in (one, other)]
    names = sorted(tensors[0].keys() | tensors[1].keys())
    return [f"step {step}" for step in steps if rows[0].get(step) != rows[1].get(step)] + [
        name for name in names if not np.array_equal(*(part.get(name, np.zeros(0)) for part in tensors))
    ]


def unequal_steps(one: Path, other: Path) -> list[str]:
    """Name the steps whose sampled answers are of other questions or seeds: what stays equal where a worker is lost.

    The workers that are left sample in batches of another shape, whose sums round otherwise.
    """
    from chaos.cluster import answers_of

    found = answers_of(one), answers_of(other)
    return [name for name in sorted(found[0].keys() | found[1].keys()) if found[0].get(name) != found[1].get(name)]


# -- both runs --------------------------------------------------------------------------------------------------------


def stops_of(steps: int, resumes: int) -> list[int]:
    """Steps at which the second run is stopped: behind a checkpoint, so that some are done twice."""
    return [steps * n // (resumes + 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY + 3 for n in range(1, resumes + 1)]


def run_through(folder: Path, options: argparse.Namespace, stops: Sequence[int]) -> None:
    """The job in one process for each stop that is still to come, and one that ends it; nothing where it has ended."""
    from paras2s.train.checkpoint import COMPLETE

    while not (folder / "run/aligned" / COMPLETE).is_file():
        stop = next((step for step in stops if step not in {row["step"] for row in rows_of(folder / STOPS)}), None)
        command = [sys.executable, __file__, "--child", str(folder), "--steps", str(options.steps)]
        # The straight run is the one that nothing happens to.
        command += ["--kill-every", str(options.kill_every)] if folder.name == "stopped" else []
        command += ["--prompts", str(options.prompts), *([] if stop is None else ["--stop", str(stop)])]
        with (folder / "output.log").open("a") as log:
            ended = subprocess.run(command, check=False, stderr=log).returncode
        if (ended == 0) != (stop is None):
            sys.exit(
                f"{folder}: the run that was to end at step {stop or options.steps} ended with {ended}; see output.log there"
            )


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a log that may not have begun."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def run_both(straight: Path, stopped: Path, options: argparse.Namespace) -> None:
    """Both runs, in folders side by side; their parent holds no other soak.

    Raises:
        SystemExit: it does, or a run failed.
    """
    settings = {key: getattr(options, key) for key in ("steps", "prompts", "resumes", "kill_every")}
    for run in (straight, stopped):
        run.mkdir(parents=True, exist_ok=True)
    held = straight.parent / SETTINGS
    if held.is_file() and json.loads(held.read_text()) != settings:
        sys.exit(f"{held}: this soak is of {held.read_text()}; go on with these, or take another folder")
    held.write_text(json.dumps(settings))
    run_through(straight, options, [])
    run_through(stopped, options, stops_of(options.steps, options.resumes))


def main() -> None:
    """Runs the job straight and stopped, and says what grew and what differs; exits 1 where something is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--resumes", type=int, default=5)
    parser.add_argument("--kill-every", type=int, default=0, help="steps after which a worker of the stopped run is killed")
    parser.add_argument("--folder", type=Path, help="keep both runs there, and go on with those that are there")
    parser.add_argument("--so-far", action="store_true", help="run nothing; say what the runs in --folder have shown")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=int, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    if options.child:
        run_job(options.child, options.steps, options.prompts, options.stop, options.kill_every)
        return
    if options.so_far and not options.folder:
        parser.error("--so-far: name the --folder of a soak that was begun")
    with tempfile.TemporaryDirectory(prefix="paras2s-soak-") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        straight, stopped = folder / "straight", folder / "stopped"
        if not options.so_far:
            run_both(straight, stopped, options)
        looks = [*rows_of(straight / LOOKS), *rows_of(stopped / LOOKS)]
        compare = unequal_steps if options.kill_every else differences
        apart = None if options.so_far else compare(straight / "run", stopped / "run")
        files = files_of(rows_of(straight / LOOKS))
    sys.exit(0 if report(options, looks, files, apart) else 1)


def report(
    options: argparse.Namespace,
    looks: Sequence[Mapping[str, Any]],
    files: tuple[float, int] | None,
    apart: Sequence[str] | None,
) -> bool:
    """Prints and writes what was found; returns whether all is within its bounds. `apart`: None before both ended."""
    grown = {key: growth_of(looks, key) for key in LOOKED_AT}
    figures = [] if apart is None else [Figure("differences", "", [len(apart)], at_most=0)]
    for key, (what, unit, bound) in LOOKED_AT.items():
        for name, share in sorted(grown[key].items(), key=lambda item: -item[1]):
            last = [row[key] for row in looks if row["of"] == name and key in row][-1]
            print(f"{what} of {name}: {last:.{2 if key == 'step_s' else 0}f}{unit}, {100 * share:+.1f} %")
        if grown[key]:
            most = 100 * max(grown[key].values())
            whose = "a step" if key == "step_s" else "a process"
            figures.append(Figure(f"most that the {what} of {whose} grew", "%", [most], at_most=100 * bound))
        else:
            print(f"{what}: nothing was seen ten times behind its first {SETTLED_STEPS} steps")
    if files is not None:
        share, checkpoints = 100 * files[0], files[1]
        print(f"files that must not grow: {share:+.1f} %; at most {checkpoints} checkpoints")
        figures.append(Figure("growth of bounded files", "%", [share], at_most=100 * MOST_GROWTH))
        figures.append(Figure("most checkpoints", "", [checkpoints], at_most=MOST_CHECKPOINTS))
    if apart is not None:
        print(f"resumed {options.resumes} times and straight differ in: {', '.join(apart) or 'nothing'}")
    write_figures(options.json, figures, grown=grown)
    return all(one.at_most is None or one.ours[0] <= one.at_most for one in figures)


if __name__ == "__main__":
    main()
