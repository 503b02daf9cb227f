"""`paras2s doctor`: list installed and missing parts, or what an endpoint of language models can do."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paras2s.cli.options import Json, print_json


def doctor(
    llm: Annotated[str | None, typer.Option(help="Address of an LLM to ask instead: its speed, limits, settings.")] = None,
    model: Annotated[str | None, typer.Option(help="Model of --llm. Default: the first in its list.")] = None,
    as_json: Json = False,
) -> None:
    """List installed and missing parts, and the features that each missing part switches off; or examine an endpoint."""
    from paras2s.pipeline.doctor import examine

    if llm is not None:
        return _examine_llm(llm, model, as_json)
    report = examine()
    if as_json:
        print_json(report)
    else:
        show(report)
    if any(part["needed"] and not part["ok"] for part in report["parts"]):
        raise typer.Exit(1)


def _examine_llm(url: str, model: str | None, as_json: bool) -> None:
    """Print what an endpoint can do, and the settings for a judge's YAML."""
    import yaml

    from paras2s.clients.doctor import examine_endpoint
    from paras2s.errors import ConfigError, checking
    from paras2s.utils.progress import open_console
    from paras2s.utils.tables import Styled, Table

    with checking("--llm", error=ConfigError):
        report = examine_endpoint(url, model)
    if as_json:
        return print_json(report.to_json())
    colours = {True: "green", False: "yellow"}
    rows = [
        (each.what, each.state if each.works is None else Styled(each.state, colours[each.works])) for each in report.findings
    ]
    console = open_console()
    Table(("endpoint", "found"), rows).show(console)
    console.print(yaml.safe_dump({"llm": report.settings}, sort_keys=False).strip())


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
