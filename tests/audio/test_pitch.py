"""Covers the pitch tracker on synthetic voices: accuracy, no octave errors, silence, rates, interpolation.

Not covered: real voices against a laryngograph, and speech in noise.
"""

import numpy as np
import pytest

from paras2s.audio.clip import Clip
from paras2s.audio.pitch import FRAME_HOP_S, PitchTrack, track_pitch


def voice(f0_hz: float, rate_hz: int = 16_000, duration_s: float = 1.0) -> Clip:
    """Harmonics up to 4 kHz, falling by 6 dB an octave as those of a voice do."""
    time_s = np.arange(int(duration_s * rate_hz)) / rate_hz
    wave = sum(np.sin(2 * np.pi * k * f0_hz * time_s) / k for k in range(1, int(4000 / f0_hz)))
    return Clip((0.2 * wave / np.abs(wave).max()).astype(np.float32), rate_hz)


def test_200_hz_is_200_hz() -> None:
    track = track_pitch(voice(200.0))
    assert track.f0_hz[track.voiced].mean() == pytest.approx(200.0, abs=2.0)


@pytest.mark.parametrize("f0_hz", [75.0, 100.0, 200.0, 300.0, 400.0])
def test_no_frame_is_halved_or_doubled(f0_hz: float) -> None:
    track = track_pitch(voice(f0_hz))
    assert track.voiced.mean() > 0.9
    np.testing.assert_allclose(track.f0_hz[track.voiced], f0_hz, rtol=0.05)


def test_the_clips_rate_does_not_matter() -> None:
    track = track_pitch(voice(200.0, rate_hz=24_000))
    assert track.f0_hz[track.voiced].mean() == pytest.approx(200.0, abs=2.0)


def test_one_frame_every_16_ms() -> None:
    assert len(track_pitch(voice(200.0, duration_s=1.6)).f0_hz) == pytest.approx(1.6 / FRAME_HOP_S, abs=1)


def test_silence_has_no_pitch() -> None:
    track = track_pitch(Clip(np.zeros(16_000, dtype=np.float32), 16_000))
    assert not track.voiced.any()
    assert (track.at(np.array([0.1, 0.5])) == 0).all()


def test_between_frames_pitch_is_log_linear_and_unvoiced_stays_0() -> None:
    track = PitchTrack(np.array([100.0, 400.0, 0.0]), np.zeros(3))
    at = track.at(np.array([0.0, FRAME_HOP_S / 2, FRAME_HOP_S, 2 * FRAME_HOP_S]))
    np.testing.assert_allclose(at, [100.0, 200.0, 400.0, 0.0])
