"""Frozen parts of a released model that stand in folders of their own: where they are, also for checkpoints trained from it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from paras2s.errors import PolicyError
from paras2s.utils.io import read_json, write_json

# In a checkpoint that was trained here: where the parts are that were not copied.
POINTERS = "parts.json"


def find_part(folder: Path, name: str) -> Path:
    """A part's folder: in the checkpoint, beside it, or where the checkpoint it was trained from has it.

    Raises:
        PolicyError: nowhere.
    """
    pointers = folder / POINTERS
    known = dict(read_json(pointers)) if pointers.is_file() else {}
    for place in (folder / name, folder.parent / name, *([Path(str(known[name]))] if name in known else [])):
        if place.is_dir():
            return place
    raise PolicyError(f"{folder}: there is no {name} in it or beside it; put the released folder there")


def point_at_parts(folder: Path, trained_from: Path, names: Iterable[str]) -> None:
    """Say in a new checkpoint where the parts are of the one it was trained from; those that are nowhere are left out."""
    found = {}
    for name in names:
        try:
            found[name] = str(find_part(trained_from, name).resolve())
        except PolicyError:
            continue
    (folder / POINTERS).unlink(missing_ok=True)
    if found:
        write_json(folder / POINTERS, found)
