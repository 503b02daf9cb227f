"""A ranking of systems as one JSON object, as tables for a terminal and in Markdown, and as a plot (AudioJudge, Fig. 2).

Every name comes from a user's file: it is escaped wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paras2s.bench.charts import round_ticks
from paras2s.bench.ranking.data import Problem
from paras2s.bench.ranking.metrics import AspectRanking, PeopleRanking, Position, Ranking, SelfComparison, Standing
from paras2s.statistics.correlation import Correlation
from paras2s.statistics.intervals import Share

SHOWN_PROBLEMS = 5
PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 520, 400, 2
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 34, 44
CAPTION_HEIGHT = 56
LETTER, LINE = 5.6, 11.0  # About what a letter of a label takes, and a line of it.
# A label stands at most so many lines above or below its dot, and so far beside it; of free places the nearest is taken.
BESIDE = 16  # A label whose end is further off is tied to its dot by a line.
REACH, ASIDES = 8, (0, 30, 60, 100, 150)
Box = tuple[float, float, float, float]


def ranking_json(ranking: Ranking, about: Mapping[str, str | None]) -> dict[str, Any]:
    """Everything, rates and shares from 0 to 1; of each kind of problem how many there are, and the first few."""
    return {**about, **asdict(ranking), "problems": gathered(ranking.problems)}


def gathered(problems: Iterable[Problem]) -> dict[str, dict[str, Any]]:
    """Problems by kind."""
    kinds: dict[str, list[str]] = {}
    for problem in problems:
        kinds.setdefault(problem.kind, []).append(problem.where)
    return {kind: {"count": len(places), "first": places[:SHOWN_PROBLEMS]} for kind, places in sorted(kinds.items())}


@dataclass(frozen=True)
class Sheet:
    """One table, and what is to be said below it."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def sheets_of(ranking: Ranking) -> list[Sheet]:
    """Tables of every aspect, of position, and where they are known of people."""
    sheets = [_aspect_sheet(name, one, ranking) for name, one in ranking.aspects.items()]
    if ranking.categories:
        sheets += [_category_sheet(name, one, ranking.categories) for name, one in ranking.aspects.items()]
    sheets.append(_position_sheet(ranking.aspects))
    if ranking.people is not None:
        sheets += [_people_sheet(ranking.people), _correlation_sheet(ranking.aspects, ranking.people)]
    return sheets


def notes_of(ranking: Ranking) -> list[str]:
    """Notes on the rows that were read, and on every problem."""
    lines = [f"{ranking.n_rows} rows on {ranking.n_instructions} instructions against {ranking.reference}."]
    for kind, one in gathered(ranking.problems).items():
        more = f"; and {one['count'] - SHOWN_PROBLEMS} more" if one["count"] > SHOWN_PROBLEMS else ""
        lines.append(f"{kind} ({one['count']}): {'; '.join(one['first'])}{more}")
    return lines if ranking.problems else [*lines, "No problems: every row could be used, and none is missing."]


def _aspect_sheet(name: str, one: AspectRanking, ranking: Ranking) -> Sheet:
    people = ranking.people
    head = ("", "system", "win rate %", "Bradley-Terry %", "n of asked", *(("people",) if people else ()))
    rows = [
        ("-" if standing.place is None else str(standing.place), system, *_standing(standing))
        + ((_people_score(people, system),) if people else ())
        for system, standing in one.systems.items()
    ]
    itself = (
        f"{ranking.reference} has not met itself: its 50.00 is by definition, and counts in the correlation with people."
        if one.self_comparison is None
        else _of_itself(one.self_comparison)
    )
    return Sheet(f"{name}: against {ranking.reference}", head, rows, (itself,))


def _category_sheet(name: str, one: AspectRanking, categories: Mapping[str, Mapping[str, AspectRanking]]) -> Sheet:
    """Win rates by category, the number of games beside each."""
    rows = []
    for system in one.systems:
        parts = [aspects[name].systems[system].win_rate if name in aspects else None for aspects in categories.values()]
        rows.append((system, *("none" if part is None else f"{percent(part)} ({part.n} of {part.n_asked})" for part in parts)))
    note = "Win rate % with its interval, and n of the category's instructions. Differences of categories are not tested."
    return Sheet(f"{name}: by category of instruction", ("system", *categories), rows, (note,))


def _standing(one: Standing) -> tuple[str, str, str]:
    n = "by definition" if one.by_definition else f"{one.win_rate.n} of {one.win_rate.n_asked}"
    return percent(one.win_rate), _plain(one.bradley_terry), n


def _of_itself(one: SelfComparison) -> str:
    counts = one.outcomes
    outcomes = f"{counts['stable']} ties, first {counts['first']} times, second {counts['second']}, one tie {counts['other']}"
    same = f"in {one.n_same} of {one.n} both orders have the same label, as one call for both has, which is worth half a win"
    exact = "exactly 50.00" if one.win_rate == 0.5 else f"{100 * one.win_rate:.2f}, NOT 50.00: the judge goes by place"
    return f"Reference against itself: {exact} ({outcomes}; {same})."


def _position_sheet(aspects: Mapping[str, AspectRanking]) -> Sheet:
    head = ("aspect", "games", "n of asked", "stable %", "first %", "second %", "one tie %", "first - second", "p")
    rows = []
    for name, one in aspects.items():
        rows.append((name, "all", *_position(one.position)))
        if one.self_comparison is not None:
            rows.append((name, "without self-comparison", *_position(one.position_of_others)))
    note = (
        "stable: both orders mean the same, or both are ties; first, second: both orders prefer the clip in that place; "
        "one tie: only one order is a tie. Self-comparison counts among all: a winner there goes by place. p: that each "
        "instruction's difference might as well have had the other sign."
    )
    return Sheet("Position", head, rows, (note,))


def _position(one: Position) -> tuple[str, ...]:
    shares = (one.stable, one.first, one.second, one.other, one.bias)
    return f"{one.n} of {one.stable.n_asked}", *map(percent, shares), "-" if one.p_value is None else f"{one.p_value:.2g}"


def _people_sheet(people: PeopleRanking) -> Sheet:
    compared = bool(people.win_rates)
    head = ("system", "win rate %", "Bradley-Terry %", "games") if compared else ("system", "score")
    rows = []
    for system in people.scores:
        share = people.win_rates.get(system)
        more = (_plain(people.bradley_terry[system]), str(share.n)) if share else ()
        rows.append((system, _people_score(people, system), *more))
    notes = [f"Only among the verdicts: {', '.join(people.only_judge) or 'none'}."]
    notes.append(f"Only among people's: {', '.join(people.only_people) or 'none'}.")
    if people.ceiling is None:
        notes.append(f"No split-half ceiling: {people.why_no_ceiling}.")
    else:
        one = people.ceiling
        notes.append(
            f"Split-half ceiling, the mean of {one.n_halves} splits of the instructions: Spearman {_number(one.spearman)} "
            f"({_number(one.spearman_corrected)} by Spearman-Brown), Pearson {_number(one.pearson)} "
            f"({_number(one.pearson_corrected)})."
        )
    return Sheet("People", head, rows, tuple(notes))


def _people_score(people: PeopleRanking, system: str) -> str:
    if system in people.win_rates:
        return percent(people.win_rates[system])
    return f"{people.scores[system]:g}" if system in people.scores else "-"


def _correlation_sheet(aspects: Mapping[str, AspectRanking], people: PeopleRanking) -> Sheet:
    head = ("aspect", "systems", "Spearman", "p", "Pearson", "p")
    by_strength = bool(people.bradley_terry)
    rows = []
    for name, one in aspects.items():
        if one.people is not None:
            figures = (*_correlation(one.people.spearman), *_correlation(one.people.pearson))
            strength = (_number(one.people.strength_spearman),) if by_strength else ()
            rows.append((name, str(one.people.n_systems), *figures, *strength))
    drawn = "the judge's and people's instructions, each on their own" if people.win_rates else "the judge's instructions alone"
    note = f"Intervals draw {drawn}. Drawing adds noise, which lowers a correlation: they reach rather too far down."
    more = ("Spearman with people's Bradley-Terry",) if by_strength else ()
    return Sheet("Judge and people", (*head, *more), rows, (note,))


def _correlation(one: Correlation) -> tuple[str, str]:
    if one.value is None:
        return f"none ({one.why_none})", "-"
    interval = "" if one.low is None or one.high is None else f" [{one.low:.3f}, {one.high:.3f}]"
    return f"{one.value:.3f}{interval}", "-" if one.p_value is None else f"{one.p_value:.2g}"


def percent(share: Share) -> str:
    """A share in per cent, with its interval if there is one."""
    if share.value is None:
        return "none"
    interval = "" if share.low is None or share.high is None else f" [{100 * share.low:.2f}, {100 * share.high:.2f}]"
    return f"{100 * share.value:.2f}{interval}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def show(console: Console, ranking: Ranking) -> None:
    """Every table on a terminal."""
    for sheet in sheets_of(ranking):
        table = Table(*map(escape, sheet.head), title=escape(sheet.title), title_justify="left")
        for row in sheet.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
        for note in sheet.notes:
            console.print(note, highlight=False, markup=False)
        console.print()
    for line in notes_of(ranking):
        console.print(line, highlight=False, markup=False)


def markdown(ranking: Ranking, about: Mapping[str, str | None]) -> str:
    """The same tables in Markdown."""
    lines = ["# Systems ranked by recorded verdicts", ""]
    lines += [f"- {name}: {_safe(value)}" for name, value in about.items() if value is not None]
    for sheet in sheets_of(ranking):
        lines += ["", f"## {_safe(sheet.title)}", "", _line(sheet.head), "|---" * len(sheet.head) + "|"]
        lines += [_line(row) for row in sheet.rows]
        lines += [part for note in sheet.notes for part in ("", _safe(note))]
    lines += ["", "## What was read", "", *(f"- {_safe(line)}" for line in notes_of(ranking))]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_safe, cells)) + " |"


def _safe(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


@dataclass(frozen=True)
class Dot:
    """A system in a plot, each side with the ends of its interval, the value itself where there is none."""

    name: str
    x: tuple[float, float, float]
    y: tuple[float, float, float]


def scatter_svg(ranking: Ranking, people: PeopleRanking, source: str) -> str:
    """A panel for each aspect: the judge's win rate across, people's score upwards, one labelled dot a system.

    `source` says whose verdicts they are; it stands below, with what the intervals are.
    """
    scale = 100.0 if people.win_rates else 1.0
    titles = (
        f"the judge's win rate % against {ranking.reference}",
        "people's win rate %" if people.win_rates else "people's score",
    )
    panels = []
    for number, (name, one) in enumerate(ranking.aspects.items()):
        dots = [_dot(system, standing, people, scale) for system, standing in one.systems.items() if system in people.scores]
        link = (
            f"Spearman {_correlation(one.people.spearman)[0]}, {one.people.n_systems} systems" if one.people else "no Spearman"
        )
        body = _panel([dot for dot in dots if dot is not None], f"{name}: {link}", titles, bool(people.win_rates))
        x, y = number % COLUMNS * PANEL_WIDTH, number // COLUMNS * PANEL_HEIGHT
        panels.append(Markup('<g transform="translate({} {})">{}</g>').format(x, y, body))
    rows = -(-len(panels) // COLUMNS)
    size = (min(len(panels), COLUMNS) * PANEL_WIDTH, rows * PANEL_HEIGHT + CAPTION_HEIGHT)
    whose = "of people's win rates over their own" if people.win_rates else "people's scores have no intervals"
    caption = (
        source,
        f"bars and brackets: 95 % intervals, bootstrap over the judge's {ranking.n_instructions} instructions",
        f"{whose}; dashed: least squares",
    )
    head = Markup('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        *size, "The judge's win rates and people's scores of systems"
    )
    return Markup("").join([head, style_of(STYLE), *panels, *caption_of(caption, rows * PANEL_HEIGHT + 12), Markup("</svg>\n")])


def style_of(style: str) -> Markup:
    """A style sheet as an element of an SVG."""
    return Markup("<style>{}</style>").format(Markup(style))


def caption_of(lines: Sequence[str], top: float) -> list[Markup]:
    """Lines of text from the left edge, the first at the height of `top`."""
    return [Markup('<text x="12" y="{:.1f}">{}</text>').format(top + 16 * place, line) for place, line in enumerate(lines)]


STYLE = (
    "svg{font:12px sans-serif;background:#fff}.grid{stroke:#e4e4e4}.bar{stroke:#1f6feb;opacity:.35}.fit{stroke:#d1570a;"
    "stroke-dasharray:5 4}.dot{fill:#1f6feb}.leader{stroke:#999;stroke-width:.6}.name{font-size:10px}"
    ".x,.title{text-anchor:middle}.y{text-anchor:end;dominant-baseline:middle}.title{font-size:13px;font-weight:bold}"
)


def _dot(system: str, standing: Standing, people: PeopleRanking, scale: float) -> Dot | None:
    if standing.win_rate.value is None:
        return None
    score = people.scores[system]
    return Dot(
        system, _ends(standing.win_rate, 100.0), _ends(people.win_rates.get(system) or Share(score, None, None, 1, 1), scale)
    )


def _ends(share: Share, scale: float) -> tuple[float, float, float]:
    value = share.value or 0.0
    low, high = (value if end is None else end for end in (share.low, share.high))
    return scale * value, scale * low, scale * high


def _panel(dots: Sequence[Dot], title: str, axes: tuple[str, str], in_percent: bool) -> Markup:
    """One panel; `axes` are the titles of both, across first."""
    heights = [end for dot in dots for end in dot.y] or [0.0]
    low, high = (0.0, 100.0) if in_percent else (min(heights), max(heights))
    if low == high:
        low, high = low - 1.0, high + 1.0
    y_ticks = round_ticks(low, high)
    low, high = y_ticks[0], y_ticks[-1]

    def x_of(value: float) -> float:
        return LEFT + value / 100 * (PANEL_WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return TOP + (high - value) / (high - low) * (PANEL_HEIGHT - TOP - BOTTOM)

    line = Markup('<path class="{}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>')
    text = Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>')
    parts = [text.format("title", PANEL_WIDTH / 2, TOP - 14, title)]
    for rate in (0, 25, 50, 75, 100):
        x = x_of(rate)
        parts += [line.format("grid", x, TOP, x, PANEL_HEIGHT - BOTTOM), text.format("x", x, PANEL_HEIGHT - BOTTOM + 16, rate)]
    for height in y_ticks:
        y = y_of(height)
        parts += [line.format("grid", LEFT, y, PANEL_WIDTH - RIGHT, y), text.format("y", LEFT - 6, y, f"{height:g}")]
    parts.append(text.format("x", PANEL_WIDTH / 2, PANEL_HEIGHT - 10, axes[0]))
    middle = PANEL_HEIGHT / 2
    parts.append(Markup('<text class="x" transform="translate(14 {}) rotate(-90)">{}</text>').format(middle, axes[1]))
    xs, ys = [dot.x[0] for dot in dots], [dot.y[0] for dot in dots]
    if len(set(xs)) > 1:
        slope, start = np.polyfit(xs, ys, 1)
        ends = [start + slope * x for x in (min(xs), max(xs))]
        parts.append(line.format("fit", x_of(min(xs)), y_of(ends[0]), x_of(max(xs)), y_of(ends[1])))
    for dot in dots:
        parts.append(line.format("bar", x_of(dot.x[1]), y_of(dot.y[0]), x_of(dot.x[2]), y_of(dot.y[0])))
        parts.append(line.format("bar", x_of(dot.x[0]), y_of(dot.y[1]), x_of(dot.x[0]), y_of(dot.y[2])))
    centres = [(x_of(x), y_of(y)) for x, y in zip(xs, ys, strict=True)]
    parts += [Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(*centre) for centre in centres]
    bars = [
        bar
        for dot, (x, y) in zip(dots, centres, strict=True)
        for bar in bars_of((x_of(dot.x[1]), x, x_of(dot.x[2])), (y_of(dot.y[2]), y, y_of(dot.y[1])))
    ]
    frame = (LEFT, TOP / 2, PANEL_WIDTH, PANEL_HEIGHT - BOTTOM)
    return Markup("").join([*parts, *labels_of([dot.name for dot in dots], centres, bars, frame)])


def labels_of(names: Sequence[str], centres: Sequence[tuple[float, float]], bars: Sequence[Box], frame: Box) -> list[Markup]:
    """Each dot's name where `place_labels` puts it, with a thin line to its dot where it is not beside it."""
    parts = []
    for name, (x, y), (left, base) in zip(names, centres, place_labels(names, centres, bars, frame), strict=True):
        end = left - 1 if left > x else left + LETTER * len(name) + 1
        if np.hypot(end - x, base - 3 - y) > BESIDE:
            parts.append(Markup('<path class="leader" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(x, y, end, base - 3))
        parts.append(Markup('<text class="name" x="{:.1f}" y="{:.1f}">{}</text>').format(left, base, name))
    return parts


def bars_of(xs: tuple[float, float, float], ys: tuple[float, float, float]) -> list[Box]:
    """The boxes that both intervals of a dot take, of left, middle and right, and of top, middle and bottom."""
    return [(xs[0], ys[1] - 1, xs[2], ys[1] + 1), (xs[1] - 1, ys[0], xs[1] + 1, ys[2])]


def place_labels(
    names: Sequence[str], centres: Sequence[tuple[float, float]], bars: Sequence[Box], frame: Box
) -> list[tuple[float, float]]:
    """The start of each label: beside its dot, where it covers no dot, interval or earlier label if there is a place."""
    taken = [*((x - 4, y - 4, x + 4, y + 4) for x, y in centres), *bars]
    starts = []
    for name, (x, y) in zip(names, centres, strict=True):
        width = LETTER * len(name)
        sides = [
            (x + start, y + step * LINE + 3)
            for aside in ASIDES
            for start in (6 + aside, -6 - aside - width)
            for step in sorted(range(-REACH, REACH + 1), key=abs)
        ]
        boxes = [(left, base - LINE + 2, left + width, base + 2) for left, base in sides]
        inside = [one for one in boxes if one[0] > frame[0] and one[2] < frame[2] and one[1] > frame[1] and one[3] < frame[3]]
        covers = [sum(_overlap(one, other) for other in taken) for one in inside]
        free = [one for one, area in zip(inside, covers, strict=True) if not area]
        if free:
            box = min(free, key=lambda one: _distance(one, x, y))
        else:
            box = inside[covers.index(min(covers))] if inside else boxes[0]
        taken.append(box)
        starts.append((box[0], box[3] - 2))
    return starts


def _distance(box: Box, x: float, y: float) -> float:
    """The distance of a point from the nearer end of a label."""
    aside = min(abs(box[0] - x), abs(box[2] - x))
    return float(np.hypot(aside, (box[1] + box[3]) / 2 - y))


def _overlap(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)
