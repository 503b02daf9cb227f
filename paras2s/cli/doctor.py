"""`paras2s doctor`: list installed and missing parts."""

from __future__ import annotations

from typing import Any

import typer

from paras2s.cli.options import Json, print_json


def doctor(as_json: Json = False) -> None:
    """List installed and missing parts, and the features that each missing part switches off."""
    from paras2s.pipeline.doctor import examine

    report = examine()
    if as_json:
        print_json(report)
    else:
        show(report)
    if any(part["needed"] and not part["ok"] for part in report["parts"]):
        raise typer.Exit(1)


def show(report: dict[str, Any]) -> None:
    """Print the report as a table."""
    from paras2s.utils.progress import open_console
    from paras2s.utils.tables import Styled, Table

    rows = []
    for part in report["parts"]:
        colour = "green" if part["ok"] else "red" if part["needed"] else "yellow"
        rows.append((part["part"], Styled(part["is"], colour), part["switches_off"]))
    console = open_console()
    console.print(", ".join(f"{key} {value}" for key, value in report["machine"].items()))
    Table(("part", "state", "needed for"), rows).show(console)
