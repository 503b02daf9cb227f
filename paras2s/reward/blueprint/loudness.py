"""Loudness after ITU-R BS.1770-4: integrated, and the spread and contour of the blocks that pass its gates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.errors import AudioError
from paras2s.reward.blueprint.schema import Fields, contour, measured
from paras2s.types import Absent

INTEGRATED = "agent_audio_properties.loudness_integrated_lufs"
STD = "agent_audio_properties.loudness_std_lu"
CONTOUR = "agent_audio_properties.loudness_contour_lufs"
BLOCK_S = 0.4
BLOCK_HOP_S = 0.1
ABSOLUTE_GATE_LUFS = -70.0
RELATIVE_GATE_LU = -10.0
# The weighting's shelf rises up to 3.4 kHz.
MIN_RATE_HZ = 8_000
# pyloudnorm has weights for left, right, centre and two surrounds.
MAX_CHANNELS = 5


class LoudnessExtractor:
    """Blocks of 400 ms, one every 100 ms, of each clip at its own rate and summed over its channels, as the norm has it."""

    name = "loudness"
    version = "pyloudnorm-0.2.0/loudness-2"
    rate_hz = None
    keys = (INTEGRATED, STD, CONTOUR)

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Return each clip's loudness. Raises AudioError: too short, under 8 kHz, over five channels, or all below -70 LUFS."""
        return [_fields(clip) for clip in clips]


def _fields(clip: Clip) -> Fields:
    import pyloudnorm

    if clip.duration_s < BLOCK_S:
        raise AudioError(f"{clip.duration_s:.2f} s is shorter than a block of {BLOCK_S} s: loudness cannot be measured")
    if clip.sample_rate_hz < MIN_RATE_HZ:
        raise AudioError(f"{clip.sample_rate_hz} Hz is under {MIN_RATE_HZ} Hz: loudness cannot be measured")
    channels = clip.samples if clip.channels is None else clip.channels
    if channels.ndim == 2 and channels.shape[1] > MAX_CHANNELS:
        raise AudioError(f"{channels.shape[1]} channels are more than {MAX_CHANNELS}: loudness cannot be measured")
    meter = pyloudnorm.Meter(clip.sample_rate_hz, block_size=BLOCK_S, overlap=1 - BLOCK_HOP_S / BLOCK_S)
    integrated = float(meter.integrated_loudness(channels.astype(np.float64)))
    if not np.isfinite(integrated):
        raise AudioError(f"nothing is louder than {ABSOLUTE_GATE_LUFS:.0f} LUFS: loudness cannot be measured")
    blocks = np.asarray(meter.blockwise_loudness)
    gated = np.flatnonzero(blocks > _gate(blocks))
    fields: Fields = {INTEGRATED: measured(INTEGRATED, integrated)}
    if len(gated) < 2:
        absent = Absent("only one block of 0.4 s is loud enough: it has no spread and no course")
        return {**fields, STD: absent, CONTOUR: absent}
    return {
        **fields,
        STD: measured(STD, float(blocks[gated].std())),
        CONTOUR: measured(CONTOUR, contour(gated * BLOCK_HOP_S, blocks[gated])),
    }


def _gate(blocks_lufs: np.ndarray) -> float:
    """Return the level a block [n] must exceed: 10 LU under the mean power of those over the absolute gate."""
    loud = blocks_lufs[blocks_lufs >= ABSOLUTE_GATE_LUFS]
    mean_lufs = 10 * np.log10(np.mean(10 ** (loud / 10)))
    return max(ABSOLUTE_GATE_LUFS, float(mean_lufs + RELATIVE_GATE_LU))
