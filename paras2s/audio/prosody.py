"""Prosody features per 80 ms step and per utterance. Bands end at 4 kHz, so that coded speech is comparable."""

from __future__ import annotations

import functools

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.audio.pitch import FRAME_HOP_S, PitchTrack, track_pitch
from paras2s.errors import AudioError

STEP_S = 0.08
RATE_HZ = 16_000
BANDS = 16
STEP_DIM = 6
VERSION = "prosody/1"
UTTERANCE_NAMES = (
    "f0_mean_log", "f0_std_log", "f0_p10_log", "f0_p90_log", "f0_slope", "f0_step_std", "f0_tremor",
    "voiced_share", "level_mean_db", "level_std_db", "level_p90_db", "peaks_per_s", "duration_s",
    *(f"band{i}_mean_db" for i in range(BANDS)), *(f"band{i}_std_db" for i in range(BANDS)),
)  # fmt: skip
UTTERANCE_DIM = len(UTTERANCE_NAMES)


def _band_edges_hz() -> np.ndarray:
    edges_mel = np.linspace(2595 * np.log10(1 + 80 / 700), 2595 * np.log10(1 + 3800 / 700), BANDS + 2)
    return np.asarray(700 * (10 ** (edges_mel / 2595) - 1))


def band_centres_hz() -> np.ndarray:
    """Return the frequency [BANDS] at which each band is heard most."""
    return _band_edges_hz()[1:-1]


@functools.lru_cache(maxsize=1)
def _mel_weights() -> np.ndarray:
    """Return triangular filters [BANDS, 257] between 80 Hz and 3.8 kHz, equally wide on the mel scale."""
    edges_hz = _band_edges_hz()
    axis_hz = np.linspace(0, RATE_HZ / 2, 257)
    rising = (axis_hz[None] - edges_hz[:-2, None]) / (edges_hz[1:-1] - edges_hz[:-2])[:, None]
    falling = (edges_hz[2:, None] - axis_hz[None]) / (edges_hz[2:] - edges_hz[1:-1])[:, None]
    return np.asarray(np.maximum(0, np.minimum(rising, falling)))


def _band_levels(samples: np.ndarray) -> np.ndarray:
    """Compute band levels in dB [frames, BANDS], one frame every 16 ms."""
    hop, size = int(FRAME_HOP_S * RATE_HZ), 512
    padded = np.pad(samples, (size // 2, size))
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    power = np.abs(np.fft.rfft(frames * np.hanning(size), axis=1)) ** 2
    return np.asarray(10 * np.log10(power @ _mel_weights().T + 1e-8))


def describe(clip: Clip) -> tuple[np.ndarray, np.ndarray]:
    """Compute the prosody of a clip: steps [T, 6] and utterance [45], both float32 and not standardised.

    A step holds: mean log F0 (0 if unvoiced), voiced share, level / 20 dB, its change, low-band and high-band level / 20 dB.

    Raises:
        AudioError: the clip is silent.
    """
    clip = clip.at(RATE_HZ)
    if float(np.abs(clip.samples).max(initial=0.0)) < 1e-3:
        raise AudioError("the clip is silent: prosody cannot be measured")
    pitch, bands = track_pitch(clip), _band_levels(clip.samples)
    frames = min(len(pitch.f0_hz), len(bands))
    pitch = PitchTrack(pitch.f0_hz[:frames], np.maximum(pitch.level_db[:frames], -80.0))
    bands = bands[:frames]
    steps = _steps(pitch, bands, int(np.ceil(clip.duration_s / STEP_S - 1e-6)))
    return steps.astype(np.float32), _utterance(pitch, bands, clip.duration_s).astype(np.float32)


def _steps(pitch: PitchTrack, bands: np.ndarray, count: int) -> np.ndarray:
    rows = np.zeros((count, STEP_DIM))
    of_frame = (np.arange(len(bands)) * FRAME_HOP_S / STEP_S).astype(int)
    log_f0 = np.log(np.where(pitch.voiced, pitch.f0_hz, 150.0) / 150.0)
    for step in range(count):
        inside = of_frame == step
        if not inside.any():
            rows[step] = rows[step - 1] if step else 0
            continue
        voiced = inside & pitch.voiced
        rows[step, 0] = log_f0[voiced].mean() if voiced.any() else 0.0
        rows[step, 1] = voiced.sum() / inside.sum()
        rows[step, 2] = pitch.level_db[inside].mean() / 20
        rows[step, 4] = bands[inside][:, : BANDS // 2].mean() / 20
        rows[step, 5] = bands[inside][:, BANDS // 2 :].mean() / 20
    rows[1:, 3] = np.diff(rows[:, 2])
    return rows


def _utterance(pitch: PitchTrack, bands: np.ndarray, duration_s: float) -> np.ndarray:
    level_db = pitch.level_db
    voiced = pitch.voiced
    f0 = np.zeros(7)
    if voiced.sum() >= 3:
        log_f0 = np.log(pitch.f0_hz[voiced])
        when_s = np.flatnonzero(voiced) * FRAME_HOP_S
        steps = np.diff(log_f0)[np.diff(when_s) < 1.5 * FRAME_HOP_S]
        width = min(15, len(log_f0))
        smooth = np.convolve(log_f0, np.ones(width) / width, mode="same")
        f0[:4] = log_f0.mean(), log_f0.std(), np.percentile(log_f0, 10), np.percentile(log_f0, 90)
        f0[4] = np.polyfit(when_s - when_s.mean(), log_f0, 1)[0]
        f0[5] = steps.std() if len(steps) else 0.0
        f0[6] = (log_f0 - smooth).std()
    loud = level_db > level_db.max() - 30
    active = level_db[loud]
    envelope = np.convolve(level_db, np.ones(3) / 3, mode="same")
    peaks = (envelope[1:-1] > envelope[:-2]) & (envelope[1:-1] >= envelope[2:]) & loud[1:-1]
    level = [active.mean(), active.std(), np.percentile(active, 90), peaks.sum() / duration_s, duration_s]
    loud_bands = bands[loud]
    # Bands relative to the mean level: tilt and formants; loudness has features of its own.
    relative = loud_bands - loud_bands.mean()
    return np.concatenate([f0, [voiced.mean()], level, relative.mean(0), relative.std(0)])
