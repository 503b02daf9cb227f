"""A ranking of systems that meet one another, as JSON, tables, Markdown, and a plot (AudioJudge, Fig. 18)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.bench.plots.base import svg_of
from paras2s.bench.plots.scatter import Dot, Scatter
from paras2s.bench.ranking.arena import ArenaAspect, ArenaRanking, load_arena, rank_arena
from paras2s.bench.ranking.report import correlation_text, ends_of, gathered, page, percent
from paras2s.utils.io import write_json, write_text
from paras2s.utils.tables import Table, number_text

HEAD = (
    "system",
    "judge's win rate %",
    "people's win rate %",
    "judge's Bradley-Terry %",
    "people's Bradley-Terry %",
    "meetings",
)


def run_arena(path: Path, out: Path | None) -> tuple[ArenaRanking, dict[str, Any]]:
    """Rank the systems of a file of meetings; return and write the ranking and its report. Raises DataError. StorageError."""
    ranking = rank_arena(load_arena(path))
    report = {"verdicts": str(path), **asdict(ranking), "problems": gathered(ranking.problems)}
    if out is not None:
        write_json(out / "ranking.json", report)
        write_text(out / "ranking.md", markdown(ranking, path))
        for number, (name, aspect) in enumerate(ranking.aspects.items(), 1):
            # By number, as an aspect's name may hold any letter.
            suffix = f"-{number}" if len(ranking.aspects) > 1 else ""
            write_text(out / f"ranking{suffix}.svg", scatter(name, aspect, path.name))
    return ranking, report


def rows_of(aspect: ArenaAspect) -> list[tuple[str, ...]]:
    """Return a row for each system, in the order of people's win rates."""
    return [
        (
            name, percent(rank.judge), percent(rank.people), number_text(rank.judge_bradley_terry, scale=100.0),
            number_text(rank.people_bradley_terry, scale=100.0), str(rank.judge.n),
        )
        for name, rank in aspect.systems.items()
    ]  # fmt: skip


def findings(aspect: ArenaAspect) -> list[str]:
    """Return how far judge and people agree, and how far the judge agrees with itself, a line each."""
    position = aspect.position
    lean = "" if position.p_value is None else f", p = {position.p_value:.2g} that it leans to neither place"
    return [
        f"Spearman with people over {len(aspect.systems)} systems {correlation_text(aspect.spearman)}, "
        f"Pearson {correlation_text(aspect.pearson)}; drawing adds noise: intervals reach rather too far down.",
        f"Single verdicts that are people's, of 1, 2 and tie: {percent(aspect.accuracy)} %, "
        f"{aspect.accuracy.n} of {aspect.accuracy.n_asked} meetings, both orders.",
        f"Both orders mean the same: {percent(position.stable)} %; the first clip wins twice: {percent(position.first)} %; "
        f"the second: {percent(position.second)} %; one tie: {percent(position.other)} %{lean}.",
    ]


def notes(ranking: ArenaRanking) -> list[str]:
    """Return what could not be used, by kind."""
    lines = []
    for kind, rows in gathered(ranking.problems).items():
        lines.append(f"{kind} ({rows['count']}): {'; '.join(rows['first'])}")
    return lines or ["No problems: every row could be used."]


def tables_of(ranking: ArenaRanking, title: str) -> Iterator[Table]:
    """Yield a table for each aspect; `title` has a place for its name."""
    for name, aspect in ranking.aspects.items():
        yield Table(HEAD, rows_of(aspect), title.format(name), findings(aspect))


def show_arena(console: Console, ranking: ArenaRanking) -> None:
    """Show every table on a terminal."""
    for table in tables_of(ranking, "{}: systems against one another"):
        table.show(console)
        console.print()
    for line in notes(ranking):
        console.print(line)


def markdown(ranking: ArenaRanking, path: Path) -> str:
    """Return the same tables in Markdown."""
    return page(
        "# Systems ranked by meetings with one another", {"verdicts": str(path)}, tables_of(ranking, "{}"), notes(ranking)
    )


def scatter(name: str, aspect: ArenaAspect, source: str) -> str:
    """Draw people's win rate across, the judge's upwards, a labelled dot a system; dashed: equal. `source` is the file."""
    dots = [Dot(system, ends_of(rank.people, 100.0), ends_of(rank.judge, 100.0)) for system, rank in aspect.systems.items()]
    axes = ("people's win rate %", "the judge's win rate %")
    plot = Scatter(f"{name}: Spearman {correlation_text(aspect.spearman)}", dots, axes, line="equal")
    caption = (
        f"verdicts: {source}",
        "bars, brackets: 95 % intervals, bootstrap over instructions; dashed: judge and people alike",
    )
    return svg_of([plot], "The judge's and people's win rates of systems", caption=caption)
