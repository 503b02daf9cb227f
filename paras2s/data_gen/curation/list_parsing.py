"""A numbered list as an LLM writes it: what was asked for, and what is wrong with it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A number glued to its text is one as well ("2.Two"), but "3.5 miles" is none.
ITEM = re.compile(r"^\s*(?:[-*]\s*)?(\d{1,4})\s*[.):](?:\s+|(?=[^\d\s]))(\S.*?)\s*$")
QUOTES = "\"'“”‘’"


@dataclass(frozen=True)
class NumberedList:
    """Items in the order they were written, and what the list does otherwise than asked ("" where nothing)."""

    items: tuple[str, ...]
    surplus: tuple[str, ...]
    complaint: str


def read_numbered(text: str, asked: int) -> NumberedList:
    """The items of a numbered list. Its numbers order nothing: a wrong one is told, and the item is taken all the same.

    Items beyond `asked` are surplus. A line right below an item goes on with it; other prose is passed over.
    """
    numbers: list[int] = []
    texts: list[str] = []
    within = False
    for line in text.splitlines():
        found = ITEM.match(line)
        if found:
            numbers.append(int(found.group(1)))
            texts.append(found.group(2))
        elif within and line.strip():
            texts[-1] += f" {line.strip()}"
        within = bool(line.strip()) and bool(texts)
    items = [_bare(one) for one in texts]
    complaints = []
    if len(items) != asked:
        complaints.append(f"{len(items)} items, {asked} were asked for")
    if numbers != list(range(1, len(numbers) + 1)):
        complaints.append("wrongly numbered")
    return NumberedList(tuple(items[:asked]), tuple(items[asked:]), "; ".join(complaints))


def _bare(item: str) -> str:
    """Without the quotes that some models put around each item, and without a trailing pair of styles in brackets."""
    item = re.sub(r"\s*\(\w+(?:\s*,\s*\w+)+\)\s*$", "", item).replace("**", "").strip()
    paired = len(item) > 1 and item[0] in QUOTES and item[-1] in QUOTES and not any(mark in item[1:-1] for mark in '"“”')
    return item[1:-1].strip() if paired else item
