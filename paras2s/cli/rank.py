"""The verb `rank`: systems by recorded verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, print_json


def rank(
    verdicts: Annotated[
        Path, typer.Argument(help="CSV: aspect, instruction_id, system, reference, system_first, system_second (1, 2, tie).")
    ],
    human: Annotated[
        Path | None, typer.Option(help="People's scores (CSV: system, score), or labelled pairs (TRACE's JSON).")
    ] = None,
    names: Annotated[Path | None, typer.Option(help="YAML: what people's systems are called among the verdicts.")] = None,
    alias: Annotated[list[str] | None, typer.Option(help="OLD=NEW: the same for one system. Repeatable.")] = None,
    rule: Annotated[str | None, typer.Option(help="How aspects become the ensemble; else majority.")] = None,
    rules: Annotated[Path | None, typer.Option(help="YAML with such rules of your own, for --rule.")] = None,
    aspect: Annotated[list[str] | None, typer.Option(help="Rank by this one, or by ensemble. Repeatable; else by all.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for ranking.json, ranking.md and, with --human, ranking.svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank systems by a judge's recorded verdicts against one reference, and compare that with people (AudioJudge)."""
    from paras2s.bench.ranking.report import show
    from paras2s.bench.ranking.run import RankOptions, run_rank
    from paras2s.utils.progress import open_console

    options = RankOptions(verdicts, human, names, alias or [], rule, rules, aspect or [], out)
    ranking, report = run_rank(options)
    if as_json:
        print_json(report)
        return
    console = open_console()
    show(console, ranking)
    if out is not None:
        plot = " and ranking.svg" if ranking.people else "; a plot needs --human"
        console.print(f"in {out}: ranking.json, ranking.md{plot}", highlight=False, markup=False)
