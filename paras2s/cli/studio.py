"""`paras2s studio`: look at runs and listen to them in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.errors import ConfigError

DEFAULT_PORT = 8017


def studio(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="Runs, or folders that hold runs; without one: runs.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the address; 0: any free one.")] = DEFAULT_PORT,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address, and open no browser.")] = False,
) -> None:
    """Look at runs and listen to them in the browser, also while they are being made.

    Serves this machine alone (127.0.0.1), reads no file outside the folders, and writes none in them but people's
    answers to a study. Ctrl-C ends it.
    """
    try:
        from paras2s.studio.serve import serve
    except ImportError as error:
        raise ConfigError(f"the studio needs {error.name}: pip install 'paras2s[studio]'") from error
    serve(folders or [Path("runs")], port, not no_open, typer.echo)
