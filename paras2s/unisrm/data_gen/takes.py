"""Takes of a text with known faults, and their measurements.

Piper speaks, WORLD makes speaker and delivery, and a fault is laid on: an echo, gaps, the 700 bit/s codec, clipping, or noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import fftconvolve

from paras2s.audio.clip import Clip
from paras2s.audio.pitch import track_pitch
from paras2s.audio.synthesis import RATE_HZ, Speaker, Style, Voice, analyse, speak_plain, synthesise
from paras2s.data_gen.tts.piper_world import AGENT_TONES, SPEAKERS, USER_STYLES
from paras2s.policy.embedded.codec2 import Codec2Pairs

GAP_S = 0.18
# The decay of an echo that is just heard.
LEAST_ECHO_S = 0.1
# The longest that leaves a voice clear.
CLEAR_ECHO_S = 0.3
# A signal-to-noise ratio at which noise is not heard.
NO_NOISE_DB = 40.0
EMOTIONS = ("happy", "sad", "angry", "fear", "surprised", "disgust")
# The widest range of F0 that is called flat, and the bounds of what strikes in a delivery.
FLAT_RANGE, MUFFLED_DB_OCTAVE, FAST_RATE, SLOW_RATE = 0.25, -5.0, 1.4, 0.7
MANNERS = {USER_STYLES[name]: name for name in EMOTIONS} | {style: name for name, style in AGENT_TONES.items()}
GROUPS = {speaker: name for groups in SPEAKERS.values() for name, speakers in groups.items() for speaker in speakers}


@dataclass(frozen=True)
class Faults:
    """The faults of a take: noise (SNR), clipping by a drive in dB, gaps, the codec, an echo (`echo_s`: its fall by 60 dB)."""

    snr_db: float | None = None
    drive_db: float = 0.0
    gaps: int = 0
    coded: bool = False
    echo_s: float = 0.0


@dataclass(frozen=True)
class Take:
    """A rendering: text, speaker, style and faults."""

    text: str
    speaker: Speaker
    style: Style
    faults: Faults
    seed: int


def speak_once(texts: Sequence[str]) -> dict[str, Clip]:
    """Synthesise each text with Piper, all in one run."""
    distinct = sorted(set(texts))
    return dict(zip(distinct, speak_plain(distinct), strict=True))


def traits(take: Take) -> dict[str, float]:
    """Return what a take was made with, in numbers that grow with what one hears: octaves of pitch and pace, dB of noise."""
    speaker, style, faults = take.speaker, take.style, take.faults
    return {
        "pitch": float(np.log2(speaker.f0_factor * style.f0_level)),
        "formants": float(np.log2(speaker.formant_warp)),
        "f0_range": style.f0_range,
        "pace": float(np.log2(style.rate)),
        "level": float(np.log2(style.gain)),
        "tilt": style.tilt_db_octave,
        "tremor": style.tremor_depth,
        "breath": style.breath,
        "noise": 0.0 if faults.snr_db is None else NO_NOISE_DB - faults.snr_db,
        "drive": faults.drive_db,
        "gaps": float(faults.gaps),
        "coded": float(faults.coded),
        "echo": float(np.log2(1 + faults.echo_s / LEAST_ECHO_S)),
    }


def in_words(take: Take) -> str:
    """Say how a take sounds: its manner, or what strikes in its delivery; the kind of voice; and the state of the signal."""
    style, faults = take.style, take.faults
    delivery = {
        "fast": style.rate > FAST_RATE,
        "slow": style.rate < SLOW_RATE,
        "muffled": style.tilt_db_octave < MUFFLED_DB_OCTAVE,
        "flat": style.f0_range <= FLAT_RANGE,
    }
    signal = {
        "coded": faults.coded,
        "noisy": faults.snr_db is not None,
        "clipped": faults.drive_db > 0,
        "broken": faults.gaps > 0,
        "echoing": faults.echo_s > CLEAR_ECHO_S,
    }
    return f"{MANNERS.get(style) or _joined(delivery, 'neutral')}, {GROUPS[take.speaker]}, {_joined(signal, 'clean')}"


def _joined(marks: Mapping[str, bool], none: str) -> str:
    return " and ".join(name for name, present in marks.items() if present) or none


class Studio:
    """Renderer of takes of plainly spoken texts; each text is analysed when it is first needed."""

    def __init__(self, plain: Mapping[str, Clip]) -> None:
        self._plain = plain
        self._voices: dict[str, Voice] = {}
        self._codec = Codec2Pairs()

    def render(self, take: Take) -> Clip:
        """Render the take's clip at 16 kHz."""
        if take.text not in self._voices:
            self._voices[take.text] = analyse(self._plain[take.text])
        clip = synthesise(self._voices[take.text], take.speaker, take.style, take.seed)
        faults = take.faults
        samples = with_gaps(echoing(clip.samples, faults.echo_s, take.seed), faults.gaps, take.seed)
        if faults.coded:
            samples = self._codec.decode(self._codec.encode(Clip(samples, RATE_HZ))).at(RATE_HZ).samples
        samples = driven(samples, faults.drive_db)
        return Clip(samples if faults.snr_db is None else noisy(samples, faults.snr_db, take.seed), RATE_HZ)


def noisy(samples: np.ndarray, snr_db: float, seed: int) -> np.ndarray:
    """Add white noise below the speech, by the ratio of their powers."""
    noise = np.random.default_rng([seed, 1]).standard_normal(len(samples))
    gain = np.sqrt(np.mean(samples.astype(np.float64) ** 2) / 10 ** (snr_db / 10) / np.mean(noise**2))
    return np.asarray(samples + gain * noise, dtype=np.float32)


def echoing(samples: np.ndarray, echo_s: float, seed: int) -> np.ndarray:
    """Add an echo as strong as the speech that falls by 60 dB in `echo_s`; level and length stay."""
    if not echo_s:
        return samples
    times = np.arange(1, int(echo_s * RATE_HZ)) / RATE_HZ
    tail = np.random.default_rng([seed, 3]).standard_normal(len(times)) * 10 ** (-3 * times / echo_s)
    response = np.concatenate(([1.0], tail / np.sqrt(np.sum(tail**2))))
    echoed = fftconvolve(samples, response)[: len(samples)]
    return np.asarray(echoed * np.sqrt(np.mean(samples**2) / np.mean(echoed**2)), dtype=np.float32)


def driven(samples: np.ndarray, drive_db: float) -> np.ndarray:
    """Clip the peaks after a gain of `drive_db`, at the original level."""
    if not drive_db:
        return samples
    peak, level = np.abs(samples).max(), np.sqrt(np.mean(samples**2))
    clipped = np.clip(samples * 10 ** (drive_db / 20), -peak, peak)
    return np.asarray(clipped * level / np.sqrt(np.mean(clipped**2)), dtype=np.float32)


def with_gaps(samples: np.ndarray, gaps: int, seed: int) -> np.ndarray:
    """Put silences of 0.18 s into the speech, one in each of `gaps` equal parts."""
    gap = np.zeros(int(GAP_S * RATE_HZ), dtype=np.float32)
    places = np.random.default_rng([seed, 2]).uniform(0.2, 0.8, gaps)
    cuts = [int((number + position) / gaps * len(samples)) for number, position in enumerate(places)]
    parts = np.split(samples, cuts)
    return np.concatenate([piece for part in parts[:-1] for piece in (part, gap)] + [parts[-1]])


def f0_spread(clip: Clip) -> float:
    """Return the standard deviation of the voiced F0, in semitones; 0 without voice."""
    track = track_pitch(clip)
    voiced = track.f0_hz[track.voiced]
    return float(np.std(12 * np.log2(voiced))) if len(voiced) else 0.0
