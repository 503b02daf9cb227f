"""Files of token ranks (tiktoken's format), with the words of some texts as tokens."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path


def pieces_of(texts: Sequence[str] = ()) -> list[bytes]:
    """The 256 bytes and the words of some texts; a word is merged byte by byte, so all its beginnings are tokens."""
    pieces = [bytes([byte]) for byte in range(256)]
    for word in sorted({found for text in texts for found in re.findall(r" ?\w+", text)}):
        starts = [word.encode()[:length] for length in range(2, len(word.encode()) + 1)]
        pieces += [start for start in starts if start not in pieces]
    return pieces


def write_ranks(path: Path, pieces: Sequence[bytes]) -> None:
    """Each piece's rank is its place."""
    path.write_bytes(b"\n".join(b"%s %d" % (base64.b64encode(piece), rank) for rank, piece in enumerate(pieces)))
