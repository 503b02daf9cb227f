"""Demonstrations against reinforcement: warm-ups on 1, 2 and 5 times the contrasts, on one test.

Takes the folder of a finished run: its dataset, its reward model (for the rows), its aligned policy and its bench. Each
warm-up has as many steps as the run's own, and answers the same held-out queries with the same seeds.

    paras2s demo --preset full --seed 0
    python benchmarks/demonstrations.py runs/full-seed0 [--contrasts 4 8 20]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from figures import Figure, add_json_option, write_figures
from rich.console import Console

from paras2s.bench.paras2s.contrasts import open_runner, policy_system
from paras2s.bench.results import AnswerRow, load_rows
from paras2s.bench.stats import summarise
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.data_gen.dataset import load_dataset
from paras2s.pipeline.warmup import run_warmup
from paras2s.reward.reward_model.model import RewardModel
from paras2s.run import Run


def with_contrasts(config: RunConfig, contrasts: int) -> RunConfig:
    """The same run with another number of demonstrated contrasts a category, in a folder of its own."""
    warmup = config.warmup.model_copy(update={"demonstration_contrasts": contrasts})
    return config.model_copy(update={"warmup": warmup, "run_dir": config.run_dir / "demonstrations" / str(contrasts)})


def describe(name: str, rows: list[AnswerRow]) -> list[Figure]:
    scores = summarise(rows)
    cells = [f"{category} {one.estimate.mean:.2f}" for category, one in scores.categories.items() if one.estimate.mean]
    overall = scores.overall.estimate
    mean = "-" if overall.mean is None else f"{overall.mean:.2f} ± {overall.standard_error or 0:.2f}"
    print(f"{name:28s} {mean}  ({', '.join(cells)}; {overall.n} of {scores.overall.n_asked} scored)", flush=True)
    return [] if overall.mean is None else [Figure(f"{name}: score", "1 to 5", [overall.mean], more_is_better=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a finished run")
    parser.add_argument("--contrasts", type=int, nargs="+", default=[4, 8, 20], help="a category")
    add_json_option(parser)
    options = parser.parse_args()
    found = []
    config = load_config(options.folder / "config.resolved.yaml").model_copy(update={"run_dir": options.folder})
    dataset = load_dataset(options.folder / "data")
    model = RewardModel.load(options.folder / "reward")
    for contrasts in options.contrasts:
        run = Run(with_contrasts(config, contrasts), Console(), quiet=True)
        run_warmup(run, dataset)
        rows = open_runner(run, dataset, model, "test").bench("sft", policy_system(run, dataset, run.load_policy(run.sft_dir)))
        found += describe(f"SFT, {contrasts} contrasts", rows)
    for name in ("sft", "aligned"):
        found += describe(f"the run's own {name}", load_rows(options.folder / "bench" / f"{name}.jsonl"))
    write_figures(options.json, found)


if __name__ == "__main__":
    main()
