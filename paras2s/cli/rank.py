"""The verb `rank`: rank systems by recorded verdicts."""

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
            help="CSV: aspect, instruction_id, system, reference, system_first, system_second (1, 2, tie). With a column "
            "human (people's label, 1 is the system) rows may compare any two systems."
        ),
    ],
    human: Annotated[
        Path | None, typer.Option(help="People's scores (CSV: system, score), or labelled pairs (TRACE's JSON).")
    ] = None,
    names: Annotated[Path | None, typer.Option(help="YAML that maps people's names of systems to the verdicts' names.")] = None,
    alias: Annotated[list[str] | None, typer.Option(help="OLD=NEW: map the name of one system. Repeatable.")] = None,
    rule: Annotated[str | None, typer.Option(help="Rule that combines aspects to the ensemble. Default: majority.")] = None,
    rules: Annotated[Path | None, typer.Option(help="YAML with rules of your own, for --rule.")] = None,
    aspect: Annotated[list[str] | None, typer.Option(help="Aspect to rank by, or ensemble. Repeatable. Default: all.")] = None,
    categories: Annotated[
        Path | None, typer.Option(help="Categories of instructions, for win rates by category (CSV: instruction_id, category).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for ranking.json, ranking.md and, with people's labels, ranking.svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank systems by a judge's recorded verdicts, and compare that with people (AudioJudge).

    Systems meet one reference, or each other if each row has people's label in the column human.
    """
    from paras2s.bench.ranking.arena import holds_arena
    from paras2s.bench.ranking.arena_report import run_arena, show_arena
    from paras2s.bench.ranking.report import show
    from paras2s.bench.ranking.run import RankOptions, run_rank
    from paras2s.utils.progress import open_console

    if holds_arena(verdicts):
        if human or names or alias or rule or rules or aspect or categories:
            raise ConfigError(f"{verdicts}: has people's labels and compares any two systems: give --out and --json alone")
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
        console.print(f"in {out}: ranking.json, ranking.md{plot}")
