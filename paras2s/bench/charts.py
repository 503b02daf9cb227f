"""Small charts as inline SVG beside `report.draw_curves`: bars of shares, one under the other."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

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
