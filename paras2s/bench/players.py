"""Clips as players of a page that holds its own sound."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from paras2s.audio.clip import Clip, encode_clip

EMBEDDED_RATE_HZ = 16_000


@dataclass(frozen=True)
class Player:
    """A clip as a data: URL, or the problem that is shown instead."""

    source: str | None
    problem: str = ""


def player_of(clip: Clip) -> Player:
    """Return the clip in Ogg Vorbis at 16 kHz at most: speech needs no more, and a page stays small."""
    # Also, libsndfile's Vorbis encoder dies of a minute at 48 kHz.
    encoded = encode_clip(clip.at(min(clip.sample_rate_hz, EMBEDDED_RATE_HZ)), "OGG")
    return Player(f"data:audio/ogg;base64,{base64.b64encode(encoded).decode()}")
