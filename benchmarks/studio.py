"""The studio's waits over a large run, and what keeping rollouts costs a step.

    python benchmarks/studio.py [--steps 2000] [--queries 32] [--group 8]

Makes a synthetic run folder of so many steps of queries x group answers, 52 steps long, by the run's own writer, and measures
the requests that the pages make: the list, the steps of the run, one step at a place that no cache holds, one query through
training and one answer's sound. The eight distinct steps are written once and copied, since only reading is timed there.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from figures import Figure, add_json_option, write_figures
from starlette.testclient import TestClient

from paras2s.configs.schema.base import dump_config
from paras2s.configs.schema.run import RunConfig
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.rollout.store import FOLDER, INDEX, step_path, write_step
from paras2s.studio.app import make_app
from paras2s.train.advantages import advantages_of
from paras2s.types import Block, Reward, Rollout
from paras2s.utils.io import read_jsonl, write_jsonl, write_text

DISTINCT, ANSWER_STEPS, REPEATS, MANY = 8, 52, 7, 10_000
AIMS_S = {"list of runs": 1.0, "steps of the run": 1.0, "one step": 0.5}


def make_rollouts(step: int, queries: int, group: int) -> list[Rollout]:
    rng = np.random.default_rng(step)
    sizes = np.array(Codec2Pairs.cardinality)
    found = []
    for number in range(queries):
        codes = rng.integers(0, sizes, (group, ANSWER_STEPS, 8))
        tokens = np.concatenate([rng.integers(0, 2000, (group, ANSWER_STEPS, 1)), codes], axis=2)
        block = Block(
            ("text", *(f"audio{k}" for k in range(8))), tokens, np.ones(tokens.shape, bool), -rng.exponential(1, tokens.shape)
        )
        texts = tuple(f"an answer of a dozen words or so, number {number} {answer}" for answer in range(group))
        found.append(
            Rollout(
                f"rl-{(step * queries + number) % (6 * queries):05d}", step, (block,), ("eos",) * group, tuple(range(group)),
                texts, tuple(codes), (np.zeros(0, np.float32),) * group, 8000, Codec2Pairs.version,
            )
        )  # fmt: skip
    return found


def make_run(folder: Path, steps: int, queries: int, group: int) -> list[float]:
    """Writes the run; returns the seconds of a core that each distinct step took."""
    config = RunConfig.model_validate({"name": "synthetic", "run_dir": str(folder), "align": {"steps": steps}})
    write_text(folder / "config.resolved.yaml", dump_config(config))
    rng = np.random.default_rng(0)
    took = []
    for step in range(min(DISTINCT, steps)):
        rollouts = make_rollouts(step, queries, group)
        rewards = [[Reward(value, {"reward_model": value}) for value in row] for row in rng.uniform(1, 5, (queries, group))]
        advantages = advantages_of(rewards, "none").groups
        started = time.process_time()
        write_step(folder / FOLDER, step, rollouts, rewards, advantages)
        took.append(time.process_time() - started)
    rows = list(read_jsonl(folder / FOLDER / INDEX))
    for step in range(DISTINCT, steps):
        shutil.copyfile(step_path(folder / FOLDER, step % DISTINCT), step_path(folder / FOLDER, step))
        rows.append({**rows[step % DISTINCT], "step": step})
    write_jsonl(folder / FOLDER / INDEX, rows)
    keys = (
        "reward_mean",
        "reward_std",
        "kl",
        "kl_text",
        "kl_audio",
        "grad_norm",
        "length_steps",
        "entropy_text",
        "entropy_audio",
    )
    write_jsonl(folder / "metrics.jsonl", [{"step": step, **dict.fromkeys(keys, 1.0), "seconds": 3.0} for step in range(steps)])
    return took


def measure_many(parent: Path, count: int) -> Figure:
    """The list of so many runs in one folder."""
    text = dump_config(RunConfig.model_validate({"name": "one of many"}))
    for number in range(count):
        folder = parent / f"run{number:05d}"
        folder.mkdir(parents=True)
        (folder / "config.resolved.yaml").write_text(text)
    client = TestClient(make_app([parent]), base_url="http://127.0.0.1")
    return request_figure(f"list of {count:,} runs", client, lambda part: f"/?part={part}")


def request_figure(name: str, client: TestClient, address: Callable[[int], str], at_most: float | None = None) -> Figure:
    """Several requests: seconds of a core, which others on the machine hardly change; those by the clock are printed."""
    took, cores = [], []
    for number in range(REPEATS):
        started, core = time.perf_counter(), time.process_time()
        response = client.get(address(number))
        assert response.status_code == 200, response.text
        took.append(time.perf_counter() - started)
        cores.append(time.process_time() - core)
    print(f"{name}: at most {max(cores):.3f} s of a core, {max(took):.3f} s by the clock, n = {REPEATS}")
    return Figure(name, "s of a core", cores, at_most=at_most)


def measure(folder: Path, steps: int) -> list[Figure]:
    """The seconds of each kind of request, each time at a place of its own; the first of all is among them."""
    client = TestClient(make_app([folder.parent]), base_url="http://127.0.0.1")
    run = f"run=0/{folder.name}"
    wanted = {
        "list of runs": lambda _: "/",
        "page of the run": lambda _: f"/run?{run}",
        "curves": lambda _: f"/api/metrics?{run}",
        "steps of the run": lambda _: f"/api/rollouts?{run}",
        "one step": lambda n: f"/api/rollouts/step?{run}&step={n * steps // REPEATS}",
        "one query through training": lambda n: f"/api/rollouts/query?{run}&query=rl-{n:05d}",
        "one answer's tokens": lambda n: f"/api/rollouts/answer?{run}&step={n}&group=0&answer=0",
        "one answer's sound": lambda n: f"/sound?{run}&step={n}&group=0&answer=0",
    }
    return [request_figure(name, client, address, AIMS_S.get(name)) for name, address in wanted.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("steps", 2000), ("queries", 32), ("group", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "one" / "synthetic"
        kept = make_run(folder, options.steps, options.queries, options.group)
        size = step_path(folder / FOLDER, 0).stat().st_size
        print(f"keeping {options.queries * options.group} answers: {median(kept):.3f} s of a core, {size / 1e6:.2f} MB")
        figures = [Figure("keeping the answers of a step", "s of a core", kept)]
        figures += [*measure(folder, options.steps), measure_many(Path(scratch) / "many", MANY)]
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
