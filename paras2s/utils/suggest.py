"""The nearest name to a mistyped one: a key, a choice, or a file beside it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?" with the nearest known name, "" if none is near."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def nearest_file(path: Path) -> str:
    """Return "; did you mean PATH?" with the nearest name in the same folder, or the first missing folder of the path."""
    folder = path.parent
    if not folder.is_dir():
        missing = next((parent for parent in reversed(path.parents) if not parent.exists()), folder)
        return f"; there is no folder {missing}{nearest_file(missing)}"
    try:
        return did_you_mean(str(path), (str(folder / name.name) for name in folder.iterdir()))
    except OSError:
        return ""
