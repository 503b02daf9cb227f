"""Audio clips: decoding (any format of libsndfile, to mono float32) and encoding. Nothing else in the package decodes audio."""

from __future__ import annotations

import hashlib
import io
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paras2s.errors import AudioError
from paras2s.utils.io import write_bytes

MIN_DURATION_S = 0.05
MAX_DURATION_S = 120.0


@dataclass(frozen=True)
class Clip:
    """Mono audio. `samples` is float32 [n], finite; `sample_rate_hz` its rate."""

    samples: np.ndarray
    sample_rate_hz: int

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate_hz

    @property
    def digest(self) -> str:
        """SHA-256 of samples and sample rate: equal digests mean equal clips."""
        return hashlib.sha256(self.samples.tobytes() + str(self.sample_rate_hz).encode()).hexdigest()

    @property
    def samples_digest(self) -> str:
        """SHA-256 of the samples alone, for stored keys that hold the sample rate beside it."""
        return hashlib.sha256(self.samples.tobytes()).hexdigest()

    def at(self, sample_rate_hz: int) -> Clip:
        """Returns the clip resampled to another rate (soxr, high quality)."""
        if sample_rate_hz == self.sample_rate_hz:
            return self
        import soxr

        resampled = soxr.resample(self.samples, self.sample_rate_hz, sample_rate_hz)
        return Clip(np.ascontiguousarray(resampled, dtype=np.float32), sample_rate_hz)


def make_clip(samples: np.ndarray, sample_rate_hz: int, name: str = "clip", max_duration_s: float = MAX_DURATION_S) -> Clip:
    """Makes a clip of samples [n] or [n, channels]; channels that are not silent are averaged.

    Raises:
        AudioError: empty, too short, too long, or not finite.
    """
    array = np.asarray(samples, dtype=np.float32)
    if array.ndim == 2:
        # A silent channel would halve the level of the other one.
        active = np.any(array != 0, axis=0)
        array = array[:, active].mean(axis=1) if active.any() else array[:, :1].mean(axis=1)
    if array.ndim != 1:
        raise AudioError(f"{name}: expected samples [n] or [n, channels], got shape {array.shape}")
    duration_s = len(array) / sample_rate_hz
    if duration_s < MIN_DURATION_S:
        raise AudioError(f"{name}: {len(array)} samples ({duration_s:.3f} s) is too short; give at least {MIN_DURATION_S} s")
    if duration_s > max_duration_s:
        raise _too_long(name, duration_s, max_duration_s)
    if not np.isfinite(array).all():
        raise AudioError(f"{name}: holds NaN or infinite samples; export the clip again")
    return Clip(np.ascontiguousarray(array), sample_rate_hz)


def _too_long(name: str, duration_s: float, max_duration_s: float) -> AudioError:
    return AudioError(f"{name}: {duration_s:.0f} s is too long; cut it to at most {max_duration_s:.0f} s")


def mend_wav(data: bytes) -> bytes:
    """Corrects the sizes in a WAV header that was written before its length was known (all ones, or 0)."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return data
    place = 12
    while place + 8 <= len(data):
        name, size = data[place : place + 4], struct.unpack("<I", data[place + 4 : place + 8])[0]
        there = len(data) - place - 8
        if name == b"data" and (size > there or (size == 0 and there)):
            sizes = struct.pack("<I", len(data) - 8), struct.pack("<I", there)
            return data[:4] + sizes[0] + data[8 : place + 4] + sizes[1] + data[place + 8 :]
        place += 8 + size + size % 2
    return data


def read_clip(source: Path | str | bytes, sample_rate_hz: int | None = None, max_duration_s: float = MAX_DURATION_S) -> Clip:
    """Decodes a file or its bytes, any number of channels, any rate; optionally resamples.

    Raises:
        AudioError: missing, not audio, truncated before the first sample, or refused by `make_clip`.
    """
    import soundfile

    name = "clip of bytes" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise AudioError(f"{name}: no such file; check the path")
    try:
        handle = io.BytesIO(mend_wav(source)) if isinstance(source, bytes) else str(source)
        with soundfile.SoundFile(handle) as file:
            rate_hz = file.samplerate
            # Hours of audio are refused by their header, before any of it is in memory.
            if rate_hz > 0 and file.frames / rate_hz > max_duration_s:
                raise _too_long(name, file.frames / rate_hz, max_duration_s)
            samples = file.read(dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, EOFError) as error:
        raise AudioError(f"{name}: cannot be decoded as audio ({error}); give WAV, FLAC, OGG or MP3") from error
    if rate_hz <= 0:
        raise AudioError(f"{name}: the header gives a sample rate of {rate_hz}")
    clip = make_clip(samples, int(rate_hz), name, max_duration_s)
    return clip if sample_rate_hz is None else clip.at(sample_rate_hz)


BLOCK_SAMPLES = 65_536


def encode_clip(clip: Clip, format: str = "WAV") -> bytes:
    """Encodes a clip as 16-bit WAV or FLAC, MP3, or OGG (Vorbis). Peaks over 1 are scaled down, never wrapped."""
    import soundfile

    peak = float(np.abs(clip.samples).max(initial=0.0))
    samples = clip.samples / peak if peak > 1.0 else clip.samples
    buffer = io.BytesIO()
    subtype = {"OGG": "VORBIS", "MP3": "MPEG_LAYER_III"}.get(format, "PCM_16")
    with soundfile.SoundFile(buffer, "w", clip.sample_rate_hz, 1, subtype, format=format) as file:
        # In blocks: libsndfile's Vorbis encoder crashes the process where it gets more than about a minute at once.
        for start in range(0, len(samples), BLOCK_SAMPLES):
            file.write(samples[start : start + BLOCK_SAMPLES])
    return buffer.getvalue()


def write_clip(path: Path, clip: Clip) -> None:
    """Writes a 16-bit WAV, atomically."""
    write_bytes(path, encode_clip(clip))
