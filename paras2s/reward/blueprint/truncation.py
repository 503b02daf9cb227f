"""Whether an answer ends or is cut off: the level of its last 60 ms against the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.reward.blueprint.schema import Fields, measured, require_sound

TAIL = "agent_audio_properties.tail_level_db"
TAIL_S = 0.06


class TruncationExtractor:
    """Level of the last 60 ms relative to the clip's mean power, in dB: speech that ends fades, a cut does not."""

    name = "ending"
    version = "ending/1"
    rate_hz = 16_000
    keys = (TAIL,)

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Return a field for each clip."""
        return [_fields(clip) for clip in clips]


def tail_level_db(clip: Clip) -> float:
    """Return the level of the clip's last 60 ms relative to its mean power, in dB."""
    power = float(np.mean(clip.samples**2))
    tail = float(np.mean(clip.samples[-int(TAIL_S * clip.sample_rate_hz) :] ** 2))
    return float(10 * np.log10(max(tail, 1e-12) / max(power, 1e-12)))


def _fields(clip: Clip) -> Fields:
    require_sound(clip, "the ending")
    return {TAIL: measured(TAIL, tail_level_db(clip))}
