"""Charts of shares, by the numbers in their SVG: lengths, intervals, what is printed, and the counts below points."""

import re
from xml.etree import ElementTree

import pytest

from paras2s.bench.charts import (
    AXIS,
    GROUP_LETTERS,
    LABEL,
    LETTER,
    Bar,
    Grid,
    confusion_grids,
    draw_curves,
    draw_points,
    interval_bars,
    with_caption,
)
from paras2s.bench.speakbench.metrics import Share


def drawn(svg):
    return list(ElementTree.fromstring(str(svg)).iter())


def of_class(svg, name):
    return [one for one in drawn(svg) if name in (one.get("class") or "").split()]


def numbers(one):
    return [float(found) for found in re.findall(r"-?[\d.]+", one.get("d"))]


def texts(svg):
    return [one.text for one in drawn(svg) if one.tag.endswith("text")]


def test_a_bar_is_as_long_as_its_share_and_has_its_interval_its_number_and_what_is_printed():
    bars = [
        Bar("a&b", "first", Share(0.25, 0.1, 0.4, 40, 41), 0, 0.5),
        Bar("a&b", "second", Share(0.75, None, None, 1, 1), 1),
        Bar("c", "first", Share(None, None, None, 0, 3), 0),
    ]
    svg = interval_bars(bars, "what")
    # The longest name of a group has three letters.
    left = 3 * LETTER + 12 + LABEL
    assert [float(one.get("width")) for one in drawn(svg) if one.tag.endswith("rect")] == pytest.approx(
        [AXIS / 4, 3 * AXIS / 4]
    )
    (whisker,) = of_class(svg, "whisker")
    assert (numbers(whisker)[0], numbers(whisker)[2]) == pytest.approx((left + 0.1 * AXIS, left + 0.4 * AXIS))
    (mark,) = of_class(svg, "mark")
    assert numbers(mark)[0] == pytest.approx(left + AXIS / 2)
    assert [one.text for one in of_class(svg, "group")] == ["a&b", "c"]
    assert "25.0 % (10.0 to 40.0), n = 40; printed 50.0" in texts(svg)
    assert {"75.0 %, n = 1", "none, n = 0"} <= set(texts(svg))
    assert "a&amp;b" in svg
    long = interval_bars([Bar("x" * 99, "l", Share(0.5, 0.4, 0.6, 9, 9), 0)], "d")
    assert [len(one.text) for one in of_class(long, "group")] == [GROUP_LETTERS]


def test_points_have_their_interval_and_below_them_their_number():
    lines = [[Share(0.5, 0.4, 0.6, 20, 20), None, Share(0.9, None, None, 7, 9)], [Share(0.6, 0.5, 0.7, 5, 5), None, None]]
    svg = draw_points([1, 10, 40], lines, [[0.55, None, None], [None, None, None]], "d")
    assert len([one for one in drawn(svg) if one.tag.endswith("circle")]) == 3
    first, second = of_class(svg, "whisker")
    # The interval is around the point, and the two lines' points at one step stand apart.
    dots = [(float(one.get("cx")), float(one.get("cy"))) for one in of_class(svg, "dot-0") + of_class(svg, "dot-1")]
    for whisker, (x, y) in ((first, dots[0]), (second, dots[2])):
        place, low, high = numbers(whisker)
        assert place == pytest.approx(x)
        assert (low + high) / 2 == pytest.approx(y, abs=0.11)
    assert dots[2][0] - dots[0][0] == pytest.approx(4)
    assert [one.text for one in of_class(svg, "n-0")] == ["n", "20", "7"]
    assert [one.text for one in of_class(svg, "n-1")] == ["n", "5"]
    # The printed share, half-way between 50 and 60.
    (mark,) = of_class(svg, "mark")
    assert numbers(mark)[3] == pytest.approx((dots[0][1] + dots[2][1]) / 2, abs=0.11)
    # No line is drawn over a gap, and a lone share needs no second step.
    assert all(path.get("d").count("L") == 1 for path in of_class(svg, "line"))
    assert "NaN" not in str(draw_points([5], [[Share(1.0, None, None, 1, 1)]], [], "d"))


def test_a_cell_is_as_dark_as_its_share_of_the_row():
    grid = Grid(("judge", "P 50, R 75"), ("1", "2"), ((3, 1), (0, 0)))
    svg = confusion_grids([grid, grid], ("people", "judge"), "d")
    cells = of_class(svg, "cell")
    assert [float(one.get("fill-opacity")) for one in cells] == [0.75, 0.25, 0.0, 0.0] * 2
    assert [one.text for one in of_class(svg, "cell-text")] == ["3", "1", "0", "0"] * 2
    assert {"judge", "P 50, R 75", "people"} <= set(texts(svg))


def test_a_chart_as_a_file_has_its_style_its_title_and_its_caption_within_it():
    source = with_caption(interval_bars([Bar("g", "l", Share(0.5, 0.4, 0.6, 9, 9), 0)], "d"), "T & Co", ["one", "two"])
    root = ElementTree.fromstring(source)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    height = float(root.get("viewBox").split()[3])
    assert texts(source)[0] == "T & Co"
    assert texts(source)[-2:] == ["one", "two"]
    assert all(float(one.get("y")) < height for one in root.findall("{http://www.w3.org/2000/svg}text"))
    assert ".whisker{" in source


def test_a_gap_breaks_the_line_and_the_ends_stand_at_the_edges() -> None:
    # The plot is 46 to 408 wide and 10 to 164 high; ticks 0, 1, 2, 3, 4 are 38.5 apart.
    svg = draw_curves([0, 1, 2, 4], [[0.0, 1.0, None, 4.0]], [None] * 4, "d")
    assert svg.count('class="line line-0"') == 2
    assert 'd="M46.0 164.0L136.5 125.5"' in svg
    assert 'd="M408.0 10.0L408.0 10.0"' in svg
    assert "band" not in svg


def test_spread_is_a_band_around_the_line() -> None:
    svg = draw_curves([0, 1], [[2.0, 2.0]], [2.0, 2.0], "d")
    assert 'class="band" d="M46.0 10.0L408.0 10.0L408.0 164.0L46.0 164.0Z"' in svg


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0, 1e-7])
def test_a_flat_line_of_one_step_is_in_the_middle(value: float) -> None:
    svg = draw_curves([5], [[value]], [None], "d")
    assert 'd="M227.0 87.0L227.0 87.0"' in svg
