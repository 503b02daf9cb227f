"""A plan as JSON and as tables, with every figure behind it and its origin."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from paras2s.planning.calibrate import Calibration
from paras2s.planning.cluster import Figure
from paras2s.planning.simulate import Plan
from paras2s.utils.tables import Styled, Table, number_text


def used_figures(plan: Plan, rates: Any, facts: Any, kinds: list[str]) -> dict[str, Figure]:
    """Return every figure behind a plan, by name."""
    from paras2s.planning.cluster import figures

    used = dict(figures(plan.cluster)) | {f"policy.{name}": figure for name, figure in figures(facts)}
    for kind in kinds:
        used |= {f"{kind}.{name}": figure for name, figure in figures(rates.rewards[kind])}
    return used


def plan_json(plan: Plan, used: dict[str, Figure], calibration: Calibration | None = None) -> dict[str, Any]:
    """Return the plan as plain JSON; memory in GiB."""
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
        "hosts_gib": {host: {name: size / GIB for name, size in parts.items()} for host, parts in plan.hosts.items()},
        "fits": not plan.problems,
        "problems": plan.problems,
        "steps": plan.steps,
        "hours": plan.hours,
        "device_hours": plan.device_hours,
        "devices_usd": plan.devices_usd,
        "judge_usd": plan.judge_usd,
        "checkpoint_gib": plan.checkpoint_bytes / GIB,
        "checkpoints_at_once": plan.most_checkpoints,
        "calibration": None if calibration is None else asdict(calibration),
        "cluster": plan.cluster.model_dump(mode="json"),
        "figures": {name: figure.model_dump() for name, figure in used.items()},
    }


def bold(*cells: str) -> tuple[str, ...]:
    """Return the cells of a row in bold."""
    return tuple(map(Styled, cells))


def fits_text(fits: bool) -> str:
    """Return whether memory suffices, in green or red."""
    return Styled("fits", "green") if fits else Styled("does not fit", "red")


def show_plan(console: Console, plan: Plan) -> None:
    """Print phases, memory and totals as tables."""
    from paras2s.planning.cost import GIB

    load, cluster, rhythm = plan.load, plan.cluster, plan.rhythm
    billions = sum(plan.parameters.values()) / 1e9
    console.print(
        f"{plan.policy}, {billions:.4g} billion parameters, on {cluster.name}: {load.queries} queries x {load.group} answers a "
        f"step, {load.learned} learned from; prompts of {load.prompt_steps} steps, answers of {load.audio.mean:.0f} on average"
    )
    rows: list[tuple[str, ...]] = []
    for role, phase, spent_s in _phase_rows(plan):
        if phase == "all":
            rows.append(bold(role, phase, f"{spent_s:.3g}", f"{100 * rhythm.busy[role]:.0f} %"))
        else:
            rows.append((role, phase, f"{spent_s:.3g}"))
    rows.append(bold("", f"a step ({cluster.driver.kind})", f"{rhythm.step_s:.3g}", f"most: {rhythm.bottleneck}"))
    Table(("role", "phase", "seconds a step", "role busy"), rows, "time").show(console)
    _show_memory(console, plan)
    each, most = plan.checkpoint_bytes / GIB, plan.most_checkpoints
    what = "adapters" if cluster.learner.trainable == "lora" else "all weights"
    console.print(f"checkpoints ({what}): {each:.3g} GiB each, at most {most} at once: {each * most:.4g} GiB")
    usd = "unknown: no price of its model" if plan.judge_usd is None else f"{plan.judge_usd:,.0f} USD"
    console.print(
        f"{plan.steps} steps: {plan.hours:.3g} hours, {plan.device_hours:,.4g} device hours, {plan.devices_usd:,.0f} USD for "
        f"devices; judge: {usd}"
    )


def _phase_rows(plan: Plan) -> list[tuple[str, str, float]]:
    phases = plan.phases
    behind = ("speak", "  of it, behind the last answer", phases.speak_behind)
    speak = [behind, ("speak", "all", phases.speak_apart)] if plan.cluster.count("speak") else []
    return [
        ("rollout", "encode the question", phases.encode),
        ("rollout", "read prompts", phases.read),
        ("rollout", "decode", phases.decode),
        ("rollout", "  of it, for unlike lengths", phases.straggling),
        ("rollout", "speak", phases.speak),
        ("rollout", "all", phases.rollout),
        *speak,
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
    from paras2s.planning.cost import GIB

    rows: list[tuple[str, ...]] = []
    for role, parts in plan.memory.items():
        rows += [(role, name, f"{size / GIB:.2f}") for name, size in parts.items() if size]
        needed = sum(parts.values())
        all_of_it = bold(role, "all", f"{needed / GIB:.2f} of {plan.room_bytes / GIB:.0f}")
        rows.append((*all_of_it, fits_text(needed <= plan.room_bytes)))
    for host, parts in plan.hosts.items():
        rows += [(host, name, f"{size / GIB:.2f}") for name, size in parts.items() if size]
        rows.append(bold(host, "all", f"{sum(parts.values()) / GIB:.2f}"))
    Table(("role", "part", "GiB a device, or in all", ""), rows, "memory").show(console)
    for problem in plan.problems:
        console.print(f"does not fit: {problem}", style="red")


def show_calibration(console: Console, calibration: Calibration) -> None:
    """Show measured parts of a step beside the plan's own predictions, and the factors applied to the plan."""
    rows: list[tuple[str | None, ...]] = []
    for part in calibration.parts:
        measured = None if part.measured_s is None else f"{part.measured_s:.3g}"
        rows.append((part.part, f"{part.predicted_s:.3g}", measured, part.why_none or number_text(part.factor)))
    rows.append(bold("a step", f"{calibration.predicted_step_s:.3g}", f"{calibration.measured_step_s:.3g}"))
    head = ("part of a step", "predicted, s", "measured, s", "factor")
    Table(head, rows, f"calibrated by {calibration.steps} steps of a run").show(console)


def show_assumptions(console: Console, used: dict[str, Figure]) -> None:
    """Print every figure, assumptions first."""
    rows = [
        (name, f"{figure.value:g}", origin, figure.note)
        for origin in ("assumed", "published", "measured")
        for name, figure in used.items()
        if figure.origin == origin
    ]
    Table(("figure", "value", "origin", "note"), rows, "what the plan rests on").show(console)
