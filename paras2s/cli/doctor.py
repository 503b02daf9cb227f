"""`paras2s doctor`: prints what is installed, what is missing, and what that switches off."""

from __future__ import annotations

from typing import Any

from paras2s.pipeline.doctor import examine as examine


def show(report: dict[str, Any]) -> None:
    """Prints the report as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("part", "state", "if missing, there is no")
    for part in report["parts"]:
        colour = "green" if part["ok"] else "red" if part["needed"] else "yellow"
        table.add_row(part["part"], f"[{colour}]{part['is']}[/]", part["switches_off"])
    console = Console()
    console.print(", ".join(f"{key} {value}" for key, value in report["machine"].items()))
    console.print(table)
