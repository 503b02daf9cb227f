"""Concatenates clips into one recording, each after a signal, so that an audio model can tell them apart (AudioJudge, 3.2).

This project renders the signals: spoken words, or tones. The position of each segment is recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.errors import ConfigError
from paras2s.utils.io import write_bytes

Boundary = Literal["instruction", "first", "second", "clip", "example", "test"]
Speak = Callable[[Sequence[str]], list[Clip]]

# The spoken signal of each boundary; an example's number follows its word.
WORDS: dict[Boundary, str] = {
    "instruction": "Instruction.",
    "first": "First audio.",
    "second": "Second audio.",
    "clip": "Audio.",
    "example": "Example",
    "test": "Test.",
}
# Pitches of the beeps in their place: one or two high ones count the answers, a low one is the instruction, rising and falling
# ones open an example and the test.
BEEPS_HZ: dict[Boundary, tuple[float, ...]] = {
    "instruction": (440.0,),
    "first": (880.0,),
    "second": (880.0, 880.0),
    "clip": (880.0,),
    "example": (523.25, 659.25, 783.99),
    "test": (783.99, 659.25, 523.25),
}
BEEP_S, BEEP_GAP_S, BEEP_FADE_S, BEEP_PEAK = 0.15, 0.08, 0.01, 0.2
# Changes with the words, the beeps or the voice of the signals.
SIGNALS_VERSION = "1"


@dataclass(frozen=True)
class Mark:
    """A segment of a joined clip: its name ("first", "signal:first") and its position in seconds."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Joined:
    """A concatenated clip and its segments, in order, with silence between them."""

    clip: Clip
    marks: tuple[Mark, ...]


class Signals(Protocol):
    """Renders the sound that announces a segment."""

    def render(self, boundary: Boundary, number: int | None) -> Clip | None:
        """Return the signal, or None for silence alone. `number` is the number of an example, from 1."""


class NoSignals:
    """Renders no signals; silence alone separates the segments."""

    def render(self, boundary: Boundary, number: int | None) -> Clip | None:
        """Return None."""
        return None


class ToneSignals:
    """Renders beeps at the pitches of `BEEPS_HZ`; they do not give an example's number."""

    def __init__(self, sample_rate_hz: int) -> None:
        self.sample_rate_hz = sample_rate_hz

    def render(self, boundary: Boundary, number: int | None) -> Clip | None:
        """Return sine beeps with faded edges."""
        rate_hz = self.sample_rate_hz
        time_s = np.arange(round(BEEP_S * rate_hz)) / rate_hz
        edge = np.clip(np.minimum(time_s, BEEP_S - time_s) / BEEP_FADE_S, 0.0, 1.0)
        gap = np.zeros(round(BEEP_GAP_S * rate_hz))
        parts: list[np.ndarray] = []
        for pitch_hz in BEEPS_HZ[boundary]:
            parts += [*([gap] if parts else []), BEEP_PEAK * edge * np.sin(2 * np.pi * pitch_hz * time_s)]
        return Clip(np.concatenate(parts).astype(np.float32), rate_hz)


class SpokenSignals:
    """Renders spoken words. They are few and starting a voice takes seconds, so each is cached in `folder`."""

    def __init__(self, speak: Speak, folder: Path) -> None:
        self._speak, self._folder = speak, folder
        self._known: dict[str, Clip] = {}

    def render(self, boundary: Boundary, number: int | None) -> Clip | None:
        """Return the spoken words, from the cache if they are in it."""
        text = WORDS[boundary] if number is None else f"{WORDS[boundary]} {number}."
        if text not in self._known:
            name = hashlib.sha256(f"{SIGNALS_VERSION}\0{text}".encode()).hexdigest()[:16]
            path = self._folder / f"{name}.wav"
            if not path.is_file():
                write_bytes(path, encode_clip(self._speak([text])[0]))
            self._known[text] = read_clip(path)
        return self._known[text]


def make_signals(kind: Literal["spoken", "tone", "none"], sample_rate_hz: int, cache_dir: Path, voice: Speak | None) -> Signals:
    """Return the signals of this kind. Raises ConfigError: spoken signals without a voice."""
    if kind == "none":
        return NoSignals()
    if kind == "tone":
        return ToneSignals(sample_rate_hz)
    if voice is None:
        raise ConfigError(
            "signals: spoken ones need a voice, which a reward worker does not have; choose signals: tone, or run: "
            "pip install 'paras2s[offline]'"
        )
    return SpokenSignals(voice, cache_dir / "signals")


@dataclass(frozen=True)
class Segment:
    """A clip to be joined and its boundary; without a clip, a signal alone."""

    boundary: Boundary
    clip: Clip | None = None
    number: int | None = None

    @property
    def name(self) -> str:
        """The name used in marks."""
        return self.boundary if self.number is None else f"{self.boundary} {self.number}"


def join(segments: Iterable[Segment], signals: Signals, silence_s: float, sample_rate_hz: int) -> Joined:
    """Concatenate all segments, each after its signal, with silence between any two sounds."""
    sounds: list[tuple[str, Clip]] = []
    for segment in segments:
        signal = signals.render(segment.boundary, segment.number)
        if signal is not None:
            sounds.append((f"signal:{segment.name}", signal))
        if segment.clip is not None:
            sounds.append((segment.name, segment.clip))
    parts: list[np.ndarray] = []
    marks: list[Mark] = []
    start = 0
    silence = np.zeros(round(silence_s * sample_rate_hz), dtype=np.float32)
    for name, clip in sounds:
        if parts:
            parts.append(silence)
            start += len(silence)
        samples = clip.at(sample_rate_hz).samples
        parts.append(samples)
        marks.append(Mark(name, start / sample_rate_hz, (start + len(samples)) / sample_rate_hz))
        start += len(samples)
    return Joined(Clip(np.concatenate(parts), sample_rate_hz), tuple(marks))
