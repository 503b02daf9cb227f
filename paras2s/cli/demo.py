"""`paras2s demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, parse_overrides, print_json
from paras2s.cli.run_options import Anyway, RunDir, Seed, Set, Verbose, Wait
from paras2s.cli.studio import check_installed


def demo(
    preset: Annotated[
        str, typer.Option(help="Preset: demo, quick (smaller), full (longer) or spoken_lm (a language model).")
    ] = "demo",
    seed: Seed = None,
    run_dir: RunDir = None,
    set_: Set = None,
    resume: Annotated[bool, typer.Option(help="Continue a stopped run; finished stages are kept either way.")] = True,
    anyway: Anyway = False,
    wait: Wait = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the planned stages and the config; run nothing.")] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Train a small speech-to-speech model by reinforcement on this machine, offline, and write report.html."""
    from paras2s.configs.schema.base import dump_config
    from paras2s.pipeline.demo import announce, run_demo
    from paras2s.run import open_run

    run = open_run(Path(preset), parse_overrides(set_), seed, run_dir, as_json, verbose, anyway)
    if dry_run:
        typer.echo(announce(run))
        typer.echo(dump_config(run.config))
        return
    check_installed()
    from paras2s.studio.export.one_file import export_report

    summary = run_demo(run, resume, wait)
    page = run.folder / "report.html"
    export_report([run.folder], page, [])
    run.say(f"Look and listen: {page}, or every answer in the browser: paras2s studio {run.folder.parent}")
    run.say(f"Ask both policies yourself: paras2s talk {run.folder}")
    run.say(f"Every system and diagnostics: paras2s bench contrasts {run.folder} -v. Next: docs/tutorials/post-train.md")
    if as_json:
        print_json(summary)
