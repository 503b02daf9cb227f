"""The turns of a dialogue before a question, for the pages that show its answers."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paras2s.data_gen.histories import FILE, rows_of
from paras2s.errors import DataError
from paras2s.studio.clips import clip_address
from paras2s.studio.folders import Folders
from paras2s.types import PastTurn

DATA = "data"
Turns = Mapping[str, Sequence[PastTurn]]


def read_turns(folders: Folders, run: Path) -> tuple[Turns, str]:
    """Return the turns before the queries of a run, by query, and why they cannot be read ("": they can, or there are none)."""
    try:
        # A link could lead to any file of this machine.
        path = folders.path(*folders.locate(run / DATA / FILE))
        return (_read(path, path.stat().st_mtime_ns) if path.is_file() else {}), ""
    except (DataError, OSError) as error:
        return {}, f"the turns before the questions: {str(error).replace(f'{run}{os.sep}', '')}"


@functools.lru_cache(maxsize=8)
def _read(path: Path, changed_ns: int) -> Turns:
    return {query_id: turns for _, query_id, turns in rows_of(path)}


def turns_view(folders: Folders, run: Path, turns: Sequence[PastTurn]) -> list[dict[str, Any]]:
    """Return the turns before a question, each with its speaker, words and the address of its clip."""
    without = {"clip": "", "problem": ""}
    return [
        {"speaker": turn.speaker, "text": turn.text}
        | (clip_address(folders, run, f"{DATA}/{turn.clip}") if turn.clip else without)
        for turn in turns
    ]
