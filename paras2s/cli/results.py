"""`paras2s results`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, parse_seeds, print_json


def results(
    preset: Annotated[str, typer.Option(help="Preset: full, demo, quick or spoken_lm.")] = "full",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by blanks.")] = "0 1 2 3 4",
    folder: Annotated[Path, typer.Option(help="Folder of the runs, one folder a seed.")] = Path("runs/results"),
    docs: Annotated[
        Path, typer.Option(help="Folder for results.json and results.md; README.md is in the folder above.")
    ] = Path("docs"),
    run: Annotated[bool, typer.Option(help="Run unfinished seeds first; --no-run: write from finished ones.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print which seeds are finished; run nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Run a preset over several seeds, and write the results with intervals over seeds and questions."""
    from paras2s.experiments.results import collect, read_benched, run_seeds, seed_config, write_results
    from paras2s.run import Run
    from paras2s.utils.progress import open_console

    seed_list, console = parse_seeds(seeds), open_console(to_stderr=as_json)
    if dry_run:
        for seed in seed_list:
            seed_run = Run(seed_config(preset, seed, folder), console, True)
            typer.echo(f"seed {seed}: {'finished' if read_benched(seed_run) else 'not finished'}, {seed_run.folder}")
        return
    if run:
        run_seeds(preset, seed_list, folder, console, as_json)
    collected = collect(preset, seed_list, folder, console)
    written = write_results(collected, docs)
    if as_json:
        print_json(collected)
    else:
        typer.echo("\n".join(map(str, written)))
    raise typer.Exit(int(any("failed" in row for row in collected["seeds"])))
