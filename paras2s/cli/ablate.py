"""`paras2s ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, parse_overrides, print_json
from paras2s.cli.run_options import Anyway, Set


def ablate(
    config: Annotated[Path, typer.Argument(help="YAML of an ablation, or the name of a shipped one (configs/paper).")],
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved config of every row; run nothing.")] = False,
    anyway: Anyway = False,
    as_json: Json = False,
) -> None:
    """Run a grid of settings that shares common stages, and write one table and its plots."""
    from paras2s.configs.schema.ablation import load_ablation
    from paras2s.configs.schema.base import dump_config, preset_path
    from paras2s.pipeline.ablate import row_config, run_ablation
    from paras2s.utils.io import read_json
    from paras2s.utils.progress import open_console

    path = config if config.suffix in (".yaml", ".yml") else preset_path(str(config), "paper")
    ablation = load_ablation(path, parse_overrides(set_))
    if dry_run:
        for row in ablation.rows:
            typer.echo(f"# {row.name}\n{dump_config(row_config(ablation, row, ablation.seeds[0]))}")
        return
    folder = run_ablation(ablation, open_console(to_stderr=as_json), as_json, anyway)
    if as_json:
        print_json(read_json(folder / "table.json"))
    else:
        typer.echo(f"{folder}/table.md, table.json, and plots of rows with a value of x")
