"""`paras2s config`."""

from __future__ import annotations

from pathlib import Path

import typer

from paras2s.cli.run_options import Config


def config(config: Config = Path("demo")) -> None:
    """Print a resolved config with every key."""
    from paras2s.configs.schema.base import dump_config
    from paras2s.run import open_run

    typer.echo(dump_config(open_run(config).config))
