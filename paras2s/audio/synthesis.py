"""Speech with a chosen speaker and style: Piper synthesises, the WORLD vocoder changes voice and delivery.

Piper is GPL-3.0 and therefore runs as a program of its own (as `python -m piper` does), never as an import.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paras2s.audio.assets import asset_path
from paras2s.audio.clip import Clip, read_clip
from paras2s.audio.pitch import track_pitch
from paras2s.errors import DataError

RATE_HZ = 16_000
FRAME_MS = 5.0
VERSION = "piper-joe+world/1"


@dataclass(frozen=True)
class Speaker:
    """A voice made from Piper's male one: `f0_factor` on pitch, `formant_warp` on the envelope's frequency axis."""

    name: str
    f0_factor: float
    formant_warp: float


@dataclass(frozen=True)
class Style:
    """Vocoder settings of a delivery.

    `f0_level` factor on mean pitch; `f0_range` power on the excursion from it; `rate` factor on speed; `gain` factor on
    amplitude; `tilt_db_octave` spectral slope around 1 kHz; `tremor_depth` relative F0 swing at 6 Hz; `breath` 0-1, the
    whispered (aperiodic) share of the voice.
    """

    f0_level: float = 1.0
    f0_range: float = 1.0
    rate: float = 1.0
    gain: float = 1.0
    tilt_db_octave: float = 0.0
    tremor_depth: float = 0.0
    breath: float = 0.0


@dataclass(frozen=True)
class Voice:
    """WORLD parameters of an utterance: F0 [T] (0 unvoiced), envelope and aperiodicity [T, bins], frames of 5 ms."""

    f0_hz: np.ndarray
    envelope: np.ndarray
    aperiodicity: np.ndarray


def speak_plain(texts: Sequence[str]) -> list[Clip]:
    """Synthesise each text with Piper, 16 kHz, without noise: equal text gives equal samples. Raises DataError: it failed."""
    voice = asset_path("piper_voice")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "lines.txt")
        script.write_text("\n".join(texts) + "\n", encoding="utf-8")
        # -P: a file piper.py in the current folder is not Piper.
        command = [sys.executable, "-P", "-m", "paras2s.audio.one_thread", "piper"]
        command += ["-m", str(voice), "-i", str(script), "-d", folder]
        command += ["--noise-scale", "0", "--noise-w-scale", "0", "--sentence-silence", "0"]
        done = subprocess.run(command, capture_output=True, text=True)
        # Piper names files by nanosecond, so their order is the order of the lines.
        paths = sorted(Path(folder).glob("*.wav"), key=lambda path: int(re.sub(r"\D", "", path.stem) or 0))
        if done.returncode or len(paths) != len(texts):
            tail = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise DataError(f"Piper wrote {len(paths)} of {len(texts)} clips ({tail[0]}); run `paras2s doctor`")
        return [_trim(read_clip(path, RATE_HZ)) for path in paths]


def _trim(clip: Clip, floor: float = 0.01, margin_s: float = 0.04) -> Clip:
    loud = np.flatnonzero(np.abs(clip.samples) > floor)
    margin = int(margin_s * clip.sample_rate_hz)
    start, stop = max(0, loud[0] - margin), min(len(clip.samples), loud[-1] + margin)
    return Clip(clip.samples[start:stop].copy(), clip.sample_rate_hz)


def analyse(clip: Clip) -> Voice:
    """Compute the WORLD parameters of a 16 kHz clip: F0 by SwiftF0, envelope by CheapTrick, aperiodicity by D4C."""
    import pyworld

    samples = clip.samples.astype(np.float64)
    times_s = np.arange(int(len(samples) / clip.sample_rate_hz / (FRAME_MS / 1000)) + 1) * FRAME_MS / 1000
    f0_hz = track_pitch(clip).at(times_s).astype(np.float64)
    envelope = pyworld.cheaptrick(samples, f0_hz, times_s, clip.sample_rate_hz)
    aperiodicity = pyworld.d4c(samples, f0_hz, times_s, clip.sample_rate_hz)
    return Voice(f0_hz, envelope, aperiodicity)


def synthesise(voice: Voice, speaker: Speaker, style: Style, seed: int = 0) -> Clip:
    """Resynthesise an utterance as `speaker` in `style`, 16 kHz; a small seeded variation makes takes differ."""
    import pyworld

    variation = 1.0 + np.random.default_rng(seed).uniform(-0.03, 0.03, size=4)
    count = max(4, round(len(voice.f0_hz) / (style.rate * variation[0])))
    source = np.linspace(0, len(voice.f0_hz) - 1, count)
    nearest = np.rint(source).astype(int)
    f0_hz = voice.f0_hz[nearest]
    voiced = f0_hz > 0
    if voiced.any():
        mean = np.exp(np.log(f0_hz[voiced]).mean())
        level = mean * style.f0_level * speaker.f0_factor * variation[1]
        swing = 1 + style.tremor_depth * np.sin(2 * np.pi * 6.0 * np.arange(count) * FRAME_MS / 1000)
        f0_hz = np.where(voiced, level * (np.where(voiced, f0_hz, mean) / mean) ** (style.f0_range * variation[2]) * swing, 0)
        f0_hz = np.where(voiced, np.clip(f0_hz, 60.0, 580.0), 0.0)
    bins = voice.envelope.shape[1]
    axis_hz = np.linspace(0, RATE_HZ / 2, bins)
    warped = np.clip(np.arange(bins) / speaker.formant_warp, 0, bins - 1)
    low = np.floor(warped).astype(int)
    high, part = np.minimum(low + 1, bins - 1), warped - np.floor(warped)
    envelope = voice.envelope[nearest][:, low] * (1 - part) + voice.envelope[nearest][:, high] * part
    octaves = np.log2(np.maximum(axis_hz, 125.0) / 1000.0)
    envelope = envelope * 10 ** (style.tilt_db_octave * octaves / 10)
    aperiodicity = np.clip(voice.aperiodicity[nearest], 0, 1)
    aperiodicity = aperiodicity + (1 - aperiodicity) * style.breath
    samples = pyworld.synthesize(
        np.ascontiguousarray(f0_hz), np.ascontiguousarray(envelope), np.ascontiguousarray(aperiodicity), RATE_HZ, FRAME_MS
    )
    loudness = np.sqrt(np.mean(samples**2)) + 1e-9
    # One reference level for every speaker, then the style's gain: loudness depends on the style, not on the sentence.
    samples = samples * (0.06 * style.gain * variation[3] / loudness)
    return Clip(np.clip(samples, -0.99, 0.99).astype(np.float32), RATE_HZ)
