"""The verb `rank`: systems by recorded verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, print_json
from paras2s.errors import ConfigError


def rank(
    verdicts: Annotated[
        Path,
        typer.Argument(
            help="CSV: aspect, instruction_id, system, reference, system_first, system_second (1, 2, tie). With the column "
            "human as well (people's label, 1 is the system) any two systems may meet."
        ),
    ],
    human: Annotated[
        Path | None, typer.Option(help="People's scores (CSV: system, score), or labelled pairs (TRACE's JSON).")
    ] = None,
    names: Annotated[Path | None, typer.Option(help="YAML: what people's systems are called among the verdicts.")] = None,
    alias: Annotated[list[str] | None, typer.Option(help="OLD=NEW: the same for one system. Repeatable.")] = None,
    rule: Annotated[str | None, typer.Option(help="How aspects become the ensemble; else majority.")] = None,
    rules: Annotated[Path | None, typer.Option(help="YAML with such rules of your own, for --rule.")] = None,
    aspect: Annotated[list[str] | None, typer.Option(help="Rank by this one, or by ensemble. Repeatable; else by all.")] = None,
    categories: Annotated[
        Path | None, typer.Option(help="Win rates by category of instruction as well (CSV: instruction_id, category).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for ranking.json, ranking.md and, with people's labels, ranking.svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank systems by a judge's recorded verdicts, and compare that with people (AudioJudge).

    Against one reference; or against one another, where each row has people's label in the column human.
    """
    from paras2s.bench.ranking.arena import holds_arena
    from paras2s.bench.ranking.arena_report import run_arena, show_arena
    from paras2s.bench.ranking.report import show
    from paras2s.bench.ranking.run import RankOptions, run_rank
    from paras2s.utils.progress import open_console

    if holds_arena(verdicts):
        if human or names or alias or rule or rules or aspect or categories:
            raise ConfigError(f"{verdicts}: has people's labels and meetings of any two systems: give --out and --json alone")
        arena, arena_report = run_arena(verdicts, out)
        print_json(arena_report) if as_json else show_arena(open_console(), arena)
        return
    options = RankOptions(verdicts, human, names, alias or [], rule, rules, aspect or [], out, categories)
    ranking, report = run_rank(options)
    if as_json:
        print_json(report)
        return
    console = open_console()
    show(console, ranking)
    if out is not None:
        plot = " and ranking.svg" if ranking.people else "; a plot needs --human"
        console.print(f"in {out}: ranking.json, ranking.md{plot}", highlight=False, markup=False)
