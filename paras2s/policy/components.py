"""Folders of a released model's frozen components (Whisper, tokenizer, vocoder), also for checkpoints trained from it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from paras2s.errors import PolicyError
from paras2s.utils.io import read_json, write_json

# In a checkpoint that was trained here: where the components are that were not copied.
POINTERS = "parts.json"


def find_component(folder: Path, name: str) -> Path:
    """The folder of a component: in the checkpoint, beside it, or where the checkpoint it was trained from has it.

    Raises:
        PolicyError: nowhere.
    """
    file = folder / POINTERS
    pointers = dict(read_json(file)) if file.is_file() else {}
    for place in (folder / name, folder.parent / name, *([Path(str(pointers[name]))] if name in pointers else [])):
        if place.is_dir():
            return place
    raise PolicyError(f"{folder}: there is no {name} in it or beside it; put the released folder there")


def write_pointers(folder: Path, trained_from: Path, names: Iterable[str]) -> None:
    """Write into a new checkpoint where the components are of the one it was trained from; missing ones are left out."""
    places = {}
    for name in names:
        try:
            places[name] = str(find_component(trained_from, name).resolve())
        except PolicyError:
            continue
    (folder / POINTERS).unlink(missing_ok=True)
    if places:
        write_json(folder / POINTERS, places)
