"""How time and memory of a run's stages grow with queries, answers, steps and parameters: three sizes each, and the exponent.

Every point is a process of its own on the tests' tiny run: speech, recognition, warm-up, distillation, a GRPO step (the pieces
of plan_check.py: sampling, reference, learning) and the bench. Seconds are the work's alone, without imports and loading;
processor seconds include child processes, memory is what the work added in its own process. The exponent is the slope of a
straight line through the logarithms. Left out: Ray, whose start is a fixed cost.

    python benchmarks/growth.py [--only STAGE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from figures import REPOSITORY, add_json_option, processor_s, write_figures

sys.path.insert(0, str(REPOSITORY / "tests"))

# A local slope that differs more than this from the one before it is a bend.
BEND = 0.3
TINY_HIDDEN = 224


@dataclass(frozen=True)
class Row:
    """A stage and what it grows with: three sizes, and the exponent of its time by arithmetic."""

    stage: str
    variable: str
    sizes: tuple[int, int, int]
    expected: str


ROWS = (
    Row("speech, cold", "queries", (8, 16, 32), "1"),
    Row("speech, from the cache", "queries", (8, 16, 32), "1"),
    Row("recognition", "queries", (8, 16, 32), "1"),
    Row("warm-up", "steps", (4, 8, 16), "1"),
    Row("warm-up", "examples a step", (8, 16, 32), "1"),
    Row("warm-up", "hidden size", (128, 256, 512), "1 to 2: vector work, then products"),
    Row("distill", "answers a query", (2, 4, 8), "1"),
    Row("distill", "steps", (100, 200, 400), "1"),
    Row("align step", "queries", (4, 8, 16), "1"),
    Row("align step", "answers a query", (4, 8, 16), "1, less: a prompt is read once"),
    Row("align step", "steps of an answer", (13, 26, 52), "1, attention's part 2"),
    Row("align step", "hidden size", (128, 256, 512), "1 to 2: vector work, then products"),
    Row("bench", "answers a query", (1, 2, 4), "1"),
)


# -- one point, in a process of its own -----------------------------------------------------------------------------------


def takes_of(count: int) -> list[Any]:
    """Sentences to speak, each another one."""
    from paras2s.data_gen.scripted.build import load_contrasts
    from paras2s.data_gen.tts.piper_world import SPEAKERS, USER_STYLES
    from paras2s.data_gen.tts.render import Take

    voice = SPEAKERS["train"]["male"][0]
    return [Take(one.text, voice, USER_STYLES[one.styles[0]], 7) for one in load_contrasts()[:count]]


def speech(folder: Path, size: int, warm: bool) -> Callable[[], object]:
    from paras2s.data_gen.tts.render import render

    cache = folder / "speech" if warm else Path(tempfile.mkdtemp(dir=folder))
    return lambda: render(takes_of(size), cache)


def recognition(folder: Path, size: int) -> Callable[[], object]:
    from paras2s.audio.asr import transcribe
    from paras2s.audio.clip import read_clip
    from paras2s.data_gen.tts.render import render

    clips = [read_clip(one.wav) for one in render(takes_of(size), folder / "speech")]
    transcribe(clips[:1])
    return lambda: transcribe(clips)


def open_tiny(folder: Path, name: str, size: int, **sections: dict[str, Any]) -> tuple[Any, Any]:
    """A run with the tiny run's data and policy, and a folder of its own."""
    from tiny.world import write_run

    from paras2s.data_gen.dataset import load_dataset
    from paras2s.run import open_run

    own = folder / f"{name}-{size}".replace(" ", "-")
    own.mkdir(exist_ok=True)
    path = write_run(own, cache_dir=str(folder / "cache"), **sections)
    run = open_run(path, quiet=True)
    run.folder.mkdir(exist_ok=True)
    for part in ("data", "sft"):
        if not (run.folder / part).exists():
            (run.folder / part).symlink_to(folder / "run" / part)
    return run, load_dataset(run.data_dir)


def warmup(folder: Path, variable: str, size: int) -> Callable[[], object]:
    from paras2s.configs.schema.run import PolicyConfig, WarmupConfig
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.pipeline.demonstrations import learned_demonstrations, make_examples
    from paras2s.policy.registry import NEW_POLICY, policy_class
    from paras2s.train.sft import Warmup

    hidden = size if variable == "hidden size" else TINY_HIDDEN
    dataset = load_dataset(folder / "run" / "data")
    sizes = PolicyConfig(hidden_size=hidden, intermediate_size=2 * hidden)
    policy = policy_class(NEW_POLICY).create(sizes, dataset, [one.clip for one in dataset.of_role("demonstration")], 0)
    steps, batch = size if variable == "steps" else 4, size if variable == "examples a step" else 16
    learner = Warmup(
        policy,
        make_examples(policy, dataset, learned_demonstrations(dataset, WarmupConfig(demonstration_contrasts=1))) * 32,
        WarmupConfig(steps=steps, batch_size=batch),
        0,
    )
    learner.step(0)
    return lambda: [learner.step(step) for step in range(steps)]


def distill(folder: Path, variable: str, size: int) -> Callable[[], object]:
    from paras2s.pipeline.distill import run_distill

    settings = {"steps": size if variable == "steps" else 20, "batch_size": 32, "hidden_size": 64, "degenerate_answers": 2}
    settings["answers_per_query"] = size if variable == "answers a query" else 2
    run, dataset = open_tiny(folder, f"distill-{variable}", size, distill=settings)
    return lambda: run_distill(run, dataset)


def align_step(folder: Path, variable: str, size: int) -> Callable[[], object]:
    from plan_check import Setting, measured_phases

    from paras2s.configs.schema.run import PolicyConfig
    from paras2s.planning.cluster import load_rates

    sizes = {"queries": 8, "answers a query": 8, "steps of an answer": 32, "hidden size": TINY_HIDDEN} | {variable: size}
    hidden, queries = sizes["hidden size"], sizes["queries"]
    policy = PolicyConfig(hidden_size=hidden, intermediate_size=2 * hidden)
    setting = Setting("growth", queries, queries, sizes["answers a query"], sizes["steps of an answer"], policy)
    facts = load_rates().policies["embedded"]
    return lambda: measured_phases(setting, facts, 3)


def bench(folder: Path, size: int) -> Callable[[], object]:
    from paras2s.bench.paras2s.contrasts import run_bench
    from paras2s.reward.reward_model.model import RewardModel

    run, dataset = open_tiny(folder, "bench", size, bench={"answers_per_query": size})
    model = RewardModel.load(folder / "run" / "reward")
    return lambda: run_bench(run, dataset, model, "test", ("sft",))


def prepare(folder: Path, row: Row, size: int) -> Callable[[], object]:
    """The work of one point, loaded and ready."""
    if row.stage.startswith("speech"):
        return speech(folder, size, row.stage.endswith("cache"))
    if row.stage in ("recognition", "bench"):
        return {"recognition": recognition, "bench": bench}[row.stage](folder, size)
    return {"warm-up": warmup, "distill": distill, "align step": align_step}[row.stage](folder, row.variable, size)


def measure_here(folder: Path, row: Row, size: int) -> dict[str, float]:
    """Seconds, processor seconds and memory of one point, in this process."""
    from plan_check import Growth

    from paras2s.utils.process_memory import descendants

    work = prepare(folder, row, size)
    # Pools of workers outlive the work.
    before_s = processor_s(descendants(os.getpid()))
    with Growth() as grown:
        started = time.perf_counter()
        work()
        wall_s = time.perf_counter() - started
    used_s = processor_s(descendants(os.getpid())) - before_s
    return {"size": size, "wall_s": wall_s, "processor_s": used_s, "peak_mib": grown.bytes / 2**20}


def make_world(folder: Path) -> None:
    """The tiny run that all points start from: data, a warmed-up policy, a reward model, and cached speech."""
    from tiny import world

    from paras2s.data_gen.tts.render import render

    config = world.write_run(folder)
    world.make_data(config)
    world.invoke("warmup", config)
    world.invoke("distill", config)
    render(takes_of(max(size for row in ROWS if row.stage.startswith("speech") for size in row.sizes)), folder / "speech")


# -- all points -----------------------------------------------------------------------------------------------------------


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of the straight line through the logarithms, by least squares."""
    import numpy as np

    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-3)), 1)[0])


def fit(row: Row, points: list[dict[str, float]]) -> dict[str, Any]:
    """The row as the table shows it."""
    sizes, seconds = [one["size"] for one in points], [one["processor_s"] for one in points]
    first, second = (slope(sizes[at : at + 2], seconds[at : at + 2]) for at in (0, 1))
    bend = f"at {sizes[1]:g}: {first:.1f}, then {second:.1f}" if abs(second - first) > BEND else ""
    more = {"exponent_s": slope(sizes, seconds), "exponent_mib": slope(sizes, [one["peak_mib"] for one in points])}
    return {**asdict(row), "points": points, **more, "bend": bend}


def run_point(number: int, size: int, folder: Path) -> str:
    """Output of one point's process, whose threads wait asleep, as those of the command line do."""
    command = [sys.executable, __file__, "--point", str(number), str(size), "--world", str(folder)]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"point {number}, {size}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def measure_row(number: int, folder: Path, repeats: int) -> dict[str, Any]:
    """Medians of every size, sizes in turns."""
    row = ROWS[number]
    found: dict[int, list[dict[str, float]]] = {size: [] for size in row.sizes}
    for _ in range(repeats):
        for size in row.sizes:
            found[size].append(json.loads(run_point(number, size, folder).splitlines()[-1]))
    points = [{key: statistics.median(one[key] for one in ones) for key in ones[0]} for ones in found.values()]
    return fit(row, points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted({row.stage for row in ROWS}), metavar="STAGE")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--point", type=int, nargs=2, metavar=("ROW", "SIZE"), help=argparse.SUPPRESS)
    parser.add_argument("--world", type=Path, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    if options.point:
        number, size = options.point
        if number < 0:
            make_world(options.world)
        else:
            print(json.dumps(measure_here(options.world, ROWS[number], size)))
        return
    with tempfile.TemporaryDirectory() as name:
        # A process of its own for this, too: what it loads would count as free memory.
        run_point(-1, 0, Path(name))
        rows = []
        for number, row in enumerate(ROWS):
            if options.only and row.stage not in options.only:
                continue
            found = measure_row(number, Path(name), options.repeats)
            rows.append(found)
            points = [f"{one['size']:g}: {one['processor_s']:.2f} s, {one['peak_mib']:.0f} MiB" for one in found["points"]]
            print(f"{row.stage:24s} {row.variable:20s} {', '.join(points)}; exponent {found['exponent_s']:.2f}", flush=True)
    write_figures(options.json, [], growth=rows)


if __name__ == "__main__":
    main()
