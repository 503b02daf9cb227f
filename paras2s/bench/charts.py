"""Small charts as inline SVG: curves over steps, shares with their intervals as points or bars, and confusion matrices."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from markupsafe import Markup

if TYPE_CHECKING:
    from paras2s.statistics.intervals import Share

Point = TypeVar("Point")

CHART_WIDTH, CHART_HEIGHT = 420, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 26
COUNT_LINE = 13
# Points of several lines at one step stand so far apart, in pixels, that their intervals can be told from one another.
BESIDE = 4
BAR_LINE, LABEL, AXIS, WORDS = 20, 108, 270, 280
# The name of a group has at most so many letters, of about so many pixels.
GROUP_LETTERS, LETTER = 32, 8
CELL, SIDE, PANEL_TOP, PANEL_GAP = 66, 66, 40, 26


def draw_curves(
    steps: Sequence[float], lines: Sequence[Sequence[float | None]], spread: Sequence[float | None], description: str
) -> Markup:
    """Lines over steps as inline SVG; None leaves a gap. `spread` is the half-width of a band around the first line."""
    band = [
        None if value is None or width is None else (value - width, value + width)
        for value, width in zip(lines[0], spread, strict=True)
    ]
    heights = [value for line in lines for value in line if value is not None]
    heights += [edge for edges in band if edges is not None for edge in edges]
    axes = _Axes(steps, heights)
    parts = [Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(CHART_WIDTH, CHART_HEIGHT, description)]
    parts += [*axes.grid(), *axes.steps()]
    for stretch in _runs(band):
        upper = [f"{axes.x(steps[index]):.1f} {axes.y(edges[1]):.1f}" for index, edges in stretch]
        lower = [f"{axes.x(steps[index]):.1f} {axes.y(edges[0]):.1f}" for index, edges in reversed(stretch)]
        parts.append(Markup('<path class="band" d="M{}Z"/>').format("L".join(upper + lower)))
    for number, line in enumerate(lines):
        for run in _runs(line):
            points = [f"{axes.x(steps[index]):.1f} {axes.y(value):.1f}" for index, value in run]
            # A path of one point and zero length is drawn as a dot, thanks to its round caps.
            path = "L".join(points if len(points) > 1 else points * 2)
            parts.append(Markup('<path class="line line-{}" d="M{}"/>').format(number, path))
    return Markup("").join([*parts, Markup("</svg>")])


class _Axes:
    """Maps steps and heights to pixels, and draws the grid with its numbers."""

    def __init__(self, steps: Sequence[float], heights: Sequence[float]) -> None:
        self._x_ticks = [tick for tick in round_ticks(min(steps), max(steps)) if min(steps) <= tick <= max(steps)]
        self._y_ticks = round_ticks(min(heights), max(heights))
        self._x_ends = _padded(min(steps), max(steps))
        self._y_ends = _padded(self._y_ticks[0], self._y_ticks[-1])

    def x(self, step: float) -> float:
        """The place of a step."""
        low, high = self._x_ends
        return LEFT + (step - low) / (high - low) * (CHART_WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """The place of a height."""
        low, high = self._y_ends
        return TOP + (high - value) / (high - low) * (CHART_HEIGHT - TOP - BOTTOM)

    def grid(self) -> list[Markup]:
        """A line at each round height, with its number."""
        parts = []
        for tick in self._y_ticks:
            y = f"{self.y(tick):.1f}"
            parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(LEFT, y, CHART_WIDTH - RIGHT))
            parts.append(Markup('<text class="y" x="{}" y="{}">{:g}</text>').format(LEFT - 7, y, tick))
        return parts

    def steps(self) -> list[Markup]:
        """The numbers of round steps."""
        text = Markup('<text class="x" x="{:.1f}" y="{}">{:g}</text>')
        return [text.format(self.x(tick), CHART_HEIGHT - 6, tick) for tick in self._x_ticks]


def draw_points(
    steps: Sequence[float],
    lines: Sequence[Sequence[Share | None]],
    marks: Sequence[Sequence[float | None]],
    description: str,
) -> Markup:
    """Lines of shares over steps, in per cent, each with its interval, and under every step the numbers that they are of.

    `marks` are published shares of the same lines, drawn hollow; None leaves a gap.
    """
    known = [one for line in lines for one in line if one is not None and one.value is not None]
    heights = [100 * end for one in known for end in (one.value, one.low, one.high) if end is not None]
    heights += [100 * one for line in marks for one in line if one is not None]
    # Levels of noise are no even scale: each step has the same room, so that no two intervals lie on one another.
    axes = _Axes([-0.5, len(steps) - 0.5], heights or [0.0, 100.0])
    height = CHART_HEIGHT + COUNT_LINE * len(lines) + 4
    parts = [Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(CHART_WIDTH, height, description)]
    parts += axes.grid()
    for place, step in enumerate(steps):
        parts.append(Markup('<text class="x" x="{:.1f}" y="{}">{:g}</text>').format(axes.x(place), CHART_HEIGHT - 6, step))
    for number, line in enumerate(lines):
        aside = (number - (len(lines) - 1) / 2) * BESIDE
        row = CHART_HEIGHT + COUNT_LINE * (number + 1) - 4
        parts.append(Markup('<text class="y n-{}" x="{}" y="{}">n</text>').format(number, LEFT - 7, row - 4))
        shown = [None if one is None or one.value is None else one for one in line]
        for run in _runs(shown):
            points = [f"{axes.x(place) + aside:.1f} {axes.y(100 * (one.value or 0.0)):.1f}" for place, one in run]
            path = "L".join(points if len(points) > 1 else points * 2)
            parts.append(Markup('<path class="line line-{}" d="M{}"/>').format(number, path))
        for place, share in enumerate(shown):
            if share is None:
                continue
            x = axes.x(place) + aside
            if share.low is not None and share.high is not None:
                ends = (x, axes.y(100 * share.low), axes.y(100 * share.high))
                parts.append(Markup('<path class="whisker line-{}" d="M{:.1f} {:.1f}V{:.1f}"/>').format(number, *ends))
            dot = Markup('<circle class="dot-{}" cx="{:.1f}" cy="{:.1f}" r="2.6"><title>{}</title></circle>')
            parts.append(dot.format(number, x, axes.y(100 * (share.value or 0.0)), share_words(share)))
            parts.append(Markup('<text class="x n-{}" x="{:.1f}" y="{}">{}</text>').format(number, axes.x(place), row, share.n))
    for number, marked in enumerate(marks):
        aside = (number - (len(lines) - 1) / 2) * BESIDE
        for place, value in enumerate(marked):
            if value is not None:
                parts.append(_diamond(axes.x(place) + aside, axes.y(100 * value), value))
    return Markup("").join([*parts, Markup("</svg>")])


def share_words(share: Share) -> str:
    """Returns a share in per cent with its interval and its number, as a chart shows it."""
    if share.value is None:
        return f"none, n = {share.n}"
    interval = "" if share.low is None or share.high is None else f" ({100 * share.low:.1f} to {100 * share.high:.1f})"
    return f"{100 * share.value:.1f} %{interval}, n = {share.n}"


def _diamond(x: float, y: float, value: float) -> Markup:
    path = f"M{x:.1f} {y - 5:.1f}L{x + 5:.1f} {y:.1f}L{x:.1f} {y + 5:.1f}L{x - 5:.1f} {y:.1f}Z"
    return Markup('<path class="mark" d="{}"><title>printed: {:.1f} %</title></path>').format(path, 100 * value)


@dataclass(frozen=True)
class Bar:
    """A share of a group, the number of its colour, and where one is published the share that stands beside it."""

    group: str
    label: str
    share: Share
    colour: int
    published: float | None = None


def interval_bars(bars: Sequence[Bar], description: str) -> Markup:
    """A bar a share, from 0 to 100 %, with its interval and its numbers; hollow: what is published.

    The name of a group stands at its first bar. Colours are the classes `fill-0` and on.
    """
    group = LETTER * min(GROUP_LETTERS, max(len(bar.group) for bar in bars)) + 12
    left, height = group + LABEL, BAR_LINE * len(bars) + 22
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">')
    parts = [head.format(left + AXIS + WORDS, height, description)]
    for tick in (0, 25, 50, 75, 100):
        x = left + AXIS * tick / 100
        parts.append(Markup('<path class="grid" d="M{:.1f} 0V{}"/>').format(x, height - 18))
        parts.append(Markup('<text class="x" x="{:.1f}" y="{}">{} %</text>').format(x, height - 4, tick))
    for place, bar in enumerate(bars):
        top, middle = place * BAR_LINE + 4, place * BAR_LINE + BAR_LINE / 2
        if place == 0 or bar.group != bars[place - 1].group:
            name = bar.group if len(bar.group) <= GROUP_LETTERS else f"{bar.group[: GROUP_LETTERS - 1]}…"
            text = Markup('<text class="name group" x="{}" y="{}">{}</text>')
            parts.append(text.format(group, middle, name))
        parts.append(Markup('<text class="name" x="{}" y="{}">{}</text>').format(left - 8, middle, bar.label))
        if bar.share.value is not None:
            box = Markup('<rect class="fill-{}" x="{}" y="{}" width="{:.1f}" height="{}"/>')
            parts.append(box.format(bar.colour, left, top, AXIS * bar.share.value, BAR_LINE - 8))
        if bar.share.low is not None and bar.share.high is not None:
            ends = (left + AXIS * bar.share.low, middle, left + AXIS * bar.share.high)
            parts.append(Markup('<path class="whisker" d="M{:.1f} {}H{:.1f}"/>').format(*ends))
        words = share_words(bar.share)
        if bar.published is not None:
            parts.append(_diamond(left + AXIS * bar.published, middle, bar.published))
            words += f"; printed {100 * bar.published:.1f}"
        parts.append(Markup('<text class="note" x="{}" y="{}">{}</text>').format(left + AXIS + 14, middle, words))
    return Markup("").join([*parts, Markup("</svg>")])


@dataclass(frozen=True)
class Grid:
    """A confusion matrix: its titles, the labels of both sides, and counts, of which a row is one true label."""

    titles: tuple[str, ...]
    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


def confusion_grids(grids: Sequence[Grid], sides: tuple[str, str], description: str) -> Markup:
    """Confusion matrices beside one another, each cell as dark as its share of its row; `sides` name rows and columns."""
    size = max(len(grid.labels) for grid in grids) * CELL
    panel, height = SIDE + size + PANEL_GAP, PANEL_TOP + size + 44
    width = max(panel * len(grids) + 20, 300)
    parts = [Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(width, height, description)]
    middle = Markup('<text class="x" transform="translate(12 {}) rotate(-90)">{}</text>')
    parts.append(middle.format(PANEL_TOP + size / 2, sides[0]))
    for number, grid in enumerate(grids):
        left = 20 + number * panel + SIDE
        for line, title in enumerate(grid.titles):
            text = Markup('<text class="x{}" x="{:.1f}" y="{}">{}</text>')
            parts.append(text.format("" if line else " title", left + size / 2, 13 + 15 * line, title))
        for row, (label, counts) in enumerate(zip(grid.labels, grid.counts, strict=True)):
            y = PANEL_TOP + row * CELL
            parts.append(Markup('<text class="y" x="{}" y="{}">{}</text>').format(left - 6, y + CELL / 2, label))
            x_of = Markup('<text class="x" x="{}" y="{}">{}</text>')
            parts.append(x_of.format(left + row * CELL + CELL / 2, PANEL_TOP + size + 14, label))
            for column, count in enumerate(counts):
                share = count / sum(counts) if sum(counts) else 0.0
                x = left + column * CELL
                cell = Markup('<rect class="cell" x="{}" y="{}" width="{}" height="{}" fill-opacity="{:.2f}"/>')
                parts.append(cell.format(x, y, CELL, CELL, share))
                dark = " on-dark" if share > 0.55 else ""
                text = Markup('<text class="x cell-text{}" x="{}" y="{}">{}</text>')
                parts.append(text.format(dark, x + CELL / 2, y + CELL / 2 + 4, count))
        parts.append(Markup('<text class="x" x="{:.1f}" y="{}">{}</text>').format(left + size / 2, height - 8, sides[1]))
    return Markup("").join([*parts, Markup("</svg>")])


STANDALONE_STYLE = (
    "svg{font:12px sans-serif;background:#fff}.grid{stroke:#ddd;fill:none}.y{text-anchor:end;dominant-baseline:middle}"
    ".x,.axis{text-anchor:middle}.line{fill:none;stroke-width:2.5;stroke-linecap:round}.band{opacity:.15}"
    ".line-0,.key-0{stroke:#1f6feb}.line-1,.key-1{stroke:#d1570a}.line-2,.key-2{stroke:#2da44e}.line-3,.key-3{stroke:#8250df}"
    ".name{text-anchor:end;dominant-baseline:middle}.group,.title{font-weight:bold}.note{dominant-baseline:middle}"
    ".whisker{stroke:#222;stroke-width:1.4}.mark{fill:none;stroke:#c00;stroke-width:1.4}.cell{fill:#1f6feb;stroke:#ddd}"
    ".on-dark{fill:#fff}.fill-0{fill:#9ec1f7}.fill-1{fill:#f3b98d}.fill-2{fill:#9bd6ab}.fill-3{fill:#cbb3f2}"
)


def with_caption(chart: Markup, title: str, lines: Sequence[str]) -> str:
    """A chart as a file of its own: with its style, a title above and lines of text below."""
    head, _, body = str(chart).partition(">")
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    assert found is not None
    width, height = float(found[1]), float(found[2])
    box = f'viewBox="0 0 {width:g} {height + 30 + 16 * len(lines) + 8:g}"'
    head = head.replace(found[0], box).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    above = Markup('<text class="title" x="12" y="18">{}</text>').format(title)
    below = [Markup('<text x="12" y="{:g}">{}</text>').format(height + 46 + 16 * row, line) for row, line in enumerate(lines)]
    drawn = f'<g transform="translate(0 30)">{body.removesuffix("</svg>")}</g>'
    return f"{head}><style>{STANDALONE_STYLE}</style>{above}{drawn}{Markup('').join(below)}</svg>\n"


def standalone_svg(chart: Markup, names: Sequence[str], axis: str) -> str:
    """A chart of `draw_curves` as a file of its own: with its style, the lines' names and that of the axis."""
    height = CHART_HEIGHT + 18 * (len(names) + 1)
    extra = [Markup('<text class="axis" x="{}" y="{}">{}</text>').format(CHART_WIDTH / 2, CHART_HEIGHT + 12, axis)]
    for number, name in enumerate(names):
        y = CHART_HEIGHT + 18 * (number + 1) + 10
        extra.append(Markup('<path class="line key-{}" d="M{} {}h18"/>').format(number, LEFT, y))
        extra.append(Markup('<text x="{}" y="{}">{}</text>').format(LEFT + 26, y + 4, name))
    head, _, body = str(chart).partition(">")
    head = head.replace(f'viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}"', f'viewBox="0 0 {CHART_WIDTH} {height}"')
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f"{head}><style>{STANDALONE_STYLE}</style>{body.removesuffix('</svg>')}{Markup('').join(extra)}</svg>"


def side_by_side(panels: Sequence[tuple[str, Markup]], names: Sequence[str], axis: str) -> str:
    """Charts of `draw_curves` in one file, two a line, each under its title; the lines' names stand once below."""
    columns = min(2, len(panels))
    width, height = CHART_WIDTH * columns, (CHART_HEIGHT + PANEL_GAP) * -(-len(panels) // columns)
    parts = []
    for place, (title, chart) in enumerate(panels):
        x, y = CHART_WIDTH * (place % columns), (CHART_HEIGHT + PANEL_GAP) * (place // columns)
        body = str(chart).partition(">")[2].removesuffix("</svg>")
        head = Markup('<g transform="translate({} {})"><text class="title" x="{}" y="16">{}</text>').format(x, y, LEFT, title)
        parts.append(f'{head}<g transform="translate(0 {PANEL_GAP - 6})">{body}</g></g>')
    parts.append(str(Markup('<text class="axis" x="{}" y="{}">{}</text>').format(width / 2, height + 12, axis)))
    for number, name in enumerate(names):
        y = height + 18 * (number + 1) + 10
        parts.append(str(Markup('<path class="line key-{}" d="M{} {}h18"/>').format(number, LEFT, y)))
        parts.append(str(Markup('<text x="{}" y="{}">{}</text>').format(LEFT + 26, y + 4, name)))
    box = f"0 0 {width} {height + 18 * (len(names) + 1)}"
    described = Markup('role="img" aria-label="{}"').format("; ".join(f"{title}: {', '.join(names)}" for title, _ in panels))
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" {described}>'
    return f"{opening}<style>{STANDALONE_STYLE}</style>{''.join(parts)}</svg>"


def _runs(values: Sequence[Point | None]) -> list[list[tuple[int, Point]]]:
    """Stretches of known values, each value with its index."""
    runs: list[list[tuple[int, Point]]] = [[]]
    for index, value in enumerate(values):
        if value is not None:
            runs[-1].append((index, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers, a 1, 2 or 5 times a power of ten apart, that reach from at most `low` to at least `high`."""
    if _flat(low, high):
        return [low]
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [index * gap for index in range(math.floor(low / gap), math.ceil(high / gap) + 1)]


def _flat(low: float, high: float) -> bool:
    return math.isclose(low, high, rel_tol=1e-9)


def _padded(low: float, high: float) -> tuple[float, float]:
    """The range itself, or one around a single value, so that a flat line has a place to stand."""
    if not _flat(low, high):
        return low, high
    return low - (abs(low) or 1.0) / 2, low + (abs(low) or 1.0) / 2
