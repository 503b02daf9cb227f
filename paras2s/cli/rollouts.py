"""`paras2s rollouts`: list or export the rollouts that a run kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, print_json
from paras2s.errors import ConfigError


def rollouts(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    step: Annotated[int | None, typer.Option(min=0, help="Only this step, counted from 0.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the answers: .parquet with tokens and log-probs, or .csv without.")
    ] = None,
    preferences: Annotated[
        Path | None,
        typer.Option(help="New folder for preferences.jsonl and its clips: the best and the worst answer of each group."),
    ] = None,
    margin: Annotated[float, typer.Option(min=0.0, help="Least difference of their scores, with --preferences.")] = 0.0,
    by: Annotated[str | None, typer.Option(help="Source of reward whose score decides; default: the whole reward.")] = None,
    labels: Annotated[
        bool, typer.Option("--labels", help="Single answers, labelled good or bad by their group's mean, for KTO.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the rollouts that a run kept, export them as one table for notebooks, or as preferences to train from."""
    from paras2s.rollout.export import export_rollouts, list_steps

    if preferences is not None:
        from paras2s.pipeline.write_preferences import PreferenceRule, write_preferences

        if out is not None:
            raise ConfigError("--out and --preferences: give one of them")
        written = write_preferences(run, preferences, PreferenceRule(margin, by, labels), step)
        if as_json:
            print_json({"rows": written.rows, "groups_without": written.groups_without, "out": str(written.path)})
        else:
            typer.echo(f"{written.rows} rows in {written.path}; {written.groups_without} groups gave none")
        return
    if margin or by is not None or labels:
        raise ConfigError("--margin, --by and --labels belong to --preferences")
    if out is not None:
        count = export_rollouts(run, step, out)
        print_json({"answers": count, "out": str(out)}) if as_json else typer.echo(f"{count} answers in {out}")
        return
    rows = [row for row in list_steps(run) if step is None or row["step"] == step]
    if not rows:
        raise ConfigError(f"--step {step}: not kept by this run; leave --step out to list the kept steps")
    if as_json:
        print_json(rows)
        return
    from paras2s.utils.progress import open_console
    from paras2s.utils.tables import Table, number_text

    head = ("step", "groups", "mean reward", "widest spread", "without spread", "unscored")
    cells = [
        (row["step"], row["groups"], *map(number_text, (row["mean"], row["widest"])), row["flat"], row["unscored"])
        for row in rows
    ]
    Table(head, cells).show(open_console())
