"""`paras2s warmup`."""

from __future__ import annotations

from paras2s.cli.options import parse_overrides
from paras2s.cli.run_options import Config, RunDir, Seed, Set, Wait


def warmup(config: Config, set_: Set = None, seed: Seed = None, run_dir: RunDir = None, wait: Wait = False) -> None:
    """Train the SFT policy on the demonstrations."""
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.pipeline.warmup import run_warmup
    from paras2s.run import open_run

    run = open_run(config, parse_overrides(set_), seed, run_dir)
    dataset = load_dataset(run.data_dir)
    run.open(wait)
    run_warmup(run, dataset)
