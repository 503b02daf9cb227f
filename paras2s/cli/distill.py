"""`paras2s distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, parse_overrides, print_json
from paras2s.cli.run_options import Anyway, Config, RunDir, Seed, Set, Wait


def distill(
    config: Config,
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    export: Annotated[Path | None, typer.Option(help="Folder for the distilled Omni model, merged, for vLLM.")] = None,
    anyway: Anyway = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Let a judge score the SFT policy's own answers, and train the reward model on the scores."""
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.pipeline.distill import run_distill
    from paras2s.pipeline.distill_omni import export_omni
    from paras2s.run import open_run
    from paras2s.utils.io import read_json

    run = open_run(config, parse_overrides(set_), seed, run_dir, as_json, anyway=anyway)
    dataset = load_dataset(run.data_dir)
    run.open(wait)
    run_distill(run, dataset)
    if export is not None:
        export_omni(run, export)
    if as_json:
        print_json(read_json(run.reward_dir / "agreement.json"))
