"""The second stream of `SpokenLmPolicy`: how a phrase is said, as five codes that the vocoder obeys.

A phrase is read by Piper and spoken again with the level, range, rate, loudness and tilt of its codes. So every answer can
be understood, whatever its codes are, and a code says one thing about the voice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.audio.prosody import BANDS, UTTERANCE_NAMES, band_centres_hz, describe
from paras2s.audio.synthesis import RATE_HZ, Speaker, Style, analyse, speak_plain, synthesise

# The values of each code: those of the agent's tones in the demo's world are among them or near.
LEVELS: dict[str, tuple[float, ...]] = {
    "f0_level": (0.78, 0.88, 1.0, 1.18, 1.38, 1.6),
    "f0_range": (0.5, 0.8, 1.0, 1.4, 1.9),
    "rate": (0.74, 0.86, 1.0, 1.14),
    "gain": (0.6, 0.8, 1.0, 1.25),
    "tilt_db_octave": (-2.0, 0.0, 2.0),
}
SIZES = tuple(map(len, LEVELS.values()))
NEUTRAL = tuple(values.index(0.0 if name == "tilt_db_octave" else 1.0) for name, values in LEVELS.items())
VERSION = "piper-world-5/1"
VOICE = Speaker("policy", 1.0, 1.0)
PAUSE_S = 0.06
# A phrase: its words, and its codes [5].
Phrase: TypeAlias = tuple[str, tuple[int, ...]]
# Plain readings kept: the answers of a group share many phrases.
KEPT_READINGS = 512


def style_of(codes: Sequence[int]) -> Style:
    """Return the delivery that the codes [5] of a phrase stand for."""
    return Style(**{name: values[code] for (name, values), code in zip(LEVELS.items(), codes, strict=True)})


def codes_of(style: Style) -> tuple[int, ...]:
    """Return the codes [5] nearest to a delivery."""
    return tuple(_nearest(values, getattr(style, name), name != "tilt_db_octave") for name, values in LEVELS.items())


def measure_style(clip: Clip, plain: Clip) -> Style:
    """Measure how a clip is said, against a plain reading of the same words. Raises AudioError: silence.

    Words differ in pitch, speed and spectrum: against means over other sentences, one neutral reading in three is neutral.
    """
    (level, spread, rms, tilt), (plain_level, plain_spread, plain_rms, plain_tilt) = map(_measured, (clip, plain))
    return Style(
        f0_level=level / plain_level,
        f0_range=spread / plain_spread,
        rate=plain.duration_s / clip.duration_s,
        gain=rms / plain_rms,
        tilt_db_octave=tilt - plain_tilt,
    )


def _measured(clip: Clip) -> tuple[float, float, float, float]:
    """Return a clip's F0 in Hz, the spread of its logarithm, the root mean square, and the slope of its bands."""
    utterance = dict(zip(UTTERANCE_NAMES, describe(clip)[1].tolist(), strict=True))
    octaves = np.log2(np.maximum(band_centres_hz(), 125.0) / 1000.0)
    bands = [utterance[f"band{number}_mean_db"] for number in range(BANDS)]
    rms = float(np.sqrt(np.mean(clip.samples.astype(np.float64) ** 2)))
    return float(np.exp(utterance["f0_mean_log"])), utterance["f0_std_log"], rms, float(np.polyfit(octaves, bands, 1)[0])


def _nearest(values: Sequence[float], measured: float, ratio: bool) -> int:
    """Return the index of the nearest value: factors are compared as ratios, decibels as differences."""
    if ratio:
        return int(np.abs(np.log(np.maximum(measured, 1e-3) / np.array(values))).argmin())
    return int(np.abs(measured - np.array(values)).argmin())


class Narrator:
    """Speaks phrases as their codes say. Plain readings are kept: Piper is a program of its own that takes seconds to start."""

    def __init__(self) -> None:
        self._readings: dict[str, Clip] = {}

    def speak(self, answers: Sequence[Sequence[Phrase]], seeds: Sequence[int]) -> list[Clip]:
        """Return the sound of answers, each given as its phrases; empty for an answer without a phrase.

        Raises:
            DataError: Piper failed.
        """
        missing = list(dict.fromkeys(text for phrases in answers for text, _ in phrases if text not in self._readings))
        readings = self._readings | dict(zip(missing, speak_plain(missing) if missing else [], strict=True))
        pause = np.zeros(round(PAUSE_S * RATE_HZ), dtype=np.float32)
        # Pauses, and behind each its phrase. A phrase that several answers share is analysed once, which takes longest.
        parts = [[pause] * (2 * len(phrases)) for phrases in answers]
        takes: dict[str, list[tuple[int, int]]] = {}
        for answer, phrases in enumerate(answers):
            for number, (text, _) in enumerate(phrases):
                takes.setdefault(text, []).append((answer, number))
        for text, where in takes.items():
            voice = analyse(readings[text])
            for answer, number in where:
                style = style_of(answers[answer][number][1])
                parts[answer][2 * number + 1] = synthesise(voice, VOICE, style, seeds[answer]).samples
        self._readings = dict(list(readings.items())[-KEPT_READINGS:])
        return [Clip(np.concatenate([pause[:0], *spoken[1:]]), RATE_HZ) for spoken in parts]


def sayable(text: str) -> str:
    """Return what Piper can read of a phrase, on one line: printable ASCII; nothing where no letter or digit is among it."""
    line = " ".join("".join(letter if letter.isascii() and letter.isprintable() else " " for letter in text).split())
    return line if any(letter.isalnum() for letter in line) else ""
