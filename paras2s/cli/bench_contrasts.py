"""`paras2s bench contrasts`: the systems of a run on its held-out queries."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from paras2s.cli.options import Json, parse_overrides, print_json
from paras2s.cli.run_options import Config, RunDir, Seed, Set


class HeldOut(StrEnum):
    """The queries that nothing is trained on."""

    validation = "validation"
    test = "test"


def contrasts(
    config: Config,
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    as_json: Json = False,
    on: Annotated[HeldOut, typer.Option(help="validation: for choosing settings. test: for the figure, asked once.")] = (
        HeldOut.test
    ),
) -> None:
    """Score every system on the held-out queries, with standard errors."""
    from paras2s.bench.paras2s.contrasts import describe_bench, run_bench
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.reward.reward_model.model import RewardModel
    from paras2s.run import open_run

    run = open_run(config, parse_overrides(set_), seed, run_dir, as_json)
    run.open()
    benched = run_bench(run, load_dataset(run.data_dir), RewardModel.load(run.reward_dir), on.value)
    describe_bench(run, benched)
    if as_json:
        print_json(benched.to_json())
