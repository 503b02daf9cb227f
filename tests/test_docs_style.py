"""Pages are made to be skimmed: no long lines of prose, no long pages.

Not counted: generated parts between two comments, and pages that a command writes. Tables, code and pictures may be wide.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_WIDTH, MAX_LINES = 120, 400
# Written whole by `paras2s paper`.
GENERATED = {"docs/paper.md", "docs/ablations.md"}
PAGES = [
    name
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if (name := path.relative_to(ROOT).as_posix()) not in GENERATED
]
BLOCK = re.compile(r"^<!-- ([\w ]+): begin\b.*?^<!-- \1: end -->$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[ `~]*$", re.MULTILINE | re.DOTALL)


def handwritten(name: str) -> str:
    return BLOCK.sub("", (ROOT / name).read_text())


def long_lines(text: str) -> list[str]:
    """Lines of prose over the limit."""
    prose = CODE.sub("", text).splitlines()
    return [line for line in prose if len(line) > MAX_WIDTH and not re.match(r"\s*(\||!\[|\[[^\]]+\]: |<)", line)]


@pytest.mark.parametrize("name", PAGES)
def test_no_line_of_prose_is_too_long(name: str) -> None:
    assert long_lines(handwritten(name)) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_too_long(name: str) -> None:
    assert len(handwritten(name).splitlines()) <= MAX_LINES


def test_a_long_line_is_reported_unless_it_is_a_table_or_code() -> None:
    long = "word " * 30
    assert long_lines(f"{long}\n| {long} |\n```\n{long}\n```\n[link]: {long}\n") == [long]
