"""A confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paras2s.bench.plots.base import FILLS, RULE, Plot, plain

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

CELL = 66


@dataclass(frozen=True)
class Confusion(Plot):
    """Counts of both `sides`' labels, a row for each true one, each cell as dark as its share of its row."""

    titles: tuple[str, ...]
    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    sides: tuple[str, str]

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]
        """Width and height in pixels."""
        side = CELL * len(self.labels)
        return side + 100.0, side + 90.0

    def draw(self, figure: FigureBase) -> None:
        """Draw a cell for each pair of labels."""
        from matplotlib.patches import Rectangle

        axes = figure.subplots()
        axes.grid(visible=False)
        for row, counts in enumerate(self.counts):
            for column, count in enumerate(counts):
                share = count / sum(counts) if sum(counts) else 0.0
                corner = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, facecolor=FILLS[1], alpha=share, gid="cell"))
                axes.add_patch(Rectangle(corner, 1, 1, edgecolor=RULE, fill=False))
                dark = {"color": "white"} if share > 0.55 else {}
                axes.text(column, row, str(count), ha="center", va="center", gid="count", **dark)  # type: ignore[arg-type]
        places, labels = range(len(self.labels)), [plain(label) for label in self.labels]
        axes.set_xticks(places, labels)
        axes.set_yticks(places, labels)
        axes.set(xlim=(-0.5, len(labels) - 0.5), ylim=(len(labels) - 0.5, -0.5), aspect="equal")
        axes.set_ylabel(plain(self.sides[0]))
        axes.set_xlabel(plain(self.sides[1]))
        axes.set_title("\n".join(map(plain, self.titles)))
