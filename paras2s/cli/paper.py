"""`paras2s paper`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def paper(
    only: Annotated[list[str] | None, typer.Option(help="One figure: fig2a, table2 ... Repeatable; else all.")] = None,
    out: Annotated[Path, typer.Option(help="Where paper.md and its plots are written.")] = Path("docs"),
    run: Annotated[bool, typer.Option(help="Run what is not complete yet; else write the page from what there is.")] = True,
) -> None:
    """Run the paper's figures in miniature, hours on a laptop, and write them beside the paper's numbers."""
    from paras2s.experiments.paper import FIGURES, run_figures
    from paras2s.utils.progress import open_console

    typer.echo(run_figures(only or FIGURES, open_console(), False, out, run))
