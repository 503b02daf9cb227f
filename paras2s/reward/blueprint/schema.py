"""The blueprint's keys, units and TRACE names, and what every extractor must offer.

Keys are flat and dotted, group first; the groups are TRACE's. What differs from TRACE (Fig. 7, appendix C):

1. Beside words a minute, rates count syllables a second: a few long words are not slow speech.
2. `agent_emotion` may come from our tone classifier instead of emotion2vec, with its own labels.
3. Voicing and the level of the ending are ours; so are the confidences that some models give; a judge is shown two of them.
4. A field that could not be measured is Absent with a reason, never a number; so is a rate where hardly a voice is heard.
5. A contour's points are means over 20 equal stretches of time; the authors take 20 points of the list of frames that passed.
6. Pitch is not cut to 80 to 300 Hz.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.errors import AssetError, AudioError, one_line
from paras2s.types import Absent, Blueprint, Measured

CONTOUR_POINTS = 20
CONTOUR_STEPS = 40
SILENCE_PEAK = 1e-3
RESPONSE = "agent_response"
EMOTION = "agent_emotion"
ACCENT = "agent_accent"
# Behind the name of a field in a prompt.
CONFIDENCE = "_confidence"

Fields = dict[str, Measured | Absent]


@dataclass(frozen=True)
class Field:
    """Unit of a key's value, the name TRACE's judge prompt gives it within its group, and whether its confidence is shown."""

    unit: str | None
    trace_name: str
    shows_confidence: bool = False


FIELDS: dict[str, Field] = {
    RESPONSE: Field(None, RESPONSE, shows_confidence=True),
    "agent_audio_quality.dnsmos_personalised_signal": Field("MOS 1-5", "DNSMOS_Personalized_Signal_Quality"),
    "agent_audio_quality.dnsmos_personalised_background": Field("MOS 1-5", "DNSMOS_Personalized_Background_Quality"),
    "agent_audio_quality.dnsmos_personalised_overall": Field("MOS 1-5", "DNSMOS_Personalized_Overall_Quality"),
    "agent_audio_quality.p808_overall": Field("MOS 1-5", "P808_Overall_Quality"),
    "agent_audio_properties.pitch_mean_hz": Field("Hz", "Mean_Pitch_Hz", shows_confidence=True),
    "agent_audio_properties.pitch_std_hz": Field("Hz", "Std_Dev_Pitch_Hz"),
    "agent_audio_properties.pitch_contour_hz": Field("Hz", "Full_Pitch_Contour_Hz"),
    "agent_audio_properties.voiced_share": Field(None, "Voiced_Share_Of_Frames"),
    "agent_audio_properties.loudness_integrated_lufs": Field("LUFS", "Integrated_Loudness_LUFS"),
    "agent_audio_properties.loudness_std_lu": Field("LU", "Std_Dev_Loudness_LUFS"),
    "agent_audio_properties.loudness_contour_lufs": Field("LUFS", "Full_Loudness_Contour_LUFS"),
    "agent_audio_properties.tail_level_db": Field("dB", "Tail_Level_dB"),
    "agent_audio_properties.speech_rate_wpm": Field("words/min", "Speech_Rate_WPM"),
    "agent_audio_properties.articulation_rate_wpm": Field("words/min", "Articulation_Rate_WPM"),
    "agent_audio_properties.speech_rate_syllables_per_s": Field("syllables/s", "Speech_Rate_Syllables_Per_S"),
    "agent_audio_properties.articulation_rate_syllables_per_s": Field("syllables/s", "Articulation_Rate_Syllables_Per_S"),
}


class Extractor(Protocol):
    """One group of fields. `measure` may raise AudioError; `build_blueprints` then finds the clip that caused it."""

    @property
    def name(self) -> str:
        """Its name in the registry."""

    @property
    def version(self) -> str:
        """Changes whenever a value it gives may change; stored in the blueprint."""

    @property
    def rate_hz(self) -> int | None:
        """Sample rate at which it wants its clips; None: each as it is, with its channels."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key it gives, for every clip."""

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Return the fields of each clip (at `rate_hz`, if any), in order. Raises AudioError: one cannot be measured."""


def measured(key: str, value: Any, confidence: float | None = None) -> Measured:
    """Return a value with the unit the schema gives its key."""
    return Measured(value, FIELDS[key].unit, confidence)


def is_silent(clip: Clip) -> bool:
    """Return whether no sample reaches -60 dBFS, the level under which SwiftF0 and `prosody` hear nothing either."""
    return float(np.abs(clip.samples).max(initial=0.0)) < SILENCE_PEAK


def require_sound(clip: Clip, what: str) -> None:
    """Refuse silence, on which a model would still give a number. Raises AudioError: the clip is silent."""
    if is_silent(clip):
        raise AudioError(f"the clip is silent: {what} cannot be measured")


def unusable(name: str, error: Exception) -> AssetError:
    """Return the error of an extractor whose packages are missing or cannot be loaded."""
    if isinstance(error, ModuleNotFoundError):
        return AssetError(f"'{name}' needs the package {error.name}; run: pip install 'paras2s[trace]'")
    # A torchaudio built for CUDA, which is what PyPI has for Linux, fails beside a torch for CPUs as a library that is missing.
    return AssetError(
        f"'{name}': its packages cannot be loaded ({one_line(error)[:200]}); install the torchaudio that was built for your "
        "torch, from where your torch came from, or run: make trace"
    )


def contour(times_s: np.ndarray, values: np.ndarray) -> list[float]:
    """Return the values [T] at rising times [T] as 20 means over equal stretches of time; gaps are bridged linearly."""
    # Means, because a single frame picked out of a stretch may be an octave error or a creak.
    count = CONTOUR_POINTS * CONTOUR_STEPS
    steps_s = times_s[0] + (times_s[-1] - times_s[0]) * (np.arange(count) + 0.5) / count
    return np.interp(steps_s, times_s, values).reshape(CONTOUR_POINTS, CONTOUR_STEPS).mean(axis=1).tolist()


def trace_json(blueprint: Blueprint, who: str = "agent", left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return a blueprint nested and named as in TRACE, Fig. 8, for a judge's prompt; an absent field says so in words.

    `who` is "agent" or "user", whose clip it describes. Groups in `left_out` are not shown (TRACE, Table 12).
    """
    nested: dict[str, Any] = {}
    for key, field in blueprint.fields.items():
        group, _, leaf = key.partition(".")
        if group in left_out:
            continue
        group = f"{who}_{group.removeprefix('agent_')}"
        name = FIELDS[key].trace_name if key in FIELDS else leaf
        value = _shown(key, field.value) if isinstance(field, Measured) else f"not measured: {field.reason}"
        target, name = (nested.setdefault(group, {}), name) if leaf else (nested, group)
        target[name] = value
        if key in FIELDS and FIELDS[key].shows_confidence and isinstance(field, Measured) and field.confidence is not None:
            target[name + CONFIDENCE] = _rounded(field.confidence)
    return nested


def _shown(key: str, value: Any) -> Any:
    """Return a value as a judge reads it: a contour in whole hertz or in tenths, and without blanks, which are tokens."""
    if isinstance(value, list) and key in FIELDS:
        digits = 0 if FIELDS[key].unit == "Hz" else 1
        return ",".join(f"{point:.{digits}f}" for point in value)
    return [_rounded(item) for item in value] if isinstance(value, list) else _rounded(value)


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value
