"""The base of every plot: its colours, and its form as SVG."""

from __future__ import annotations

import io
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from paras2s.utils.tables import CONTROL

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

# Pages name these colours in their style sheets, for light and dark; a file of its own has the light ones.
INK, SOFT, RULE, ALERT = "#17202b", "#5b6675", "#e1e5ea", "#a3341f"
FILLS = ("#c9d2de", "#1f5fbf", "#c2570c", "#7c5cc4", "#14713d", "#b0348a", "#8a6d1f", "#0f7a84")
LINES = FILLS[1:]
NAMES: dict[str, tuple[str, ...]] = {INK: ("ink",), SOFT: ("soft",), RULE: ("rule",), ALERT: ("alert",)}
NAMES |= {colour: (f"c{number}",) for number, colour in enumerate(FILLS)}
NAMES |= {FILLS[1]: ("c1", "accent"), FILLS[2]: ("c2", "second")}
STYLE = {
    "svg.hashsalt": "paras2s", "svg.fonttype": "none", "text.parse_math": False, "font.size": 10, "font.family": "sans-serif",
    "text.color": INK, "axes.labelcolor": SOFT, "axes.edgecolor": RULE, "axes.titlesize": 11, "axes.titleweight": "bold",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": RULE,
    "xtick.color": RULE, "ytick.color": RULE, "xtick.labelcolor": SOFT, "ytick.labelcolor": SOFT, "legend.frameon": False,
    "lines.solid_capstyle": "round",
}  # fmt: skip
TITLE, LINE = 26, 16


class Plot(ABC):
    """Data of one kind of plot, which draws itself. A kind has a file in this folder with its name."""

    # Width and height in pixels.
    size: tuple[float, float]

    @abstractmethod
    def draw(self, figure: FigureBase) -> None:
        """Draw on a figure, or on a part of a figure, of this plot's size."""


def plain(text: str) -> str:
    """Return a name as one line that XML can hold."""
    return " ".join(CONTROL.sub("", text).split())


def svg_of(plots: Sequence[Plot], description: str, title: str = "", caption: Sequence[str] = (), columns: int = 2) -> Markup:
    """Return plots of one size as one SVG, `columns` side by side, a title above, lines below. Equal data give equal text."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = min(columns, len(plots))
    rows = -(-len(plots) // columns)
    # A part of no height cannot be laid out.
    heights = [TITLE if title else 1, rows * max(plot.size[1] for plot in plots), LINE * len(caption) + 8]
    width, height = columns * max(plot.size[0] for plot in plots), sum(heights)
    drawn = io.StringIO()
    # Names in letters that the font lacks are drawn by the reader's own font.
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        figure.patch.set_alpha(0.0)
        body = figure.add_subfigure(figure.add_gridspec(3, 1, height_ratios=heights)[1], facecolor="none")
        grid = body.add_gridspec(rows, columns)
        for number, plot in enumerate(plots):
            plot.draw(body.add_subfigure(grid[number // columns, number % columns], facecolor="none"))
        if title:
            figure.text(12 / width, 1 - 18 / height, plain(title), fontsize=11, fontweight="bold")
        for number, line in enumerate(caption):
            figure.text(12 / width, (heights[2] - LINE * (number + 1)) / height, plain(line), color=SOFT)
        FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return _page_svg(drawn.getvalue(), width, height, description)


def _page_svg(source: str, width: float, height: float, description: str) -> Markup:
    """Return what matplotlib wrote as an element of a page: without ids, which two plots of a page would share."""
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", source[source.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r"<clipPath.*?</clipPath>", "", body.partition(">")[2], flags=re.DOTALL)
    body = re.sub(r' clip-path="[^"]*"', "", body)
    body = re.sub(r'<g id="([^"]*?)(?:_\d+)?">', r'<g class="\1">', body)
    for colour, names in NAMES.items():
        body = re.sub(colour, "".join(f"var(--{name}, " for name in names) + colour + ")" * len(names), body)
    opening = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {:g} {:g}" '
        'role="img" aria-label="{}" style="background: var(--card, #fff)">'
    ).format(width, height, plain(description))
    return opening + Markup(body.strip() + "\n")
