"""Text of other programs, made fit for files."""

from __future__ import annotations

from typing import Any


def well_formed(value: Any) -> Any:
    """Return a text, or every text of a JSON value's lists, with ? for half an emoji: no file could be written with it."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return [well_formed(item) for item in value] if isinstance(value, list) else value
