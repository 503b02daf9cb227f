"""Clips joined into one recording, each announced by a signal, so that a judge can tell them apart by ear (AudioJudge, 3.2).

Signals are rendered by this project: spoken words, or tones. Where each segment lies is kept beside the sound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.utils.io import write_bytes

Boundary = Literal["instruction", "first", "second", "clip", "example", "test"]
Speak = Callable[[Sequence[str]], list[Clip]]

# What a voice says at each boundary; an example's number follows its word.
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
# Changes with the words, the beeps or the voice that a judge hears between clips.
SIGNALS_VERSION = "1"


@dataclass(frozen=True)
class Mark:
    """A segment of a joined clip: what it is ("first", "signal:first") and where, in seconds."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Joined:
    """One clip and the segments in it, in order; between them is silence."""

    clip: Clip
    marks: tuple[Mark, ...]


class Signals(Protocol):
    """Renders the sound that announces a segment."""

    def render(self, boundary: Boundary, number: int | None) -> Clip | None:
        """The signal, or None for no signal at all. `number` is an example's, from 1."""


class NoSignals:
    """Silence alone parts the segments."""

    def render(self, boundary: Boundary, number: int | None) -> Clip | None:
        """None."""
        return None


class ToneSignals:
    """Beeps, by the pitches of `BEEPS_HZ`. An example's number is not told by them."""

    def __init__(self, sample_rate_hz: int) -> None:
        self.sample_rate_hz = sample_rate_hz

    def render(self, boundary: Boundary, number: int | None) -> Clip | None:
        """Sine beeps with faded edges."""
        rate_hz = self.sample_rate_hz
        time_s = np.arange(round(BEEP_S * rate_hz)) / rate_hz
        edge = np.clip(np.minimum(time_s, BEEP_S - time_s) / BEEP_FADE_S, 0.0, 1.0)
        gap = np.zeros(round(BEEP_GAP_S * rate_hz))
        parts: list[np.ndarray] = []
        for pitch_hz in BEEPS_HZ[boundary]:
            parts += [*([gap] if parts else []), BEEP_PEAK * edge * np.sin(2 * np.pi * pitch_hz * time_s)]
        return Clip(np.concatenate(parts).astype(np.float32), rate_hz)


class SpokenSignals:
    """A voice that says what comes, kept under `folder` by its words: they are few, and starting a voice takes seconds."""

    def __init__(self, speak: Speak, folder: Path) -> None:
        self._speak, self._folder = speak, folder
        self._known: dict[str, Clip] = {}

    def render(self, boundary: Boundary, number: int | None) -> Clip | None:
        """The spoken words, spoken only if nobody asked for them before."""
        text = WORDS[boundary] if number is None else f"{WORDS[boundary]} {number}."
        if text not in self._known:
            name = hashlib.sha256(f"{SIGNALS_VERSION}\0{text}".encode()).hexdigest()[:16]
            path = self._folder / f"{name}.wav"
            if not path.is_file():
                write_bytes(path, encode_clip(self._speak([text])[0]))
            self._known[text] = read_clip(path)
        return self._known[text]


@dataclass(frozen=True)
class Segment:
    """A clip to be joined, and what announces it."""

    boundary: Boundary
    clip: Clip | None = None
    number: int | None = None

    @property
    def name(self) -> str:
        """As marks call it."""
        return self.boundary if self.number is None else f"{self.boundary} {self.number}"


def join(segments: Iterable[Segment], signals: Signals, silence_s: float, sample_rate_hz: int) -> Joined:
    """All segments one after the other, each after its signal, with silence between any two sounds.

    A segment without a clip is a signal alone, such as an example's number.
    """
    sounds: list[tuple[str, Clip]] = []
    for segment in segments:
        signal = signals.render(segment.boundary, segment.number)
        if signal is not None:
            sounds.append((f"signal:{segment.name}", signal))
        if segment.clip is not None:
            sounds.append((segment.name, segment.clip))
    parts: list[np.ndarray] = []
    marks: list[Mark] = []
    place = 0
    silence = np.zeros(round(silence_s * sample_rate_hz), dtype=np.float32)
    for name, clip in sounds:
        if parts:
            parts.append(silence)
            place += len(silence)
        samples = clip.at(sample_rate_hz).samples
        parts.append(samples)
        marks.append(Mark(name, place / sample_rate_hz, (place + len(samples)) / sample_rate_hz))
        place += len(samples)
    return Joined(Clip(np.concatenate(parts), sample_rate_hz), tuple(marks))
