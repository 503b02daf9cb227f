"""`paras2s export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, print_json


def export(
    checkpoint: Annotated[Path, typer.Argument(help="RUN/checkpoints/align/step_NNNNNN, RUN/aligned or RUN/sft.")],
    out: Annotated[Path | None, typer.Argument(help="New folder. Default: RUN/export/NAME.")] = None,
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Write adapters alone, in peft's layout. Default: folded in.")
    ] = False,
    components: Annotated[
        bool, typer.Option("--components", help="Copy the frozen audio encoder, tokenizer and vocoder as well.")
    ] = False,
    run: Annotated[Path | None, typer.Option(help="The run's folder, if the checkpoint is elsewhere.")] = None,
    as_json: Json = False,
) -> None:
    """Write a policy in its family's released layout, with a model card; nothing is sent anywhere."""
    from paras2s.pipeline.export import export_checkpoint

    exported = export_checkpoint(checkpoint, out, run, adapters, components)
    if as_json:
        print_json({"folder": str(exported.folder), "updates": exported.updates, "missing": list(exported.missing)})
        return
    typer.echo(f"{exported.folder}: the policy after {exported.updates} updates; README.md is its card, whose licence you set")
    if exported.missing:
        typer.echo(f"not in it: {', '.join(exported.missing)} (--components copies them)")
