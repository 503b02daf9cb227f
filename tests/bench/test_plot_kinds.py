"""Plots by their data: lengths, intervals, what is printed, the counts below points, and labels that do not overlap."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from paras2s.bench import plots
from paras2s.bench.plots.bars import GROUP_LETTERS, Bar, Bars
from paras2s.bench.plots.base import Plot, svg_of
from paras2s.bench.plots.confusion import Confusion
from paras2s.bench.plots.curves import Curves
from paras2s.bench.plots.points import Points
from paras2s.bench.plots.scatter import NAME, Dot, Scatter, spread
from paras2s.statistics.intervals import Share

HOSTILE = "_<b>&$x$ [red]\x07\\"
EXAMPLES: dict[str, Plot] = {
    "bars": Bars([Bar(HOSTILE, HOSTILE, Share(0.5, 0.4, 0.6, 9, 9), 0)]),
    "confusion": Confusion((HOSTILE,), ("1", HOSTILE), ((3, 1), (0, 0)), (HOSTILE, HOSTILE)),
    "curves": Curves([0, 1], [[1.0, 2.0]], [0.1, None], [HOSTILE], HOSTILE, HOSTILE),
    "points": Points([1, 2], [[Share(0.5, 0.4, 0.6, 9, 9), None]]),
    "scatter": Scatter(HOSTILE, [Dot(HOSTILE, (1, 2, 3), (1, 2, 3))], (HOSTILE, HOSTILE), "equal"),
}


def drawn(plot, gid):
    """The artists of a plot that were given this name."""
    figure = Figure()
    plot.draw(figure)
    return figure.findobj(lambda artist: artist.get_gid() == gid)


def texts(svg):
    return [one.text for one in ElementTree.fromstring(str(svg)).iter("{http://www.w3.org/2000/svg}text")]


def test_every_kind_has_a_file_of_its_name_and_an_example() -> None:
    files = {path.stem for path in Path(plots.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert files == set(EXAMPLES)
    assert all(type(plot).__module__ == f"paras2s.bench.plots.{kind}" for kind, plot in EXAMPLES.items())


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_draws_the_same_text_twice_and_a_name_is_no_markup(kind: str) -> None:
    svg = svg_of([EXAMPLES[kind]] * 2, HOSTILE, HOSTILE, [HOSTILE])
    assert svg == svg_of([EXAMPLES[kind]] * 2, HOSTILE, HOSTILE, [HOSTILE])
    root = ElementTree.fromstring(str(svg))
    clean = HOSTILE.replace("\x07", "")
    assert root.get("aria-label") == clean
    assert [text for text in texts(svg) if text and "red" in text] == [clean] * (texts(svg).count(clean))
    assert texts(svg).count(clean) >= 2 + 2 * (kind != "points")
    assert not re.search(r"\bnan\b|url\(| id=\"figure|<metadata|\d{4}-\d\d-\d\d", str(svg))


def test_the_program_starts_without_the_plotting_library() -> None:
    code = "import sys, paras2s.cli.app, paras2s.bench.bias.report, paras2s.pipeline.ablate; print('matplotlib' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout
        == "False\n"
    )


def test_pages_may_name_the_colours() -> None:
    svg = str(svg_of([EXAMPLES["curves"]], "d"))
    assert "stroke: var(--c1, var(--accent, #1f5fbf))" in svg


def test_a_bar_is_as_long_as_its_share_and_has_its_interval_its_number_and_what_is_printed() -> None:
    plot = Bars([
        Bar("a&b", "first", Share(0.25, 0.1, 0.4, 40, 41), 0, 0.5),
        Bar("a&b", "second", Share(0.75, None, None, 1, 1), 1),
        Bar("c", "first", Share(None, None, None, 0, 3), 0),
    ])  # fmt: skip
    assert [bar.get_width() for bar in drawn(plot, "bar")] == [25.0, 75.0]
    # Rows: the group, its two bars, the next group, its bar.
    assert [bar.get_y() + bar.get_height() / 2 for bar in drawn(plot, "bar")] == [1.0, 2.0]
    (whisker,) = drawn(plot, "whisker")
    assert whisker.get_segments()[0].tolist() == [[10.0, 1.0], [40.0, 1.0]]
    (mark,) = drawn(plot, "mark")
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (50.0, 1.0)
    found = texts(svg_of([plot], "what", "T & Co", ["one", "two"]))
    assert [text for text in found if text in ("a&b", "c", "first", "second")] == ["a&b", "first", "second", "c", "first"]
    assert "25.0 % (10.0 to 40.0), n = 40; printed 50.0" in found
    assert {"75.0 %, n = 1", "none, n = 0"} <= set(found)
    assert found[-3:] == ["T & Co", "one", "two"]
    long = texts(svg_of([Bars([Bar("x" * 99, "l", Share(0.5, 0.4, 0.6, 9, 9), 0)])], "d"))
    assert f"{'x' * (GROUP_LETTERS - 1)}…" in long


def test_points_have_their_interval_and_below_them_their_number() -> None:
    lines = [[Share(0.5, 0.4, 0.6, 20, 20), None, Share(0.9, None, None, 7, 9)], [Share(0.6, 0.5, 0.7, 5, 5), None, None]]
    plot = Points([1, 10, 40], lines, [[0.55, None, None], [None, None, None]])
    first, second = (line.get_xydata() for line in drawn(plot, "line"))
    # The second step has no value: the line has a gap, and no point lies on another.
    assert first[:, 1].tolist()[::2] == [50.0, 90.0]
    assert np.isnan(first[1, 1])
    assert second[0, 1] == 60.0
    assert second[0, 0] - first[0, 0] == pytest.approx(0.08)
    whiskers = [whisker.get_segments()[0] for whisker in drawn(plot, "whisker")]
    for whisker, point in zip(whiskers, (first[0], second[0]), strict=True):
        assert whisker[0, 0] == whisker[1, 0] == point[0]
        assert whisker[:, 1].tolist() == pytest.approx([point[1] - 10, point[1] + 10])
    (mark,) = drawn(plot, "mark")
    assert mark.get_ydata()[0] == pytest.approx(55.0)
    found = texts(svg_of([plot], "d"))
    assert [text for text in found if text in ("n", "20", "7", "5")] == ["20", "7", "n", "5", "n"]
    assert {"1", "10", "40"} <= set(found)
    assert "nan" not in str(svg_of([Points([5], [[Share(1.0, None, None, 1, 1)]])], "d"))


def test_a_cell_is_as_dark_as_its_share_of_the_row() -> None:
    matrix = Confusion(("judge", "P 50, R 75"), ("1", "2"), ((3, 1), (0, 0)), ("people", "fused"))
    assert [cell.get_alpha() for cell in drawn(matrix, "cell")] == [0.75, 0.25, 0.0, 0.0]
    assert [cell.get_xy() for cell in drawn(matrix, "cell")] == [(-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5), (0.5, 0.5)]
    assert [count.get_text() for count in drawn(matrix, "count")] == ["3", "1", "0", "0"]
    found = texts(svg_of([matrix, matrix], "d"))
    assert [found.count(text) for text in ("judge", "P 50, R 75", "people", "fused")] == [2, 2, 2, 2]


def test_a_gap_breaks_the_line_and_the_band() -> None:
    plot = Curves([0, 1, 2, 4], [[0.0, 1.0, None, 4.0]], [0.5, 0.5, 0.5, None])
    (line,) = drawn(plot, "line")
    assert np.isnan(line.get_ydata()).tolist() == [False, False, True, False]
    # A value between two gaps is seen as a dot.
    assert line.get_marker() == "o"
    (band,) = drawn(plot, "spread")
    assert band.get_datalim(band.axes.transData).bounds == pytest.approx((0.0, -0.5, 1.0, 2.0))
    assert drawn(Curves([5], [[3.0]], [None]), "spread") == []


def test_names_keep_their_order_and_off_each_other() -> None:
    assert spread([0.2, 0.8], 0.1) == pytest.approx([0.2, 0.8])
    # Three close ones move apart around their mean.
    assert spread([0.52, 0.5, 0.48], 0.1) == pytest.approx([0.6, 0.5, 0.4])
    assert spread([0.0, 0.0], 0.1) == pytest.approx([0.0, 0.1])
    crowded = sorted(spread([1.0] * 20, NAME))
    assert crowded[-1] <= 1.0 + 1e-9
    assert all(high - low >= NAME - 1e-9 for low, high in pairwise(crowded))
    assert spread([], 0.1) == []


def test_a_name_is_tied_to_its_dot_and_both_intervals_go_through_it() -> None:
    plot = Scatter("t", [Dot("a", (1, 2, 4), (10, 20, 30)), Dot("b", (2, 3, 4), (15, 20, 25))], ("x", "y"), "least squares")
    assert [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in drawn(plot, "dot")] == [(2, 20), (3, 20)]
    assert [bar.get_segments()[0].tolist() for bar in drawn(plot, "bar")][:2] == [[[1, 20], [4, 20]], [[2, 10], [2, 30]]]
    assert [(name.get_text(), name.xy) for name in drawn(plot, "name")] == [("a", (2, 20)), ("b", (3, 20))]
    assert len(drawn(plot, "fit")) == 1
