"""`paras2s align`."""

from __future__ import annotations

from typing import Annotated

import typer

from paras2s.cli.options import parse_overrides
from paras2s.cli.run_options import Config, RunDir, Seed, Set


def align(
    config: Config,
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint.")] = False,
) -> None:
    """Move the SFT policy toward its better answers by GRPO."""
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.pipeline.align import run_align
    from paras2s.run import open_run

    run = open_run(config, parse_overrides(set_), seed, run_dir)
    run.open()
    run_align(run, load_dataset(run.data_dir), resume)
