"""Parser of numbered lists as LLMs write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A number glued to its text is one as well ("2.Two"), but "3.5 miles" is none.
ITEM = re.compile(r"^\s*(?:[-*]\s*)?(\d{1,4})\s*[.):](?:\s+|(?=[^\d\s]))(\S.*?)\s*$")
QUOTES = "\"'“”‘’"


@dataclass(frozen=True)
class NumberedList:
    """Items in written order, those beyond the expected count, and the list's fault ("": none)."""

    items: tuple[str, ...]
    surplus: tuple[str, ...]
    complaint: str


def read_numbered(text: str, expected: int) -> NumberedList:
    """Parse a numbered list of `expected` items; wrong numbers are reported, a line right below continues its item."""
    numbers: list[int] = []
    texts: list[str] = []
    within = False
    for line in text.splitlines():
        match = ITEM.match(line)
        if match:
            numbers.append(int(match.group(1)))
            texts.append(match.group(2))
        elif within and line.strip():
            texts[-1] += f" {line.strip()}"
        within = bool(line.strip()) and bool(texts)
    items = [_strip_quotes(item) for item in texts]
    complaints = []
    if len(items) != expected:
        complaints.append(f"{len(items)} items, {expected} were requested")
    if numbers != list(range(1, len(numbers) + 1)):
        complaints.append("wrongly numbered")
    return NumberedList(tuple(items[:expected]), tuple(items[expected:]), "; ".join(complaints))


def _strip_quotes(item: str) -> str:
    """Remove the quotes that some models put around an item, and a trailing pair of styles in brackets."""
    item = re.sub(r"\s*\(\w+(?:\s*,\s*\w+)+\)\s*$", "", item).replace("**", "").strip()
    paired = len(item) > 1 and item[0] in QUOTES and item[-1] in QUOTES and not any(mark in item[1:-1] for mark in '"“”')
    return item[1:-1].strip() if paired else item
