"""`paras2s align`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paras2s.cli.options import Json, parse_overrides, print_json
from paras2s.cli.run_options import Anyway, Config, RunDir, Seed, Set, Wait

if TYPE_CHECKING:
    from rich.console import Console

    from paras2s.pipeline.dry_run import DryRun


def align(
    config: Config,
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint.")] = False,
    meta: Annotated[
        bool,
        typer.Option(
            "--meta", help="Dry run without weights: memory of each role on each device. Exits with 1 if it does not fit."
        ),
    ] = False,
    preferences: Annotated[
        Path | None, typer.Option(help="JSONL file of preferences: learn from its answers by DPO or KTO, and sample none.")
    ] = None,
    only_count: Annotated[
        bool, typer.Option("--dry-run", help="Check the preferences; count rows, seconds of sound and steps; train nothing.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Cluster for --meta (name or YAML). Default: local GPUs, else h100x8.")
    ] = None,
    anyway: Anyway = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Train the SFT policy toward its better answers by GRPO, or toward the chosen ones of a file."""
    if preferences is not None:
        set_ = [*(set_ or []), f"align.preferences.file={preferences.resolve()}"]
    from paras2s.errors import ConfigError
    from paras2s.run import open_run

    run = open_run(config, parse_overrides(set_), seed, run_dir, anyway=anyway)
    if meta:
        from paras2s.pipeline.dry_run import dry_run, dry_run_json
        from paras2s.planning.cluster import load_rates

        report = dry_run(run.config, load_rates(), cluster)
        if as_json:
            print_json(dry_run_json(report))
        else:
            _show(run.console, report)
        if report.problems:
            raise typer.Exit(1)
        return
    if only_count:
        if run.config.align.preferences is None:
            raise ConfigError("--dry-run counts the rows of --preferences FILE; `--meta` counts the memory of GRPO's workers")
        from paras2s.pipeline.train_preferences import count_preferences

        count = count_preferences(run.config.align)
        print_json(count.to_json()) if as_json else typer.echo(count.text)
        return
    if cluster is not None or as_json:
        raise ConfigError("--cluster and --json belong to --meta, --json to --dry-run as well")
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.pipeline.align import run_align

    dataset = load_dataset(run.data_dir)
    run.open(wait)
    run_align(run, dataset, resume)


def _show(console: Console, report: DryRun) -> None:
    """Print memory by role and part, by device, and of hosts, as tables."""
    from paras2s.planning.cost import GIB
    from paras2s.planning.report import bold, fits_text
    from paras2s.utils.tables import Table

    counted = ", ".join(f"{name} {count / 1e9:.3f}" for name, count in report.parameters.items())
    console.print(f"{report.policy}, sizes from {report.sizes_from}; billions of parameters: {counted}")
    rows: list[tuple[str, ...]] = []
    for role, memory in report.roles.items():
        for part, size in memory.device.items():
            if size:
                rows.append((role, part, f"{size / GIB:.2f}", "while working" if memory.in_turn(part) else ""))
        rows += [(role, part, f"{size / GIB:.2f}", "host memory") for part, size in memory.host.items() if size]
        total, planned = sum(memory.device.values()), report.planned.get(role)
        said = "" if planned is None else f"planned: {planned / GIB:.2f}"
        rows.append(bold(role, "total on the device", f"{total / GIB:.2f}", said))
    Table(("role", "part", "GiB", ""), rows, "memory of one worker, by role").show(console)
    devices = [
        (load.name, ", ".join(load.roles), f"{load.needed / GIB:.2f} of {report.room / GIB:.2f}",
         fits_text(load.needed <= report.room))
        for load in report.devices
    ]  # fmt: skip
    hosts = [(host, "", f"{sum(parts.values()) / GIB:.2f}") for host, parts in report.hosts.items()]
    head = ("devices", "workers", "peak GiB", "")
    Table(head, [*devices, *hosts], f"devices: {report.devices_of}").show(console)
    for problem in report.problems:
        console.print(f"does not fit: {problem}", style="red")
