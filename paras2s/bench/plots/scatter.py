"""Systems by two scores, each with its interval and its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from paras2s.bench.plots.base import LINES, SOFT, Plot, plain

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

# The height of a name, as a share of that of the axes.
NAME = 0.034


@dataclass(frozen=True)
class Dot:
    """A system, on each axis with low end, value and high end of its interval; the value itself where there is none."""

    name: str
    x: tuple[float, float, float]
    y: tuple[float, float, float]


@dataclass(frozen=True)
class Scatter(Plot):
    """Dots with intervals, their names in a column beside the axes, tied by thin lines; `line` is drawn dashed."""

    title: str
    dots: Sequence[Dot]
    axes: tuple[str, str]
    line: Literal["least squares", "equal"]
    size: tuple[float, float] = (560.0, 420.0)

    def draw(self, figure: FigureBase) -> None:
        """Draw the dots above the intervals."""
        axes = figure.subplots()
        xs, ys = [dot.x[1] for dot in self.dots], [dot.y[1] for dot in self.dots]
        for dot in self.dots:
            axes.hlines(dot.y[1], dot.x[0], dot.x[2], color=LINES[0], alpha=0.35, linewidth=1, gid="bar")
            axes.vlines(dot.x[1], dot.y[0], dot.y[2], color=LINES[0], alpha=0.35, linewidth=1, gid="bar")
            axes.plot(dot.x[1], dot.y[1], "o", color=LINES[0], markersize=5, gid="dot")
        dashed = {"color": LINES[1], "linestyle": "--", "linewidth": 1, "gid": "fit"}
        if self.line == "equal":
            ends = [min(*axes.get_xlim(), *axes.get_ylim()), max(*axes.get_xlim(), *axes.get_ylim())]
            axes.plot(ends, ends, **dashed)  # type: ignore[arg-type]
        elif len(set(xs)) > 1:
            slope, start = np.polyfit(xs, ys, 1)
            axes.plot([min(xs), max(xs)], [start + slope * min(xs), start + slope * max(xs)], **dashed)  # type: ignore[arg-type]
        axes.set_xlabel(plain(self.axes[0]))
        axes.set_ylabel(plain(self.axes[1]))
        axes.set_title(plain(self.title))
        low, high = axes.get_ylim()
        tie = {"arrowstyle": "-", "color": SOFT, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 3}
        heights = spread([(y - low) / (high - low) for y in ys], NAME)
        for dot, height in zip(self.dots, heights, strict=True):
            beside = {"textcoords": "axes fraction", "va": "center", "fontsize": 9, "arrowprops": tie, "gid": "name"}
            axes.annotate(plain(dot.name), (dot.x[1], dot.y[1]), (1.02, height), **beside)  # type: ignore[arg-type]


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return the nearest heights from 0 to 1 that keep their order and are `gap` apart, as far as they fit."""
    from scipy.optimize import isotonic_regression

    if not heights:
        return []
    order, steps = np.argsort(heights, kind="stable"), gap * np.arange(len(heights))
    places = np.clip(isotonic_regression(np.asarray(heights)[order] - steps).x, 0.0, max(0.0, 1.0 - steps[-1])) + steps
    return [float(height) for height in places[np.argsort(order)]]
