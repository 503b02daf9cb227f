"""`paras2s plan`: what a run would take on a cluster, before anyone pays for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, parse_overrides, print_json


def plan(
    config: Annotated[Path, typer.Argument(help="A run's YAML config, or the name of a preset: demo, kimi_paper ...")],
    cluster: Annotated[str, typer.Option(help="A cluster's YAML, or a shipped one: this_machine, h100x8, gpu64.")],
    prompts: Annotated[int | None, typer.Option(min=1, help="RL prompts there are; else the config's own steps.")] = None,
    epochs: Annotated[float, typer.Option(min=0.001, help="Times that each of --prompts is asked.")] = 1.0,
    answer_s: Annotated[float | None, typer.Option(min=0.1, help="Mean answer, in place of the rates' own.")] = None,
    policy: Annotated[str | None, typer.Option(help="Facts of this policy in the rates; else those that fit.")] = None,
    rates: Annotated[Path | None, typer.Option(help="Your own rates.yaml.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Lay over the config: align.sampling.group_size=16.")
    ] = None,
    with_: Annotated[list[str] | None, typer.Option("--with", "-w", help="Lay over the cluster: driver.kind=sync.")] = None,
    assumptions: Annotated[bool, typer.Option("--assumptions", help="List every figure used, and its origin.")] = False,
    as_json: Json = False,
) -> None:
    """Predict seconds a step, memory a device, device hours and the judge's cost; exits 1 where something does not fit."""
    from paras2s.planning.cluster import load_cluster, load_rates, policy_facts
    from paras2s.planning.report import plan_json, show_assumptions, show_plan, used_figures
    from paras2s.planning.simulate import make_plan
    from paras2s.run import open_run
    from paras2s.utils.progress import open_console

    run, known = open_run(config, parse_overrides(set_)).config, load_rates(rates)
    machines = load_cluster(cluster, known, parse_overrides(with_))
    named = policy_facts(known, run.policy, policy)
    found = make_plan(run, machines, known, named, prompts, epochs, answer_s)
    used = used_figures(found, known, named.facts, [source.kind for source in run.reward.sources])
    if as_json:
        print_json(plan_json(found, used))
    else:
        show_plan(open_console(), found)
        if assumptions:
            show_assumptions(open_console(), used)
    if found.problems:
        raise typer.Exit(1)
