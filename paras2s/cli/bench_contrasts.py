"""`paras2s bench contrasts`: the systems of a run on its held-out queries; `bench curve`: the run's answers over its steps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from paras2s.cli.options import Estimate, Json, Queries, exit_if_unscored, parse_overrides, print_json
from paras2s.cli.run_options import Config, RunDir, Seed, Set, Verbose, Wait

HeldOut = Literal["validation", "test"]


def contrasts(
    config: Config,
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    wait: Wait = False,
    verbose: Verbose = False,
    as_json: Json = False,
    on: Annotated[HeldOut, typer.Option(help="Held-out queries: validation to choose settings, test for the final figure.")] = (
        "test"
    ),
    judge: Annotated[
        str | None,
        typer.Option("--judge", help="Judge the same answers by this judge too: LLM, contrast, a YAML."),
    ] = None,
    limit: Queries = None,
    estimate: Estimate = False,
) -> None:
    """Score every system on the held-out queries, with standard errors; with --judge, by another judge beside the rubric."""
    from paras2s.bench.display import show_estimate
    from paras2s.bench.paras2s.contrasts import bench_by_judge, describe_bench, estimate_by_judge, open_reward_model, run_bench
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.errors import ConfigError
    from paras2s.run import open_run

    run = open_run(config, parse_overrides(set_), seed, run_dir, as_json, verbose)
    run.open(wait)
    if judge is None and (limit is not None or estimate):
        option = "--limit" if limit is not None else "--estimate"
        raise ConfigError(f"{option}: the answers of a run are judged already; it is for the answers that --judge reads")
    dataset = load_dataset(run.data_dir)
    benched = run_bench(run, dataset, open_reward_model(run), on)
    if judge is not None and estimate:
        bill = estimate_by_judge(run, dataset, benched, on, judge, limit)
        print_json(asdict(bill)) if as_json else show_estimate(run.console, judge, bill)
        return
    describe_bench(run, benched)
    report = benched.to_json()
    if judge is not None:
        report["judge"] = bench_by_judge(run, dataset, benched, on, judge, limit)
    if as_json:
        print_json(report)
    if judge is not None:
        exit_if_unscored(report["judge"]["unscored"])


def curve(
    config: Config, set_: Set = None, seed: Seed = None, run_dir: RunDir = None, wait: Wait = False, as_json: Json = False
) -> None:
    """Judge the answers stored at an alignment's evaluations, which tells learning the task from learning the reward."""
    from paras2s.bench.paras2s.contrasts import open_reward_model
    from paras2s.bench.paras2s.curve import describe_curve, judge_curve, write_curve
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.run import open_run

    run = open_run(config, parse_overrides(set_), seed, run_dir, as_json)
    run.open(wait)
    points = judge_curve(run, load_dataset(run.data_dir), open_reward_model(run))
    plot = write_curve(run, points)
    if as_json:
        print_json({"points": [point.to_json() for point in points], "plot": str(plot)})
    else:
        describe_curve(run, points)
        run.say(f"  {plot}")
