"""Shares as bars with their intervals, in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from paras2s.bench.plots.base import ALERT, FILLS, INK, Plot, plain
from paras2s.utils.tables import with_interval

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from paras2s.statistics.intervals import Share

ROW = 20
# A longer name of a group is cut.
GROUP_LETTERS = 60


@dataclass(frozen=True)
class Bar:
    """A share of a group, the number of its colour, and the published share where there is one."""

    group: str
    label: str
    share: Share
    colour: int
    published: float | None = None

    @property
    def words(self) -> str:
        """The share in percent with its interval, its n, and what is published."""
        printed = "" if self.published is None else f"; printed {100 * self.published:.1f}"
        return f"{with_interval(self.share, 1, scale=100.0, unit=' %', none='none')}, n = {self.share.n}{printed}"


@dataclass(frozen=True)
class Bars(Plot):
    """A bar for each share, 0 to 100 %, with interval and numbers; hollow: published. A group's name is above its bars."""

    bars: Sequence[Bar]

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]
        """Width and height in pixels."""
        return 760.0, ROW * len(self._rows()) + 34.0

    def _rows(self) -> list[Bar | str]:
        rows: list[Bar | str] = []
        for group, bars in groupby(self.bars, lambda bar: bar.group):
            rows += [*([group] if group else []), *bars]
        return rows

    def draw(self, figure: FigureBase) -> None:
        """Draw the first bar at the top."""
        axes = figure.subplots()
        axes.grid(axis="y", visible=False)
        rows = self._rows()
        for height, row in enumerate(rows):
            if isinstance(row, str):
                continue
            share = row.share
            if share.value is not None:
                axes.barh(height, 100 * share.value, height=0.6, color=FILLS[row.colour % len(FILLS)], gid="bar")
            if share.low is not None and share.high is not None:
                axes.hlines(height, 100 * share.low, 100 * share.high, color=INK, linewidth=1.3, gid="whisker")
            if row.published is not None:
                axes.plot(100 * row.published, height, color=ALERT, marker="D", fillstyle="none", gid="mark")
        axes.set_xlim(0, 100)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(0, 101, 25), [f"{tick} %" for tick in range(0, 101, 25)])
        axes.set_yticks(range(len(rows)), [_cut(plain(row if isinstance(row, str) else row.label)) for row in rows])
        for label, row in zip(axes.get_yticklabels(), rows, strict=True):
            label.set_fontweight("bold" if isinstance(row, str) else "normal")
        axes.tick_params(axis="y", length=0)
        notes = axes.secondary_yaxis("right")
        notes.spines["right"].set_visible(False)
        notes.set_yticks(range(len(rows)), ["" if isinstance(row, str) else row.words for row in rows])
        notes.tick_params(length=0)


def _cut(name: str) -> str:
    return name if len(name) <= GROUP_LETTERS else f"{name[: GROUP_LETTERS - 1]}…"
