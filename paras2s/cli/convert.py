"""`paras2s convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(folder: Annotated[Path, typer.Argument(help="A run folder that version 0.5 or before wrote.")]) -> None:
    """Rewrite a run folder of version 0.5 or before in place, so that this version continues it."""
    from paras2s.pipeline.convert import convert_run

    changed = convert_run(folder)
    typer.echo("\n".join(f"{folder / name}: converted" for name in changed) or f"{folder}: nothing to convert")
