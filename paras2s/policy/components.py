"""Folders of a released model's frozen components (Whisper, tokenizer, vocoder), also for checkpoints trained from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from paras2s.errors import PolicyError
from paras2s.utils.io import read_json, write_json

# In a checkpoint that was trained here: where the components are that were not copied.
POINTERS = "parts.json"


def find_component(folder: Path, name: str) -> Path:
    """Return a component's folder: in the checkpoint, beside it, or at its origin. Raises PolicyError: it is nowhere."""
    pointers = pointed_at(folder)
    for candidate in (folder / name, folder.parent / name, *([pointers[name]] if name in pointers else [])):
        if candidate.is_dir():
            return candidate
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


def pointed_at(folder: Path) -> dict[str, Path]:
    """Return the components that a checkpoint has elsewhere, by name."""
    file = folder / POINTERS
    return {name: Path(str(component)) for name, component in dict(read_json(file)).items()} if file.is_file() else {}


def copy_components(folder: Path) -> None:
    """Copy into a checkpoint the components that it points at, so that it is complete. Raises PolicyError: one is missing."""
    for name, path in pointed_at(folder).items():
        if not path.is_dir():
            raise PolicyError(f"{folder / POINTERS}: {name} is not at {path} any more; put it back, or leave components out")
        shutil.copytree(path, folder / name)
    (folder / POINTERS).unlink(missing_ok=True)
