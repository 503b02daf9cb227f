"""Small charts as inline SVG: curves over steps, and bars of shares, one under the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from markupsafe import Markup

Point = TypeVar("Point")

CHART_WIDTH, CHART_HEIGHT = 420, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 26
WIDTH, BAR, GAP, NAME, COUNT = 640, 24, 10, 150, 64
# A share narrower than this, in pixels, has no room for its number.
LEGIBLE = 34


def stacked_bars(rows: Sequence[tuple[str, Sequence[float], str]], description: str) -> Markup:
    """A bar a row: its name, shares that add up to 1, and a few words at its end. Colours are the classes `fill-0` and on."""
    height, width = len(rows) * (BAR + GAP), WIDTH - NAME - COUNT
    parts = [Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, description)]
    for place, (name, shares, note) in enumerate(rows):
        top, left = place * (BAR + GAP) + GAP / 2, float(NAME)
        middle = top + BAR / 2
        parts.append(Markup('<text class="name" x="{}" y="{}">{}</text>').format(NAME - 10, middle, name))
        for number, share in enumerate(shares):
            long = share * width
            if long > 0:
                box = Markup('<rect class="fill-{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>')
                parts.append(box.format(number, left, top, long, BAR))
            if long >= LEGIBLE:
                text = Markup('<text class="share on-{}" x="{:.1f}" y="{}">{:.0f} %</text>')
                parts.append(text.format(number, left + long / 2, middle, 100 * share))
            left += long
        parts.append(Markup('<text class="note" x="{}" y="{}">{}</text>').format(WIDTH - COUNT + 8, middle, note))
    return Markup("").join([*parts, Markup("</svg>")])


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
    x_ticks = [tick for tick in round_ticks(min(steps), max(steps)) if min(steps) <= tick <= max(steps)]
    y_ticks = round_ticks(min(heights), max(heights))
    x_low, x_high = _padded(min(steps), max(steps))
    y_low, y_high = _padded(y_ticks[0], y_ticks[-1])

    def x_of(step: float) -> float:
        return LEFT + (step - x_low) / (x_high - x_low) * (CHART_WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return TOP + (y_high - value) / (y_high - y_low) * (CHART_HEIGHT - TOP - BOTTOM)

    parts = [Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(CHART_WIDTH, CHART_HEIGHT, description)]
    for tick in y_ticks:
        y = f"{y_of(tick):.1f}"
        parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(LEFT, y, CHART_WIDTH - RIGHT))
        parts.append(Markup('<text class="y" x="{}" y="{}">{:g}</text>').format(LEFT - 7, y, tick))
    for tick in x_ticks:
        parts.append(Markup('<text class="x" x="{:.1f}" y="{}">{:g}</text>').format(x_of(tick), CHART_HEIGHT - 6, tick))
    for stretch in _runs(band):
        upper = [f"{x_of(steps[index]):.1f} {y_of(edges[1]):.1f}" for index, edges in stretch]
        lower = [f"{x_of(steps[index]):.1f} {y_of(edges[0]):.1f}" for index, edges in reversed(stretch)]
        parts.append(Markup('<path class="band" d="M{}Z"/>').format("L".join(upper + lower)))
    for number, line in enumerate(lines):
        for run in _runs(line):
            points = [f"{x_of(steps[index]):.1f} {y_of(value):.1f}" for index, value in run]
            # A path of one point and zero length is drawn as a dot, thanks to its round caps.
            path = "L".join(points if len(points) > 1 else points * 2)
            parts.append(Markup('<path class="line line-{}" d="M{}"/>').format(number, path))
    return Markup("").join([*parts, Markup("</svg>")])


STANDALONE_STYLE = (
    "svg{font:12px sans-serif;background:#fff}.grid{stroke:#ddd;fill:none}.y{text-anchor:end;dominant-baseline:middle}"
    ".x,.axis{text-anchor:middle}.line{fill:none;stroke-width:2.5;stroke-linecap:round}.band{opacity:.15}"
    ".line-0,.key-0{stroke:#1f6feb}.line-1,.key-1{stroke:#d1570a}.line-2,.key-2{stroke:#2da44e}.line-3,.key-3{stroke:#8250df}"
)


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
