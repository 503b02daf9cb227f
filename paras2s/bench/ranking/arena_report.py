"""A ranking of systems that meet one another, as JSON, tables, Markdown, and a plot (AudioJudge, Fig. 18)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paras2s.bench.charts import round_ticks
from paras2s.bench.ranking.arena import ArenaAspect, ArenaRanking, load_arena, rank_arena
from paras2s.bench.ranking.report import bars_of, caption_of, gathered, labels_of, percent, style_of
from paras2s.statistics.correlation import Correlation
from paras2s.statistics.intervals import Share
from paras2s.utils.io import write_json, write_text

WIDTH, HEIGHT, CAPTION_HEIGHT = 640, 560, 40
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 40, 48
HEAD = (
    "system",
    "judge's win rate %",
    "people's win rate %",
    "judge's Bradley-Terry %",
    "people's Bradley-Terry %",
    "meetings",
)
STYLE = (
    "svg{font:12px sans-serif;background:#fff}.grid{stroke:#e4e4e4}.equal{stroke:#888;stroke-dasharray:5 4}"
    ".bar{stroke:#1f6feb;opacity:.3}.dot{fill:#1f6feb}.leader{stroke:#999;stroke-width:.6}.name{font-size:10px}.x,.title{text-anchor:middle}.y{text-anchor:end;"
    "dominant-baseline:middle}.title{font-size:13px;font-weight:bold}"
)


def run_arena(path: Path, out: Path | None) -> tuple[ArenaRanking, dict[str, Any]]:
    """Ranks the systems of a file of meetings; returns the ranking and its report, which is written to `out` as well.

    Raises:
        DataError: a file that is not as expected. StorageError: the disk refused.
    """
    ranking = rank_arena(load_arena(path))
    report = {"verdicts": str(path), **asdict(ranking), "problems": gathered(ranking.problems)}
    if out is not None:
        write_json(out / "ranking.json", report)
        write_text(out / "ranking.md", markdown(ranking, path))
        for name, one in ranking.aspects.items():
            write_text(out / f"ranking{_suffix(name, ranking)}.svg", scatter(name, one, path.name))
    return ranking, report


def _suffix(name: str, ranking: ArenaRanking) -> str:
    """Returns nothing for the only aspect, and the number of one of several, as a name may hold any letter."""
    return "" if len(ranking.aspects) == 1 else f"-{list(ranking.aspects).index(name) + 1}"


def rows_of(one: ArenaAspect) -> list[tuple[str, ...]]:
    """A row a system, in the order of people's win rates."""
    return [
        (
            name, percent(rank.judge), percent(rank.people), f"{100 * rank.judge_bradley_terry:.2f}",
            f"{100 * rank.people_bradley_terry:.2f}", str(rank.judge.n),
        )
        for name, rank in one.systems.items()
    ]  # fmt: skip


def findings(one: ArenaAspect) -> list[str]:
    """Says how far judge and people agree, and how far the judge agrees with itself, a line each."""
    place = one.position
    lean = "" if place.p_value is None else f", p = {place.p_value:.2g} that it leans to neither place"
    return [
        f"Spearman with people over {len(one.systems)} systems {_correlation(one.spearman)}, "
        f"Pearson {_correlation(one.pearson)}; drawing adds noise: intervals reach rather too far down.",
        f"Single verdicts that are people's, of 1, 2 and tie: {percent(one.accuracy)} %, "
        f"{one.accuracy.n} of {one.accuracy.n_asked} meetings, both orders.",
        f"Both orders mean the same: {percent(place.stable)} %; the first clip wins twice: {percent(place.first)} %; "
        f"the second: {percent(place.second)} %; one tie: {percent(place.other)} %{lean}.",
    ]


def _correlation(one: Correlation) -> str:
    if one.value is None:
        return f"none ({one.why_none})"
    interval = "" if one.low is None or one.high is None else f" [{one.low:.3f}, {one.high:.3f}]"
    return f"{one.value:.3f}{interval}"


def notes(ranking: ArenaRanking) -> list[str]:
    """Says what could not be used, by kind."""
    lines = []
    for kind, found in gathered(ranking.problems).items():
        lines.append(f"{kind} ({found['count']}): {'; '.join(found['first'])}")
    return lines or ["No problems: every row could be used."]


def show_arena(console: Console, ranking: ArenaRanking) -> None:
    """Every table on a terminal."""
    for name, one in ranking.aspects.items():
        table = Table(*HEAD, title=escape(f"{name}: systems against one another"), title_justify="left")
        for row in rows_of(one):
            table.add_row(*map(escape, row))
        console.print(table)
        for line in findings(one):
            console.print(line, highlight=False, markup=False)
        console.print()
    for line in notes(ranking):
        console.print(line, highlight=False, markup=False)


def markdown(ranking: ArenaRanking, path: Path) -> str:
    """The same tables in Markdown."""
    lines = ["# Systems ranked by meetings with one another", "", f"- verdicts: {path}"]
    for name, one in ranking.aspects.items():
        lines += ["", f"## {_safe(name)}", "", _line(HEAD), "|---" * len(HEAD) + "|", *map(_line, rows_of(one))]
        lines += [part for finding in findings(one) for part in ("", finding)]
    lines += ["", "## What was read", "", *(f"- {_safe(line)}" for line in notes(ranking))]
    return "\n".join(lines) + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(_safe, cells)) + " |"


def _safe(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def scatter(name: str, one: ArenaAspect, source: str) -> str:
    """People's win rate across, the judge's upwards, a labelled dot a system with both intervals; dashed: the two are equal.

    `source` is the file of verdicts.
    """
    shares = [(system, rank.people, rank.judge) for system, rank in one.systems.items()]
    ends = [100 * end for _, people, judge in shares for end in (*_three(people), *_three(judge))]
    # Two systems that only ever tie have no spread of their own.
    ticks = round_ticks(min(*ends, 49.0), max(*ends, 51.0))
    low, high = ticks[0], ticks[-1]

    def x_of(value: float) -> float:
        return LEFT + (100 * value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return TOP + (high - 100 * value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    line = Markup('<path class="{}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>')
    text = Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>')
    parts = [text.format("title", WIDTH / 2, TOP - 16, f"{name}: Spearman {_correlation(one.spearman)}")]
    for tick in ticks:
        x, y = x_of(tick / 100), y_of(tick / 100)
        parts += [line.format("grid", x, TOP, x, HEIGHT - BOTTOM), text.format("x", x, HEIGHT - BOTTOM + 16, f"{tick:g}")]
        parts += [line.format("grid", LEFT, y, WIDTH - RIGHT, y), text.format("y", LEFT - 6, y, f"{tick:g}")]
    parts.append(line.format("equal", x_of(low / 100), y_of(low / 100), x_of(high / 100), y_of(high / 100)))
    parts.append(text.format("x", WIDTH / 2, HEIGHT - 12, "people's win rate %"))
    parts.append(Markup('<text class="x" transform="translate(16 {}) rotate(-90)">{}</text>').format(
        HEIGHT / 2, "the judge's win rate %"))  # fmt: skip
    centres, bars = [], []
    for _, people, judge in shares:
        left, middle, right = map(x_of, _three(people))
        bottom, height, top = map(y_of, _three(judge))
        centres.append((middle, height))
        bars += bars_of((left, middle, right), (top, height, bottom))
        parts += [line.format("bar", left, height, right, height), line.format("bar", middle, bottom, middle, top)]
    parts += [Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(*centre) for centre in centres]
    names = [system for system, _, _ in shares]
    parts += labels_of(names, centres, bars, (LEFT, TOP / 2, WIDTH, HEIGHT - BOTTOM))
    caption = (
        f"verdicts: {source}",
        "bars, brackets: 95 % intervals, bootstrap over instructions; dashed: judge and people alike",
    )
    head = Markup('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        WIDTH, HEIGHT + CAPTION_HEIGHT, "The judge's and people's win rates of systems"
    )
    return Markup("").join([head, style_of(STYLE), *parts, *caption_of(caption, HEIGHT + 12), Markup("</svg>\n")])


def _three(share: Share) -> tuple[float, float, float]:
    """Low end, value and high end; the value itself where there is no interval."""
    value = share.value or 0.0
    return value if share.low is None else share.low, value, value if share.high is None else share.high
