"""Options of the verbs that work on a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Argument(help="YAML config of a run, a run folder, or the name of a preset: demo, quick, full.")]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", help="Override a key of the config: align.steps=3. Repeatable.")]
Seed = Annotated[int | None, typer.Option(help="Seed in place of the config's; the run gets a folder of its own.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print diagnostics as well: every system, filters, judges.")]
RunDir = Annotated[Path | None, typer.Option(help="Run folder in place of the config's.")]
Anyway = Annotated[bool, typer.Option("--anyway", help="Go on with a judge or reward that its audit refuses; reports say so.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait while another command works in the run folder.")]
