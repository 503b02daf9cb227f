"""`paras2s plan`: what a run would take on a cluster, before anyone pays for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paras2s.cli.options import Json, parse_overrides, print_json

if TYPE_CHECKING:
    from paras2s.planning.calibrate import Calibration
    from paras2s.planning.cluster import Cluster, Rates


def plan(
    config: Annotated[Path, typer.Argument(help="A run's YAML config, or the name of a preset: demo, kimi_paper ...")],
    cluster: Annotated[str, typer.Option(help="A cluster's YAML, or a shipped one: this_machine, h100x8, gpu64.")],
    prompts: Annotated[int | None, typer.Option(min=1, help="RL prompts there are; else the config's own steps.")] = None,
    epochs: Annotated[float, typer.Option(min=0.001, help="Times that each of --prompts is asked.")] = 1.0,
    answer_s: Annotated[float | None, typer.Option(min=0.1, help="Mean answer, in place of the rates' own.")] = None,
    policy: Annotated[str | None, typer.Option(help="Facts of this policy in the rates; else those that fit.")] = None,
    rates: Annotated[Path | None, typer.Option(help="Your own rates.yaml.")] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="A run's folder: correct the seconds by the phases that it was timed with.")
    ] = None,
    measured_on: Annotated[
        str | None, typer.Option(help="Cluster of the --calibrate run, where it is another; the device must be the same.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Lay over the config: align.sampling.group_size=16.")
    ] = None,
    with_: Annotated[list[str] | None, typer.Option("--with", "-w", help="Lay over the cluster: driver.kind=sync.")] = None,
    assumptions: Annotated[bool, typer.Option("--assumptions", help="List every figure used, and its origin.")] = False,
    as_json: Json = False,
) -> None:
    """Predict seconds a step, memory a device, device hours and the judge's cost; exits 1 where something does not fit."""
    from paras2s.errors import ConfigError
    from paras2s.planning.cluster import load_cluster, load_rates, policy_facts
    from paras2s.planning.report import plan_json, show_assumptions, show_calibration, show_plan, used_figures
    from paras2s.planning.simulate import make_plan
    from paras2s.run import open_run
    from paras2s.utils.progress import open_console

    run, known = open_run(config, parse_overrides(set_)).config, load_rates(rates)
    machines = load_cluster(cluster, known, parse_overrides(with_))
    named = policy_facts(known, run.policy, policy)
    timed = None
    if calibrate is not None:
        timed = _calibration(calibrate, load_cluster(measured_on, known) if measured_on else machines, machines, known, policy)
    elif measured_on:
        raise ConfigError("--measured-on is the cluster of a run that --calibrate names")
    found = make_plan(run, machines, known, named, prompts, epochs, answer_s, None if timed is None else timed.factors)
    used = used_figures(found, known, named.facts, [source.kind for source in run.reward.sources])
    if as_json:
        print_json(plan_json(found, used, timed))
    else:
        if timed is not None:
            show_calibration(open_console(), timed)
        show_plan(open_console(), found)
        if assumptions:
            show_assumptions(open_console(), used)
    if found.problems:
        raise typer.Exit(1)


def _calibration(run: Path, measured_on: Cluster, cluster: Cluster, rates: Rates, policy: str | None) -> Calibration:
    """The factors of a run's folder; a file in it will do as well."""
    from paras2s.configs.schema.run import load_config
    from paras2s.planning.calibrate import calibrate, refuse_other_device
    from paras2s.planning.cluster import policy_facts
    from paras2s.rollout.phase_times import read_phase_times

    folder = run.parent if run.is_file() else run
    refuse_other_device(cluster, measured_on)
    times = read_phase_times(folder)
    ran = load_config(folder / "config.resolved.yaml")
    return calibrate(ran, measured_on, rates, policy_facts(rates, ran.policy, policy), times)
