"""Shares over steps as lines with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paras2s.bench.plots.base import ALERT, LINES, SOFT, Plot

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from paras2s.statistics.intervals import Share

COLOURS = (SOFT, *LINES)
COUNT_LINE = 13
# Points of several lines at one step are this far apart, in steps, so that their intervals can be told from one another.
BESIDE = 0.08


@dataclass(frozen=True)
class Points(Plot):
    """Lines of shares over steps in percent with intervals and numbers of trials; `marks` are published, drawn hollow."""

    steps: Sequence[float]
    lines: Sequence[Sequence[Share | None]]
    marks: Sequence[Sequence[float | None]] = ()

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]
        """Width and height in pixels."""
        return 420.0, 200.0 + COUNT_LINE * len(self.lines)

    def draw(self, figure: FigureBase) -> None:
        """Draw each line in a colour of its own."""
        axes = figure.subplots()
        axes.grid(axis="x", visible=False)
        # Levels of noise are no even scale: each step has the same room.
        axes.set_xticks(range(len(self.steps)), [f"{step:g}" for step in self.steps])
        axes.set_xlim(-0.5, len(self.steps) - 0.5)
        for number, line in enumerate(self.lines):
            colour = COLOURS[number % len(COLOURS)]
            aside = (number - (len(self.lines) - 1) / 2) * BESIDE
            shown = [None if share is None or share.value is None else share for share in line]
            values = [float("nan") if share is None else 100 * (share.value or 0.0) for share in shown]
            places = [position + aside for position in range(len(line))]
            axes.plot(places, values, color=colour, marker="o", markersize=4, gid="line")
            below = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "color": colour, "ha": "center"}
            row = -28 - COUNT_LINE * number
            for position, share in zip(places, shown, strict=True):
                if share is not None:
                    if share.low is not None and share.high is not None:
                        axes.vlines(position, 100 * share.low, 100 * share.high, color=colour, linewidth=1.2, gid="whisker")
                    axes.annotate(str(share.n), (round(position), 0), (0, row), **below)  # type: ignore[arg-type]
            axes.annotate("n", (-0.5, 0), (-12, row), **below)  # type: ignore[arg-type]
            for position, mark in zip(places, self.marks[number] if self.marks else (), strict=False):
                if mark is not None:
                    axes.plot(position, 100 * mark, color=ALERT, marker="D", fillstyle="none", gid="mark")
