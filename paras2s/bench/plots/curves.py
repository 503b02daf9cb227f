"""Lines over steps, with a band around the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paras2s.bench.plots.base import LINES, Plot, plain

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

Values = Sequence[float | None]


@dataclass(frozen=True)
class Curves(Plot):
    """Lines over steps; None leaves a gap. `spread` is the half-width of a band around the first line; `names`: a legend."""

    steps: Sequence[float]
    lines: Sequence[Values]
    spread: Values = ()
    names: Sequence[str] = ()
    axis: str = ""
    title: str = ""
    size: tuple[float, float] = (420.0, 190.0)

    def draw(self, figure: FigureBase) -> None:
        """Draw the lines, the band and the legend."""
        axes = figure.subplots()
        axes.grid(axis="x", visible=False)
        if any(width is not None for width in self.spread):
            # A missing value is NaN: it breaks the line and the band.
            middle, width = (np.array(values, dtype=float) for values in (self.lines[0], self.spread))
            axes.fill_between(self.steps, middle - width, middle + width, color=LINES[0], alpha=0.15, linewidth=0, gid="spread")
        drawn = []
        for number, line in enumerate(self.lines):
            values = np.array(line, dtype=float)
            # A value between two gaps has no line, so each value has a dot.
            style = {"color": LINES[number % len(LINES)], "marker": "o", "markersize": 2.5}
            drawn += axes.plot(self.steps, values, gid="line", **style)  # type: ignore[arg-type]
        axes.locator_params(nbins=5)
        axes.set_xlabel(plain(self.axis))
        axes.set_title(plain(self.title))
        if self.names:
            legend = figure.legend(drawn, ["x"] * len(drawn), loc="outside lower left", ncols=2)
            for text, name in zip(legend.get_texts(), self.names, strict=True):
                text.set_text(plain(name))
