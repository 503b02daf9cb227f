"""`paras2s plan`: what a run would take on a cluster, before anyone pays for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paras2s.cli.options import Json, parse_overrides, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from paras2s.planning.cluster import Figure
    from paras2s.planning.simulate import Plan


def plan(
    config: Annotated[Path, typer.Argument(help="A run's YAML config, or the name of a preset: demo, kimi_paper ...")],
    cluster: Annotated[str, typer.Option(help="A cluster's YAML, or a shipped one: this_machine, h100x8, gpu64.")],
    prompts: Annotated[int | None, typer.Option(min=1, help="RL prompts there are; else the config's own steps.")] = None,
    epochs: Annotated[float, typer.Option(min=0.001, help="Times that each of --prompts is asked.")] = 1.0,
    answer_s: Annotated[float | None, typer.Option(min=0.1, help="Mean answer, in place of the rates' own.")] = None,
    policy: Annotated[str | None, typer.Option(help="Facts of this policy in the rates; else those that fit.")] = None,
    rates: Annotated[Path | None, typer.Option(help="Your own rates.yaml.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", "-s", help="Lay over the config: align.group_size=16.")] = None,
    with_: Annotated[list[str] | None, typer.Option("--with", "-w", help="Lay over the cluster: driver.kind=sync.")] = None,
    assumptions: Annotated[bool, typer.Option("--assumptions", help="List every figure used, and its origin.")] = False,
    as_json: Json = False,
) -> None:
    """Predict seconds a step, memory a device, device hours and the judge's cost; exits 1 where something does not fit."""
    from paras2s.configs.schema.base import preset_path
    from paras2s.configs.schema.run import load_config
    from paras2s.planning.cluster import load_cluster, load_rates, policy_facts
    from paras2s.planning.simulate import make_plan
    from paras2s.utils.progress import open_console

    path = config if config.suffix in (".yaml", ".yml") else preset_path(str(config))
    run, known = load_config(path, parse_overrides(set_)), load_rates(rates)
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


def used_figures(plan: Plan, rates: Any, facts: Any, kinds: list[str]) -> dict[str, Figure]:
    """Every figure behind a plan, by name."""
    from paras2s.planning.cluster import figures

    found = dict(figures(plan.cluster)) | {f"policy.{name}": figure for name, figure in figures(facts)}
    for kind in kinds:
        found |= {f"{kind}.{name}": figure for name, figure in figures(rates.rewards[kind])}
    return found


def plan_json(plan: Plan, used: dict[str, Figure]) -> dict[str, Any]:
    """The plan as plain JSON; memory in GiB."""
    from dataclasses import asdict

    from paras2s.planning.cost import GIB

    return {
        "policy": plan.policy,
        "parameters": plan.parameters,
        "load": asdict(plan.load),
        "phases_s": asdict(plan.phases),
        "step_s": plan.rhythm.step_s,
        "busy": plan.rhythm.busy,
        "bottleneck": plan.rhythm.bottleneck,
        "memory_gib": {role: {name: size / GIB for name, size in parts.items()} for role, parts in plan.memory.items()},
        "room_gib": plan.room_bytes / GIB,
        "fits": not plan.problems,
        "problems": plan.problems,
        "steps": plan.steps,
        "hours": plan.hours,
        "device_hours": plan.device_hours,
        "devices_usd": plan.devices_usd,
        "judge_usd": plan.judge_usd,
        "cluster": plan.cluster.model_dump(mode="json"),
        "figures": {name: figure.model_dump() for name, figure in used.items()},
    }


def show_plan(console: Console, plan: Plan) -> None:
    """Phases, memory and totals as tables."""
    from rich.table import Table

    load, cluster, rhythm = plan.load, plan.cluster, plan.rhythm
    billions = sum(plan.parameters.values()) / 1e9
    console.print(
        f"{plan.policy}, {billions:.4g} billion parameters, on {cluster.name}: {load.queries} queries x {load.group} answers a "
        f"step, {load.learned} learned from; prompts of {load.prompt_steps} steps, answers of {load.audio.mean:.0f} on average",
        highlight=False,
    )
    table = Table("role", "phase", "seconds a step", "role busy", title="time", title_justify="left")
    for role, phase, spent_s in _phase_rows(plan):
        busy = f"{100 * rhythm.busy[role]:.0f} %" if phase == "all" else ""
        table.add_row(role, phase, f"{spent_s:.3g}", busy, style="bold" if phase == "all" else None)
    table.add_row("", f"a step ({cluster.driver.kind})", f"{rhythm.step_s:.3g}", f"most: {rhythm.bottleneck}", style="bold")
    console.print(table)
    _show_memory(console, plan)
    usd = "unknown: no price of its model" if plan.judge_usd is None else f"{plan.judge_usd:,.0f} USD"
    console.print(
        f"{plan.steps} steps: {plan.hours:.3g} hours, {plan.device_hours:,.4g} device hours, {plan.devices_usd:,.0f} USD for "
        f"devices; judge: {usd}",
        highlight=False,
    )


def _phase_rows(plan: Plan) -> list[tuple[str, str, float]]:
    phases = plan.phases
    return [
        ("rollout", "encode the question", phases.encode),
        ("rollout", "read prompts", phases.read),
        ("rollout", "decode", phases.decode),
        ("rollout", "  of it, for unlike lengths", phases.straggling),
        ("rollout", "speak", phases.speak),
        ("rollout", "all", phases.rollout),
        ("reward", "all", phases.judge),
        ("learner", "reference", phases.reference),
        ("learner", "forward", phases.forward),
        ("learner", "backward", phases.backward),
        ("learner", "optimiser", phases.optimiser),
        ("learner", "exchange that is not hidden", phases.exchange),
        ("learner", "all", phases.learner),
        ("sync", "all", phases.sync),
    ]


def _show_memory(console: Console, plan: Plan) -> None:
    from rich.table import Table

    from paras2s.planning.cost import GIB

    table = Table("role", "part", "GiB a device", "", title="memory", title_justify="left")
    for role, parts in plan.memory.items():
        for name, size in parts.items():
            if size:
                table.add_row(role, name, f"{size / GIB:.2f}", "")
        needed = sum(parts.values())
        fits = "[green]fits[/green]" if needed <= plan.room_bytes else "[red]does not fit[/red]"
        table.add_row(role, "all", f"{needed / GIB:.2f} of {plan.room_bytes / GIB:.0f}", fits, style="bold")
    console.print(table)
    for problem in plan.problems:
        console.print(f"[red]does not fit[/red]: {problem}", highlight=False)


def show_assumptions(console: Console, used: dict[str, Figure]) -> None:
    """Every figure, what is assumed first."""
    from rich.table import Table

    table = Table("figure", "value", "origin", "note", title="what the plan rests on", title_justify="left")
    for origin in ("assumed", "published", "measured"):
        for name, figure in used.items():
            if figure.origin == origin:
                table.add_row(name, f"{figure.value:g}", origin, figure.note)
    console.print(table)
