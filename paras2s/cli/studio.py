"""`paras2s studio`: show runs in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.errors import ConfigError

DEFAULT_PORT = 8017


def studio(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="Runs, or folders of runs. Default: runs.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the address. 0: any free port.")] = DEFAULT_PORT,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address; do not open a browser.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write runs to this folder, or one run's report to this .html; no server."),
    ] = None,
    run: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Export: only this run. Repeatable.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Export: N of a run's kept steps, evenly spaced, with the first and the last. Default: 5."),
    ] = None,
    step: Annotated[
        list[int] | None, typer.Option(min=0, help="Export: this kept step, in place of --steps. Repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Export: print the files and their sizes; write nothing.")] = False,
) -> None:
    """Look at runs and listen to them in the browser, also while they are being made.

    Serves this machine alone (127.0.0.1), reads no file outside the folders, and writes only people's answers to a
    study. Ctrl-C ends it. With --export it writes a copy of the pages as files, for others to open.
    """
    given = {"--run": run, "--steps": steps, "--step": step, "--dry-run": dry_run}
    if export is None and (alone := [name for name, value in given.items() if value]):
        raise ConfigError(f"{alone[0]}: belongs to --export OUT")
    if steps and step:
        raise ConfigError("--steps and --step: give one of them")
    check_installed()
    if export is None:
        from paras2s.studio.app import make_app
        from paras2s.studio.serve import serve

        serve(make_app(folders or [Path("runs")]), port, not no_open, typer.echo)
        return
    if export.suffix == ".html":
        from paras2s.studio.export.one_file import export_report

        if steps or step or dry_run:
            raise ConfigError("--steps, --step and --dry-run: belong to a folder as OUT; one file holds the report alone")
        export_report(folders or [Path("runs")], export, run or [])
        typer.echo(f"{export}: {export.stat().st_size / 1e6:.1f} MB")
        return
    from paras2s.studio.export.site import STEPS, Choice, export_site

    choice = Choice(tuple(run or ()), tuple(step or ()), steps or STEPS)
    export_site(folders or [Path("runs")], export, choice, dry_run, typer.echo)


def check_installed() -> None:
    """Check that the packages of the studio are installed.

    Raises:
        ConfigError: one is missing.
    """
    try:
        import paras2s.studio.app  # noqa: F401
        import paras2s.studio.serve  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"the studio needs {(error.name or 'starlette').partition('.')[0]}: pip install 'paras2s[studio]'"
        ) from error
