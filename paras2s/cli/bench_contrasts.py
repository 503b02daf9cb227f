"""`paras2s bench contrasts`: the systems of a run on its held-out queries; `bench curve`: the run's answers over its steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from paras2s.cli.options import Json, parse_overrides, print_json
from paras2s.cli.run_options import Config, RunDir, Seed, Set, Verbose


class HeldOut(StrEnum):
    """Roles of queries that nothing is trained on."""

    validation = "validation"
    test = "test"


def contrasts(
    config: Config,
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    verbose: Verbose = False,
    as_json: Json = False,
    on: Annotated[HeldOut, typer.Option(help="Held-out queries: validation to choose settings, test for the final figure.")] = (
        HeldOut.test
    ),
) -> None:
    """Score every system on the held-out queries, with standard errors."""
    from paras2s.bench.paras2s.contrasts import describe_bench, run_bench
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.reward.reward_model.model import RewardModel
    from paras2s.run import open_run

    run = open_run(config, parse_overrides(set_), seed, run_dir, as_json, verbose)
    run.open()
    benched = run_bench(run, load_dataset(run.data_dir), RewardModel.load(run.reward_dir), on.value)
    describe_bench(run, benched)
    if as_json:
        print_json(benched.to_json())


def curve(config: Config, set_: Set = None, seed: Seed = None, run_dir: RunDir = None, as_json: Json = False) -> None:
    """Judge the answers stored at an alignment's evaluations, which tells learning the task from learning the reward."""
    from paras2s.bench.paras2s.curve import describe_curve, judge_curve, write_curve
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.reward.reward_model.model import RewardModel
    from paras2s.run import open_run

    run = open_run(config, parse_overrides(set_), seed, run_dir, as_json)
    points = judge_curve(run, load_dataset(run.data_dir), RewardModel.load(run.reward_dir))
    plot = write_curve(run, points)
    if as_json:
        print_json({"points": [point.to_json() for point in points], "plot": str(plot)})
    else:
        describe_curve(run, points)
        run.say(f"  {plot}")
