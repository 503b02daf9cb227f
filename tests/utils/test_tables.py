"""One table in four forms, with names that try to be markup in each, and the texts of numbers."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest
from rich.console import Console

from paras2s.statistics.intervals import Share
from paras2s.utils.tables import (
    Styled,
    Table,
    escape_markdown,
    number_text,
    p_value,
    percent,
    size_text,
    span,
    with_error,
    with_interval,
)

HOSTILE = [
    "[red]not red[/red]", "[/]", "a | b",
    "[link=https://a.b]c[/link]", ":smile:", "<script>alert(1)</script>", "**bold** `code`",
    "[a](javascript:b)", "_x_ __y__", "&lt;b&gt;", "~~gone~~", "back\\slash\\|", "-",
]  # fmt: skip


def shown(table: Table) -> str:
    out = io.StringIO()
    table.show(Console(file=out, width=200, force_terminal=False))
    return out.getvalue()


def test_the_forms_hold_the_same_cells() -> None:
    table = Table(("name", "n", "mean"), [("a", 3, None), (Styled("b", "green"),)], "T", ["a note"], sections=[1])
    assert [line.split("│")[1:-1] for line in shown(table).splitlines() if "│" in line] == [
        [" a    ", " 3 ", " -    "], [" b    ", "   ", "      "],
    ]  # fmt: skip
    assert shown(table).splitlines()[0].strip() == "T"
    assert shown(table).splitlines()[-1] == "a note"
    assert table.markdown() == "| name | n | mean |\n|---|---|---|\n| a | 3 | - |\n| b |  |  |\n\na note"
    assert table.markdown(heading=2).startswith("## T\n\n| name ")


def test_bold_is_bold_in_each_form_and_other_styles_are_the_consoles() -> None:
    table = Table(("x",), [(Styled("strong"),), (Styled("pale", "dim"),)])
    assert table.markdown().splitlines()[2:] == ["| **strong** |", "| pale |"]
    out = io.StringIO()
    table.show(Console(file=out, force_terminal=True, color_system="standard"))
    assert "\x1b[1mstrong\x1b[0m" in out.getvalue()


def test_a_table_without_a_head_is_its_notes_and_a_long_row_is_refused() -> None:
    assert Table((), [], "T", ["Nothing."]).markdown(heading=3) == "### T\n\nNothing."
    with pytest.raises(ValueError, match="a row of 2 cells in a table of 1 columns"):
        Table(("x",), [(1, 2)]).markdown()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_never_markup(name: str) -> None:
    table = Table((name, "n"), [(name, "1")], name, [name])
    assert shown(table).count(name) >= 4
    markdown = pytest.importorskip("markdown")
    page = markdown.markdown(table.markdown(heading=2), extensions=["tables"])
    root = ElementTree.fromstring(f"<div>{page}</div>")
    assert {one.tag for one in root.iter()} <= {"div", "h2", "table", "thead", "tbody", "tr", "th", "td", "p"}
    if "~" not in name and "__" not in name:
        # This Markdown knows no strikethrough, and no escape of "~".
        assert (root.findtext("table/tbody/tr/td") or "") == name


def test_a_name_cannot_steer_a_terminal_or_end_a_cell() -> None:
    table = Table(("x",), [("a\x1b[31mb\x9bc\nd\te",)], "t\x1b]0;title\x07")
    assert "\x1b" not in shown(table)
    assert "\x9b" not in shown(table)
    assert table.markdown().splitlines()[2:] == ["| a[31mbc d e |"]


def test_ordinary_names_stay_as_they_are_in_markdown() -> None:
    for text in ("gpt-4o_audio+asr", "62.10 [58.00, 66.00]", "3.21 ± 0.08", "a & b", "R&D", "(n of N)", "5 > 4", "x~y"):
        assert escape_markdown(text) == text


def test_numbers() -> None:
    assert [number_text(None), number_text(1 / 3), number_text(2, 0, unit=" s"), number_text(0.5, signed=True)] == [
        "-", "0.33", "2 s", "+0.50",
    ]  # fmt: skip
    assert [percent(0.621), percent(None, none="none"), percent(-0.5, 0, signed=True)] == ["62.1 %", "none", "-50 %"]
    assert [span(0.58, 0.661, 1, scale=100.0), span(None, 1.0), span(-0.1, 0.2, signed=True)] == [
        "58.0 to 66.1", "", "-0.10 to +0.20",
    ]  # fmt: skip
    share = Share(0.621, 0.58, 0.661, 9, 10)
    assert with_interval(share, 1, scale=100.0, unit=" %") == "62.1 % (58.0 to 66.1)"
    assert with_interval({"value": 0.621, "low": 0.58, "high": 0.661}, brackets=True) == "0.62 [0.58, 0.66]"
    assert with_interval(Share(0.5, None, None, 1, 1)) == "0.50"
    assert with_interval(Share(None, None, None, 0, 1), none="no share") == "no share"
    assert [with_error(3.21, 0.08), with_error(3.21, None), with_error(None, 0.1)] == ["3.21 ± 0.08", "3.21", "-"]
    assert [p_value(0.01234), p_value(None)] == ["0.012", "-"]


def test_sizes_have_the_unit_that_suits_them() -> None:
    assert [size_text(size) for size in (1.5e12, 36e6, 120)] == ["1.5 TB", "36 MB", "0.12 kB"]
