"""`paras2s plan`: predict time, memory and cost of a run on a cluster before paying for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paras2s.cli.options import Json, parse_overrides, print_json

if TYPE_CHECKING:
    from paras2s.planning.calibrate import Calibration
    from paras2s.planning.cluster import Cluster, Rates


def plan(
    config: Annotated[Path, typer.Argument(help="YAML config of a run, or the name of a preset: demo, kimi_paper ...")],
    cluster: Annotated[str, typer.Option(help="Cluster: this_machine, h100x8, gpu64, or a YAML.")] = "this_machine",
    prompts: Annotated[int | None, typer.Option(min=1, help="Number of RL prompts. Default: the config's own steps.")] = None,
    epochs: Annotated[float, typer.Option(min=0.001, help="Passes over --prompts.")] = 1.0,
    answer_s: Annotated[
        float | None, typer.Option(min=0.1, help="Mean length of an answer in seconds. Default: the rates' own.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Policy in the rates whose facts count. Default: by kind or size.")] = None,
    rates: Annotated[Path | None, typer.Option(help="Your own rates.yaml.")] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Folder of a run whose timed phases correct the predicted seconds.")
    ] = None,
    measured_on: Annotated[
        str | None, typer.Option(help="Cluster of the --calibrate run, if it differs; the device must be the same.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="Override a key of the config: align.sampling.group_size=16. Repeatable."),
    ] = None,
    with_: Annotated[
        list[str] | None, typer.Option("--with", "-w", help="Override a key of the cluster: driver.kind=sync. Repeatable.")
    ] = None,
    assumptions: Annotated[bool, typer.Option("--assumptions", help="List every figure used, with its origin.")] = False,
    as_json: Json = False,
) -> None:
    """Predict seconds a step, memory a device, device hours and the judge's cost. Exits with 1 if something does not fit."""
    from paras2s.errors import ConfigError
    from paras2s.planning.cluster import load_cluster, load_rates, policy_facts
    from paras2s.planning.judge_calls import rated_as
    from paras2s.planning.report import plan_json, show_assumptions, show_calibration, show_plan, used_figures
    from paras2s.planning.simulate import make_plan
    from paras2s.run import open_run
    from paras2s.utils.progress import open_console

    run, rates_table = open_run(config, parse_overrides(set_)).config, load_rates(rates)
    machines = load_cluster(cluster, rates_table, parse_overrides(with_))
    named = policy_facts(rates_table, run.policy, policy)
    timed = None
    if calibrate is not None:
        timed = _calibration(
            calibrate, load_cluster(measured_on, rates_table) if measured_on else machines, machines, rates_table, policy
        )
    elif measured_on:
        raise ConfigError("--measured-on belongs to --calibrate")
    prediction = make_plan(
        run, machines, rates_table, named, prompts, epochs, answer_s, None if timed is None else timed.factors
    )
    used = used_figures(prediction, rates_table, named.facts, [rated_as(source) for source in run.reward.sources])
    if as_json:
        print_json(plan_json(prediction, used, timed))
    else:
        if timed is not None:
            show_calibration(open_console(), timed)
        show_plan(open_console(), prediction)
        if assumptions:
            show_assumptions(open_console(), used)
    if prediction.problems:
        raise typer.Exit(1)


def _calibration(run: Path, measured_on: Cluster, cluster: Cluster, rates: Rates, policy: str | None) -> Calibration:
    """Return the factors of a run's folder, or of a file in it."""
    from paras2s.configs.schema.run import load_config
    from paras2s.planning.calibrate import calibrate, refuse_other_device
    from paras2s.planning.cluster import policy_facts
    from paras2s.rollout.phase_times import read_phase_times

    folder = run.parent if run.is_file() else run
    refuse_other_device(cluster, measured_on)
    times = read_phase_times(folder)
    ran = load_config(folder / "config.resolved.yaml")
    return calibrate(ran, measured_on, rates, policy_facts(rates, ran.policy, policy), times)
