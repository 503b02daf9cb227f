"""Pitch: mean, standard deviation and contour of the voiced frames, not cut to 80-300 Hz as TRACE does with aubio."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.audio.pitch import FRAME_HOP_S, track_pitch
from paras2s.errors import AudioError
from paras2s.reward.blueprint.schema import Fields, contour, measured, require_sound

MEAN = "agent_audio_properties.pitch_mean_hz"
STD = "agent_audio_properties.pitch_std_hz"
CONTOUR = "agent_audio_properties.pitch_contour_hz"
VOICED = "agent_audio_properties.voiced_share"
MIN_VOICED_FRAMES = 3


class PitchExtractor:
    """F0 by SwiftF0; the contour runs from the first to the last voiced frame and bridges unvoiced ones."""

    name = "pitch"
    version = "swift-f0-0.3.0/pitch-2"
    rate_hz = 16_000
    keys = (MEAN, STD, CONTOUR)

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Pitch of each clip. Raises AudioError: a clip has under 3 voiced frames."""
        return [_fields(clip) for clip in clips]


class VoicingExtractor:
    """Share of the frames that a voice is heard in: about 0.4 in speech, next to nothing in clicks and noise."""

    name = "voicing"
    version = "swift-f0-0.3.0/voicing-1"
    rate_hz = 16_000
    keys = (VOICED,)

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Return a field for each clip."""
        fields: list[Fields] = []
        for clip in clips:
            require_sound(clip, "voicing")
            fields.append({VOICED: measured(VOICED, float(track_pitch(clip).voiced.mean()))})
        return fields


def _fields(clip: Clip) -> Fields:
    if not len(clip.samples):
        raise AudioError("the clip has no samples: pitch cannot be measured")
    track = track_pitch(clip)
    frames = np.flatnonzero(track.voiced)
    if len(frames) < MIN_VOICED_FRAMES:
        raise AudioError(f"{len(frames)} voiced frames, {MIN_VOICED_FRAMES} are needed: pitch cannot be measured")
    f0_hz = track.f0_hz[frames].astype(np.float64)
    confidence = None if track.confidence is None else float(track.confidence[frames].mean())
    return {
        MEAN: measured(MEAN, float(f0_hz.mean()), confidence),
        STD: measured(STD, float(f0_hz.std()), confidence),
        CONTOUR: measured(CONTOUR, contour(frames * FRAME_HOP_S, f0_hz), confidence),
    }
