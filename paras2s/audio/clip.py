"""Audio clips: decoding (any format of libsndfile, to mono float32) and encoding. Nothing else in the package decodes audio."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from paras2s.errors import AudioError
from paras2s.utils.io import reading, write_bytes
from paras2s.utils.suggest import nearest_file

MIN_DURATION_S = 0.05
MAX_DURATION_S = 120.0
# Ten minutes of stereo at 48 kHz. A FLAC of megabytes may hold gigabytes of samples.
MAX_SAMPLES = 600 * 48_000 * 2
# 20 dB over full scale: floats beyond it are on another scale, such as that of 16-bit integers, or no audio at all.
MAX_PEAK = 10.0
# Channels whose mean has less than this share of their power cancel each other.
MIN_POWER_LEFT = 0.01
# Files whose sound has to be taken out first.
CONTAINERS = (".mp4", ".m4a", ".mkv", ".mov", ".webm", ".avi", ".aac", ".wma", ".amr", ".3gp")
# What streams write for a size that they do not know yet: all ones, or the largest signed number less a header.
UNKNOWN_SIZE = 0x7FFF_0000
# libsndfile's word on a file (AIFF, W64, RF64, AU) that ends before its header says, by its sizes in bytes.
LACKING = re.compile(r"(?:FORM|riff|Riff size|Data Size)\s*: (\d+) \(should be (\d+)\)")


@dataclass(frozen=True)
class Clip:
    """Mono audio. `samples` is float32 [n], finite; `sample_rate_hz` its rate.

    `channels` [n, channels] are those of a file with several; `samples` is made of them: loudness is the sum over them.
    """

    samples: np.ndarray
    sample_rate_hz: int
    channels: np.ndarray | None = None

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

    @property
    def channels_digest(self) -> str:
        """SHA-256 of the channels; "" for a single channel."""
        return "" if self.channels is None else hashlib.sha256(self.channels.tobytes()).hexdigest()

    def _repr_html_(self) -> str:
        """Return a player, which a notebook shows."""
        sound = base64.b64encode(encode_clip(self)).decode()
        return f'<audio controls src="data:audio/wav;base64,{sound}"></audio>'

    def at(self, sample_rate_hz: int) -> Clip:
        """Return the clip resampled to another rate (soxr, high quality), without its channels."""
        if sample_rate_hz == self.sample_rate_hz:
            return self
        import soxr

        resampled = soxr.resample(self.samples, self.sample_rate_hz, sample_rate_hz)
        return Clip(np.ascontiguousarray(resampled, dtype=np.float32), sample_rate_hz)


def make_clip(samples: np.ndarray, sample_rate_hz: int, name: str = "clip", max_duration_s: float = MAX_DURATION_S) -> Clip:
    """Make a clip of samples [n] or [n, channels]; channels that are not silent are averaged.

    Channels that cancel each other (one is the other upside down) are not averaged: the loudest of them is taken.

    Raises:
        AudioError: empty, too short, too long, not finite, or far over full scale.
    """
    array = np.asarray(samples, dtype=np.float32)
    if array.ndim not in (1, 2):
        raise AudioError(f"{name}: expected samples [n] or [n, channels], got shape {array.shape}")
    duration_s = len(array) / sample_rate_hz
    if duration_s < MIN_DURATION_S:
        raise AudioError(f"{name}: {len(array)} samples ({duration_s:.3f} s) is too short; give at least {MIN_DURATION_S} s")
    if duration_s > max_duration_s:
        raise _too_long(name, duration_s, max_duration_s)
    if broken := broken_samples(array):
        raise AudioError(f"{name}: {broken}")
    if array.ndim == 1:
        return Clip(np.ascontiguousarray(array), sample_rate_hz)
    channels = np.ascontiguousarray(array) if array.shape[1] > 1 else None
    return Clip(np.ascontiguousarray(_mixed(array)), sample_rate_hz, channels)


def broken_samples(samples: np.ndarray) -> str | None:
    """Say why samples cannot be sound; None if they can."""
    if not np.isfinite(samples).all():
        return "holds NaN or infinite samples; export the clip again"
    peak = float(np.abs(samples).max(initial=0.0))
    return f"samples reach {peak:.3g}, where 1 is full scale; scale them to -1 to 1" if peak > MAX_PEAK else None


def _mixed(channels: np.ndarray) -> np.ndarray:
    """Mix channels [n, channels] down to one [n]."""
    # A silent channel would halve the level of the other one.
    powers = np.square(channels, dtype=np.float32).mean(axis=0)
    active = np.any(channels != 0, axis=0)
    if not active.any():
        return channels[:, 0]
    mean = channels[:, active].mean(axis=1)
    cancelled = float(np.square(mean).mean()) < MIN_POWER_LEFT * float(powers[active].mean())
    return channels[:, int(powers.argmax())] if cancelled else mean


def _too_long(name: str, duration_s: float, max_duration_s: float) -> AudioError:
    return AudioError(f"{name}: {duration_s:.0f} s is too long; cut it to at most {max_duration_s:.0f} s")


@dataclass(frozen=True)
class _WavSizes:
    """Sizes of a WAV's samples: by the header (with its offset), actual bytes, and bytes a second."""

    offset: int
    stated: int
    actual: int
    bytes_per_s: int

    @property
    def is_unknown(self) -> bool:
        """Whether the header was written before the size was known."""
        return (self.stated == 0 and self.actual > 0) or (self.stated > self.actual and self.stated >= UNKNOWN_SIZE)


def _wav_sizes(file: BinaryIO, length: int) -> _WavSizes | None:
    """Return the sizes in the header of a WAV of `length` bytes; None if it is no WAV."""
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    bytes_per_s = 0
    for offset, name, size in _chunks(file, 12, length):
        if name == b"fmt ":
            file.seek(offset + 16)
            bytes_per_s = int.from_bytes(file.read(4), "little")
        if name == b"data":
            # No samples, and then what belongs to another chunk: titles are not sound.
            empty = size == 0 and _reach(file, offset + 8, length) == length
            return _WavSizes(offset + 4, size, 0 if empty else length - offset - 8, bytes_per_s)
    return None


def _chunks(file: BinaryIO, start: int, length: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield offset, name and size of every chunk from `start` to the first without a chunk's name; contents are not read."""
    while start + 8 <= length:
        file.seek(start)
        name, size = struct.unpack("<4sI", file.read(8))
        # Samples are no chunks: silence would be walked over eight bytes at a time.
        if not all(32 <= byte < 127 for byte in name):
            return
        yield start, name, size
        start += 8 + size + size % 2


def _reach(file: BinaryIO, start: int, length: int) -> int:
    """Return the offset where the chunks from `start` on end: the file's size, if they are chunks and complete."""
    end = start
    for offset, _, size in _chunks(file, start, length):
        end = offset + 8 + size + size % 2
    return end


def mend_wav(data: bytes) -> bytes:
    """Fix the sizes in a WAV header that was written before the length was known (all ones, or 0)."""
    sizes = _wav_sizes(io.BytesIO(data), len(data))
    if sizes is None or not sizes.actual or 0 < sizes.stated <= sizes.actual:
        return data
    file, samples = struct.pack("<I", len(data) - 8), struct.pack("<I", sizes.actual)
    return data[:4] + file + data[8 : sizes.offset] + samples + data[sizes.offset + 4 :]


def _checked_source(source: Path | str | bytes, name: str, max_duration_s: float) -> bytes | io.BytesIO:
    """Return the path, encoded, or bytes for libsndfile, a WAV's header fixed. Raises AudioError: no file, or it is cut off."""
    if isinstance(source, bytes):
        sizes = _wav_sizes(io.BytesIO(source), len(source))
    else:
        path = Path(source)
        # Of `os.path`, since a path's own methods raise for a name that no file can have: a NUL in it, or too long.
        if not os.path.isfile(path):
            kind = "a folder" if os.path.isdir(path) else "not a regular file" if os.path.exists(path) else None
            raise AudioError(f"{name}: {kind}; give an audio file" if kind else f"{name}: no such file{nearest_file(path)}")
        with reading(name, kind=AudioError), path.open("rb") as file:
            sizes = _wav_sizes(file, path.stat().st_size)
    if sizes is None or not sizes.bytes_per_s:
        return io.BytesIO(source) if isinstance(source, bytes) else os.fsencode(source)
    if sizes.is_unknown and sizes.actual / sizes.bytes_per_s > max_duration_s:
        raise _too_long(name, sizes.actual / sizes.bytes_per_s, max_duration_s)
    if not sizes.is_unknown:
        _refuse_cut(name, sizes.stated / sizes.bytes_per_s, sizes.actual / sizes.bytes_per_s)
    if isinstance(source, bytes):
        return io.BytesIO(mend_wav(source))
    return io.BytesIO(mend_wav(path.read_bytes())) if sizes.is_unknown else os.fsencode(path)


def _refuse_cut(name: str, stated_s: float, actual_s: float) -> None:
    """Refuse a file cut off by its header's length. Raises AudioError: a twentieth of a second or more is missing."""
    if stated_s - actual_s >= MIN_DURATION_S and actual_s >= MIN_DURATION_S:
        raise AudioError(
            f"{name}: cut off: its header says {stated_s:.2f} s, the file has {actual_s:.2f} s; copy or export it again"
        )


def read_clip(
    source: Path | str | bytes,
    sample_rate_hz: int | None = None,
    max_duration_s: float = MAX_DURATION_S,
    name: str = "clip of bytes",
) -> Clip:
    """Decode a file or its bytes, any number of channels, any rate; optionally resample it. Errors say `name` of bytes.

    Raises:
        AudioError: missing, not audio, cut off, over 57.6 million samples, or refused by `make_clip`.
    """
    import soundfile

    name = name if isinstance(source, bytes) else str(source)
    handle = _checked_source(source, name, max_duration_s)
    with (
        reading(name, "cannot be decoded as audio", f"; give WAV, FLAC, OGG or MP3{_from_video(name)}", AudioError),
        soundfile.SoundFile(handle) as file,
    ):
        rate_hz, stated = file.samplerate, file.frames
        if rate_hz > 0 and (lacking := LACKING.search(file.extra_info)) is not None:
            expected, decoded = int(lacking[1]), int(lacking[2])
            if 0 < decoded < expected < UNKNOWN_SIZE:
                _refuse_cut(name, stated / rate_hz * expected / decoded, stated / rate_hz)
        # Hours of audio, and many channels, are refused by their header, before any of it is in memory.
        if rate_hz > 0 and stated / rate_hz > max_duration_s:
            raise _too_long(name, stated / rate_hz, max_duration_s)
        if stated * file.channels > MAX_SAMPLES:
            raise AudioError(
                f"{name}: {file.channels} channels of {stated / rate_hz:.0f} s at {rate_hz} Hz are too much to decode; "
                "give one or two channels at up to 48 kHz"
            )
        # All at once is no option for telephone formats (GSM, G.721) and XI, which cannot be searched.
        samples = file.read(-1 if file.seekable() else stated, dtype="float32", always_2d=True)
    if rate_hz <= 0:
        raise AudioError(f"{name}: the header gives a sample rate of {rate_hz}")
    _refuse_cut(name, stated / rate_hz, len(samples) / rate_hz)
    clip = make_clip(samples, int(rate_hz), name, max_duration_s)
    return clip if sample_rate_hz is None else clip.at(sample_rate_hz)


def _from_video(name: str) -> str:
    """Return how to get the sound of a video, or of a format that libsndfile does not read."""
    suffix = Path(name).suffix.lower()
    return f" (ffmpeg -i {name} {Path(name).stem}.wav)" if suffix in CONTAINERS else ""


BLOCK_SAMPLES = 65_536


def encode_clip(clip: Clip, format: str = "WAV") -> bytes:
    """Encode a clip as 16-bit WAV or FLAC, MP3, OGG (Vorbis) or OPUS (in Ogg). Peaks over 1 are scaled down, never wrapped.

    Opus takes the rates 8, 12, 16, 24 and 48 kHz and no others.
    """
    import soundfile

    peak = float(np.abs(clip.samples).max(initial=0.0))
    samples = clip.samples / peak if peak > 1.0 else clip.samples
    buffer = io.BytesIO()
    subtype = {"OGG": "VORBIS", "OPUS": "OPUS", "MP3": "MPEG_LAYER_III"}.get(format, "PCM_16")
    container = "OGG" if format == "OPUS" else format
    with soundfile.SoundFile(buffer, "w", clip.sample_rate_hz, 1, subtype, format=container) as file:
        # In blocks: libsndfile's Vorbis encoder crashes the process where it gets more than about a minute at once.
        for start in range(0, len(samples), BLOCK_SAMPLES):
            file.write(samples[start : start + BLOCK_SAMPLES])
    return buffer.getvalue()


def encode_exactly(clip: Clip) -> bytes:
    """Encode a clip as WAV of 32-bit floats, its channels as well: `read_clip` returns the same samples to the bit."""
    import soundfile

    buffer = io.BytesIO()
    samples = clip.samples if clip.channels is None else clip.channels
    soundfile.write(buffer, samples, clip.sample_rate_hz, subtype="FLOAT", format="WAV")
    return buffer.getvalue()


def write_clip(path: Path, clip: Clip) -> None:
    """Write a 16-bit WAV, atomically."""
    write_bytes(path, encode_clip(clip))


def read_written_clip(path: Path) -> Clip:
    """Read what `write_clip` wrote, however short. Raises AudioError: the file is missing, cut off, or another kind."""
    import soundfile

    with reading(path, "cannot be read", "; delete it and run again", AudioError):
        samples, rate_hz = soundfile.read(os.fsencode(path), dtype="float32")
    return Clip(samples, int(rate_hz))
