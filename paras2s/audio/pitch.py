"""Pitch tracking by SwiftF0, which is robust on processed and coded speech, where DIO and Codec 2's tracker jump octaves."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.utils.latest import Latest
from paras2s.utils.process_pool import native_threads

FRAME_HOP_S = 0.016
MIN_HZ, MAX_HZ = 55.0, 600.0


@dataclass(frozen=True)
class PitchTrack:
    """A pitch track, frames of 16 ms: `f0_hz` [T] (0 where unvoiced) and `level_db` [T], the level of 32 ms around each.

    `confidence` [T] is the tracker's, 0 to 1; None for a track of another origin.
    """

    f0_hz: np.ndarray
    level_db: np.ndarray
    confidence: np.ndarray | None = None

    @property
    def voiced(self) -> np.ndarray:
        """Mask [T] of voiced frames."""
        return self.f0_hz > 0

    def at(self, times_s: np.ndarray) -> np.ndarray:
        """Return F0 in Hz at given times: log-linear between voiced neighbours, 0 where the nearest frame is unvoiced."""
        if not self.voiced.any():
            return np.zeros_like(times_s)
        frame_times_s = np.arange(len(self.f0_hz)) * FRAME_HOP_S
        voiced = self.voiced
        log_f0 = np.interp(times_s, frame_times_s[voiced], np.log(self.f0_hz[voiced]))
        nearest = np.clip(np.rint(times_s / FRAME_HOP_S).astype(int), 0, len(voiced) - 1)
        return np.where(voiced[nearest], np.exp(log_f0), 0.0)


@functools.cache
def _detector(threads: int) -> Any:
    from swift_f0 import SwiftF0

    from paras2s.audio.assets import asset_path

    asset_path("swift_f0")
    return SwiftF0(threads=threads, spin=False)


# Codec, prosody and several extractors ask for the pitch of the same clips, one after the other.
_tracks: Latest[PitchTrack] = Latest(128)


def track_pitch(clip: Clip) -> PitchTrack:
    """Compute F0 and level of a clip of any rate; those of the latest clips are held."""
    clip = clip.at(16_000)
    digest = clip.samples_digest
    return _tracks.of({digest: clip}, lambda clips: [*map(_track, clips)])[digest]


def _track(clip: Clip) -> PitchTrack:
    result = _detector(native_threads()).detect(clip.samples, 16_000, MIN_HZ, MAX_HZ)
    f0_hz = np.where(result.confidence >= 0.5, result.pitch_hz, 0.0)
    levels = np.asarray(result.loudness_db, dtype=np.float32)
    return PitchTrack(f0_hz.astype(np.float32), levels, np.asarray(result.confidence, dtype=np.float32))
