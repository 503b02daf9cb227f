"""A ranking of systems as one JSON object, as tables for a terminal and in Markdown, and as a plot (AudioJudge, Fig. 2).

Every name comes from a user's file: it is escaped wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from paras2s.bench.plots.base import svg_of
from paras2s.bench.plots.scatter import Dot, Scatter
from paras2s.bench.ranking.data import Problem
from paras2s.bench.ranking.metrics import AspectRanking, PeopleRanking, PositionBias, Ranking, SelfComparison, Standing
from paras2s.statistics.correlation import Correlation
from paras2s.statistics.intervals import Share
from paras2s.utils.tables import Table, escape_markdown, number_text, p_value, with_interval

SHOWN_PROBLEMS = 5


def ranking_json(ranking: Ranking, about: Mapping[str, str | None]) -> dict[str, Any]:
    """Return everything as plain JSON, rates from 0 to 1; for each kind of problem its count and its first places."""
    return {**about, **asdict(ranking), "problems": gathered(ranking.problems)}


def gathered(problems: Iterable[Problem]) -> dict[str, dict[str, Any]]:
    """Return problems by kind."""
    kinds: dict[str, list[str]] = {}
    for problem in problems:
        kinds.setdefault(problem.kind, []).append(problem.where)
    return {kind: {"count": len(places), "first": places[:SHOWN_PROBLEMS]} for kind, places in sorted(kinds.items())}


def tables_of(ranking: Ranking) -> list[Table]:
    """Return the tables of every aspect, of position, and of people where their scores are known."""
    tables = [_aspect_table(name, aspect, ranking) for name, aspect in ranking.aspects.items()]
    if ranking.categories:
        tables += [_category_table(name, aspect, ranking.categories) for name, aspect in ranking.aspects.items()]
    tables.append(_position_table(ranking.aspects))
    if ranking.people is not None:
        tables += [_people_table(ranking.people), _correlation_table(ranking.aspects, ranking.people)]
    return tables


def notes_of(ranking: Ranking) -> list[str]:
    """Return notes on the rows that were read, and on every problem."""
    lines = [f"{ranking.n_rows} rows on {ranking.n_instructions} instructions against {ranking.reference}."]
    for kind, problems in gathered(ranking.problems).items():
        more = f"; and {problems['count'] - SHOWN_PROBLEMS} more" if problems["count"] > SHOWN_PROBLEMS else ""
        lines.append(f"{kind} ({problems['count']}): {'; '.join(problems['first'])}{more}")
    return lines if ranking.problems else [*lines, "No problems: every row could be used, and none is missing."]


def _aspect_table(name: str, aspect: AspectRanking, ranking: Ranking) -> Table:
    people = ranking.people
    head = ("", "system", "win rate %", "Bradley-Terry %", "n of asked", *(("people",) if people else ()))
    rows = [
        (standing.place, system, *_standing(standing)) + ((_people_score(people, system),) if people else ())
        for system, standing in aspect.systems.items()
    ]
    itself = (
        f"{ranking.reference} has not met itself: its 50.00 is by definition, and counts in the correlation with people."
        if aspect.self_comparison is None
        else _of_itself(aspect.self_comparison)
    )
    return Table(head, rows, f"{name}: against {ranking.reference}", (itself,))


def _category_table(name: str, aspect: AspectRanking, categories: Mapping[str, Mapping[str, AspectRanking]]) -> Table:
    """Return win rates by category, each with its number of games."""
    rows = []
    for system in aspect.systems:
        parts = [aspects[name].systems[system].win_rate if name in aspects else None for aspects in categories.values()]
        rows.append((system, *("none" if part is None else f"{percent(part)} ({part.n} of {part.n_asked})" for part in parts)))
    note = "Win rate % with its interval, and n of the category's instructions. Differences of categories are not tested."
    return Table(("system", *categories), rows, f"{name}: by category of instruction", (note,))


def _standing(standing: Standing) -> tuple[str, str, str]:
    share = standing.win_rate
    n = "by definition" if standing.by_definition else f"{share.n} of {share.n_asked}"
    return percent(share), number_text(standing.bradley_terry, scale=100.0), n


def _of_itself(games: SelfComparison) -> str:
    counts = games.outcomes
    outcomes = f"{counts['stable']} ties, first {counts['first']} times, second {counts['second']}, one tie {counts['other']}"
    same = (
        f"in {games.n_same} of {games.n} both orders have the same label, as one call for both has, which is worth half a win"
    )
    exact = "exactly 50.00" if games.win_rate == 0.5 else f"{100 * games.win_rate:.2f}, NOT 50.00: the judge goes by place"
    return f"Reference against itself: {exact} ({outcomes}; {same})."


def _position_table(aspects: Mapping[str, AspectRanking]) -> Table:
    head = ("aspect", "games", "n of asked", "stable %", "first %", "second %", "one tie %", "first - second", "p")
    rows = []
    for name, aspect in aspects.items():
        rows.append((name, "all", *_position(aspect.position)))
        if aspect.self_comparison is not None:
            rows.append((name, "without self-comparison", *_position(aspect.position_of_others)))
    note = (
        "stable: both orders mean the same, or both are ties; first, second: both orders prefer the clip in that place; "
        "one tie: only one order is a tie. Self-comparison counts among all: a winner there goes by place. p: that each "
        "instruction's difference might as well have had the other sign."
    )
    return Table(head, rows, "Position", (note,))


def _position(position: PositionBias) -> tuple[str, ...]:
    shares = (position.stable, position.first, position.second, position.other, position.bias)
    return f"{position.n} of {position.stable.n_asked}", *map(percent, shares), p_value(position.p_value)


def _people_table(people: PeopleRanking) -> Table:
    compared = bool(people.win_rates)
    head = ("system", "win rate %", "Bradley-Terry %", "games") if compared else ("system", "score")
    rows = []
    for system in people.scores:
        share = people.win_rates.get(system)
        more = (number_text(people.bradley_terry[system], scale=100.0), str(share.n)) if share else ()
        rows.append((system, _people_score(people, system), *more))
    notes = [f"Only among the verdicts: {', '.join(people.only_judge) or 'none'}."]
    notes.append(f"Only among people's: {', '.join(people.only_people) or 'none'}.")
    if people.ceiling is None:
        notes.append(f"No split-half ceiling: {people.why_no_ceiling}.")
    else:
        ceiling = people.ceiling
        spearman, pearson = decimal(ceiling.spearman), decimal(ceiling.pearson)
        notes.append(
            f"Split-half ceiling, the mean of {ceiling.n_halves} splits of the instructions: Spearman {spearman} "
            f"({decimal(ceiling.spearman_corrected)} by Spearman-Brown), Pearson {pearson} "
            f"({decimal(ceiling.pearson_corrected)})."
        )
    return Table(head, rows, "People", notes)


def _people_score(people: PeopleRanking, system: str) -> str:
    if system in people.win_rates:
        return percent(people.win_rates[system])
    return f"{people.scores[system]:g}" if system in people.scores else "-"


def _correlation_table(aspects: Mapping[str, AspectRanking], people: PeopleRanking) -> Table:
    head = ("aspect", "systems", "Spearman", "p", "Pearson", "p")
    by_strength = bool(people.bradley_terry)
    rows = []
    for name, aspect in aspects.items():
        if aspect.people is not None:
            figures = (*_correlation(aspect.people.spearman), *_correlation(aspect.people.pearson))
            strength = (decimal(aspect.people.strength_spearman),) if by_strength else ()
            rows.append((name, str(aspect.people.n_systems), *figures, *strength))
    drawn = "the judge's and people's instructions, each on their own" if people.win_rates else "the judge's instructions alone"
    note = f"Intervals draw {drawn}. Drawing adds noise, which lowers a correlation: they reach rather too far down."
    more = ("Spearman with people's Bradley-Terry",) if by_strength else ()
    return Table((*head, *more), rows, "Judge and people", (note,))


def decimal(value: float | None) -> str:
    """Return a correlation without its interval."""
    return number_text(value, 3, none="none")


def _correlation(correlation: Correlation) -> tuple[str, str]:
    return correlation_text(correlation), p_value(correlation.p_value)


def correlation_text(correlation: Correlation) -> str:
    """Return a correlation with its interval, or why there is none."""
    return with_interval(correlation, 3, brackets=True, none=f"none ({correlation.why_none})")


def percent(share: Share) -> str:
    """Return a share in percent, with its interval if there is one."""
    return with_interval(share, scale=100.0, brackets=True, none="none")


def show(console: Console, ranking: Ranking) -> None:
    """Show every table on a terminal."""
    for table in tables_of(ranking):
        table.show(console)
        console.print()
    for line in notes_of(ranking):
        console.print(line)


def markdown(ranking: Ranking, about: Mapping[str, str | None]) -> str:
    """Return the same tables in Markdown."""
    return page("# Systems ranked by recorded verdicts", about, tables_of(ranking), notes_of(ranking))


def page(title: str, about: Mapping[str, str | None], tables: Iterable[Table], notes: Iterable[str]) -> str:
    """Return a page: what was ranked, the tables, and notes on what was read."""
    listed = "\n".join(f"- {name}: {escape_markdown(value)}" for name, value in about.items() if value is not None)
    read = "\n".join(f"- {escape_markdown(line)}" for line in notes)
    return "\n\n".join([title, listed, *(table.markdown(heading=2) for table in tables), "## What was read", read]) + "\n"


def scatter_svg(ranking: Ranking, people: PeopleRanking, source: str) -> str:
    """Draw a panel for each aspect: the judge's win rate across, people's upwards, a labelled dot a system; `source` below."""
    scale = 100.0 if people.win_rates else 1.0
    titles = (
        f"the judge's win rate % against {ranking.reference}",
        "people's win rate %" if people.win_rates else "people's score",
    )
    panels = []
    for name, aspect in ranking.aspects.items():
        dots = []
        for system, standing in aspect.systems.items():
            if system in people.scores and standing.win_rate.value is not None:
                human = people.win_rates.get(system) or Share(people.scores[system], None, None, 1, 1)
                dots.append(Dot(system, ends_of(standing.win_rate, 100.0), ends_of(human, scale)))
        link = (
            f"Spearman {correlation_text(aspect.people.spearman)}, {aspect.people.n_systems} systems"
            if aspect.people
            else "no Spearman"
        )
        panels.append(Scatter(f"{name}: {link}", dots, titles, line="least squares"))
    whose = "of people's win rates over their own" if people.win_rates else "people's scores have no intervals"
    caption = (
        source,
        f"bars and brackets: 95 % intervals, bootstrap over the judge's {ranking.n_instructions} instructions",
        f"{whose}; dashed: least squares",
    )
    return svg_of(panels, "The judge's win rates and people's scores of systems", caption=caption)


def ends_of(share: Share, scale: float) -> tuple[float, float, float]:
    """Return low end, value and high end; the value itself where there is no interval."""
    value = share.value or 0.0
    low, high = (value if end is None else end for end in (share.low, share.high))
    return scale * low, scale * value, scale * high
