"""`paras2s results`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, parse_seeds, print_json


def results(
    preset: Annotated[str, typer.Option(help="full, demo or quick.")] = "full",
    seeds: Annotated[str, typer.Option(help="Numbers with a blank between.")] = "0 1 2 3 4",
    folder: Annotated[Path, typer.Option(help="Where the runs are, a folder a seed.")] = Path("runs/results"),
    docs: Annotated[
        Path, typer.Option(help="Where results.json and results.md are written; README.md is the one above.")
    ] = Path("docs"),
    run: Annotated[bool, typer.Option(help="Run the seeds that are not finished yet; else write from what there is.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print which seeds would be run, and do nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Run a preset over several seeds, and write what came out, with intervals over seeds and questions."""
    from paras2s.experiments.results import collect, read_benched, run_seeds, seed_config, write_results
    from paras2s.run import Run
    from paras2s.utils.progress import open_console

    wanted, console = parse_seeds(seeds), open_console(to_stderr=as_json)
    if dry_run:
        for seed in wanted:
            one = Run(seed_config(preset, seed, folder), console, True)
            typer.echo(f"seed {seed}: {'finished' if read_benched(one) else 'to be run'}, {one.folder}")
        return
    if run:
        run_seeds(preset, wanted, folder, console, as_json)
    found = collect(preset, wanted, folder, console)
    written = write_results(found, docs)
    if as_json:
        print_json(found)
    else:
        typer.echo("\n".join(map(str, written)))
    raise typer.Exit(int(any("failed" in one for one in found["seeds"])))
