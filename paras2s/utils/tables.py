"""One table for every report, for a terminal and as Markdown, and the texts of the numbers in it.

Cells are plain text. Names and transcripts come from users' files and from models, so no form reads markup in them: each form
has one escape, which is here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

MISSING = "-"
# Escape sequences of a terminal begin with one of these.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# What Markdown would read: of underscores those at the edge of a word, of brackets those of a link.
MARKDOWN = re.compile(r"[\\`*|]|~~|(?<=\])\(|(?<![^\W_])_|_(?![^\W_])")


class Styled(str):
    """The text of a cell in a style of rich, which the console shows; bold text is bold in Markdown as well."""

    style: str

    def __new__(cls, text: str, style: str = "bold") -> Styled:
        """Return the text with its style."""
        styled = super().__new__(cls, text)
        styled.style = style
        return styled

    @property
    def bold(self) -> bool:
        """Whether it is bold outside the console."""
        return self.style == "bold"


@dataclass(frozen=True)
class Table:
    """A head, rows of text, a title above and notes below; a line is drawn above the rows whose numbers are in `sections`.

    A cell of None is missing and shows as "-". Cells that a short row lacks are empty. Without a head there are only the notes.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    notes: Sequence[str] = ()
    sections: Collection[int] = ()

    def texts(self) -> list[list[str]]:
        """Return the rows as text, each as long as the head. Raises ValueError: a row is longer than the head."""
        rows = [
            [cell if isinstance(cell, str) else MISSING if cell is None else str(cell) for cell in row] for row in self.rows
        ]
        if any(len(row) > len(self.head) for row in rows):
            raise ValueError(f"a row of {max(map(len, rows))} cells in a table of {len(self.head)} columns")
        return [[*row, *[""] * (len(self.head) - len(row))] for row in rows]

    def show(self, console: Console) -> None:
        """Print the table on a terminal."""
        from rich.table import Column
        from rich.table import Table as Grid
        from rich.text import Text

        def text(cell: str, style: str = "") -> Text:
            return Text(CONTROL.sub("", cell), style)

        title = text(self.title, "table.title") if self.title else None
        grid = Grid(*(Column(text(name), overflow="fold") for name in self.head), title=title, title_justify="left")
        for number, row in enumerate(self.texts()):
            if number in self.sections:
                grid.add_section()
            grid.add_row(*(text(cell, cell.style if isinstance(cell, Styled) else "") for cell in row))
        console.print(grid)
        for note in self.notes:
            console.print(text(note))

    def markdown(self, heading: int = 0) -> str:
        """Return the table and its notes as Markdown, under its title where `heading` is the level of one."""
        above = [f"{'#' * heading} {escape_markdown(self.title)}", ""] if heading else []
        lines = [_line(self.head), "|---" * len(self.head) + "|", *map(_line, self.texts())] if self.head else []
        notes = [part for note in self.notes for part in ("", escape_markdown(note))]
        return "\n".join([*above, *lines, *(notes if self.head else notes[1:])])


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is, in one line: no markup, no HTML, no end of a cell."""
    text = re.sub(r"&(?=[#\w]+;)", "&amp;", " ".join(CONTROL.sub("", text).split()))
    return MARKDOWN.sub(lambda match: "".join(f"\\{letter}" for letter in match[0]), text).replace("<", "&lt;")


def spreadsheet_cell(value: object) -> object:
    """Return a value for a CSV file that people open: a text that a spreadsheet would run as a formula gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _line(cells: Sequence[str]) -> str:
    texts = ((escape_markdown(cell), isinstance(cell, Styled) and cell.bold) for cell in cells)
    return f"| {' | '.join(f'**{text}**' if bold and text else text for text, bold in texts)} |"


# Numbers.


def number_text(
    value: float | None, digits: int = 2, *, scale: float = 1.0, unit: str = "", signed: bool = False, none: str = MISSING
) -> str:
    """Return a number with its unit; `none` where it is missing. A share in percent has a `scale` of 100."""
    return none if value is None else f"{scale * value:{'+' if signed else ''}.{digits}f}{unit}"


def percent(value: float | None, digits: int = 1, *, signed: bool = False, none: str = MISSING) -> str:
    """Return a share in percent, such as "62.1 %"."""
    return number_text(value, digits, scale=100.0, unit=" %", signed=signed, none=none)


def size_text(size: float) -> str:
    """Return bytes in the unit that suits them."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def span(low: float | None, high: float | None, digits: int = 2, *, scale: float = 1.0, signed: bool = False) -> str:
    """Return the ends of an interval, such as "58.0 to 66.1"; "" where there is none."""
    if low is None or high is None:
        return ""
    return f"{number_text(low, digits, scale=scale, signed=signed)} to {number_text(high, digits, scale=scale, signed=signed)}"


def with_interval(
    figure: Any,
    digits: int = 2,
    *,
    scale: float = 1.0,
    unit: str = "",
    signed: bool = False,
    brackets: bool = False,
    none: str = MISSING,
) -> str:
    """Return a figure's value and its interval where it has one: "62.1 % (58.0 to 66.1)", or "62.10 [58.03, 66.12]".

    A figure has `value`, `low` and `high`, as attributes or as keys.
    """
    fields = figure if isinstance(figure, Mapping) else vars(figure)
    value, low, high = fields["value"], fields["low"], fields["high"]
    text = number_text(value, digits, scale=scale, unit=unit, signed=signed, none=none)
    ends = span(low, high, digits, scale=scale, signed=signed)
    if value is None or not ends:
        return text
    return f"{text} [{ends.replace(' to ', ', ')}]" if brackets else f"{text} ({ends})"


def with_error(value: float | None, error: float | None) -> str:
    """Return a mean and its standard error, such as "3.21 ± 0.08"."""
    return number_text(value) + ("" if value is None or error is None else f" ± {number_text(error)}")


def p_value(value: float | None, none: str = MISSING) -> str:
    """Return a p-value to two digits."""
    return none if value is None else f"{value:.2g}"
