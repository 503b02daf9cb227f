"""`paras2s export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, print_json


def export(
    checkpoint: Annotated[Path, typer.Argument(help="RUN/checkpoints/align/step_NNNNNN, RUN/aligned or RUN/sft.")],
    out: Annotated[Path | None, typer.Argument(help="A new folder; else RUN/export/NAME.")] = None,
    adapters: Annotated[bool, typer.Option("--adapters", help="Adapters alone, in peft's layout; else folded in.")] = False,
    components: Annotated[
        bool, typer.Option("--components", help="Copy the frozen audio encoder, tokenizer and vocoder as well.")
    ] = False,
    run: Annotated[Path | None, typer.Option(help="The run's folder, if the checkpoint does not lie in it.")] = None,
    as_json: Json = False,
) -> None:
    """Write a policy in its family's released layout, with a model card; nothing is sent anywhere."""
    from paras2s.pipeline.export import export_checkpoint

    found = export_checkpoint(checkpoint, out, run, adapters, components)
    if as_json:
        print_json({"folder": str(found.folder), "updates": found.updates, "missing": list(found.missing)})
        return
    typer.echo(f"{found.folder}: the policy after {found.updates} updates; README.md is its card, whose licence you set")
    if found.missing:
        typer.echo(f"not in it: {', '.join(found.missing)} (--components copies them)")
