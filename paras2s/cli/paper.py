"""`paras2s paper`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.run_options import Anyway


def paper(
    only: Annotated[list[str] | None, typer.Option(help="Figure: fig2a, table2 ... Repeatable. Default: all.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for paper.md, ablations.md and their plots.")] = Path("docs"),
    run: Annotated[
        bool, typer.Option(help="Run unfinished figures first; --no-run: write the pages from finished ones.")
    ] = True,
    anyway: Anyway = False,
) -> None:
    """Run the paper's figures in miniature and our ablations (hours on a laptop), and write their pages."""
    from paras2s.experiments.paper import FIGURES, run_figures
    from paras2s.utils.progress import open_console

    for page in run_figures(only or FIGURES, open_console(), False, out, run, anyway):
        typer.echo(page)
