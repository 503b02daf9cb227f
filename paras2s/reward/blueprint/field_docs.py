"""Describes the blueprint's fields for a judge's prompt: only those that the extractors give."""

from __future__ import annotations

from collections.abc import Sequence

from paras2s.reward.blueprint.schema import FIELDS, Extractor

MEANINGS = {
    "agent_response": "what a speech recogniser heard the assistant say",
    "agent_emotion": "probabilities of the emotions or tones of the voice, by a classifier",
    "agent_accent": "similarity of the voice to accents of English, -1 to 1",
    "agent_audio_quality.dnsmos_personalised_signal": "quality of the voice itself, 1 to 5, higher is better",
    "agent_audio_quality.dnsmos_personalised_background": "freedom from background noise, 1 to 5, higher is better",
    "agent_audio_quality.dnsmos_personalised_overall": "overall quality and naturalness, 1 to 5, higher is better",
    "agent_audio_quality.p808_overall": "overall quality after ITU-T P.808, 1 to 5, higher is better",
    "agent_audio_properties.pitch_mean_hz": "mean pitch",
    "agent_audio_properties.pitch_std_hz": "spread of the pitch; low is monotonous",
    "agent_audio_properties.pitch_contour_hz": "course of the pitch in 20 equal stretches of time",
    "agent_audio_properties.voiced_share": "share of the time in which a voice sounds",
    "agent_audio_properties.loudness_integrated_lufs": "loudness of the whole",
    "agent_audio_properties.loudness_std_lu": "spread of the loudness",
    "agent_audio_properties.loudness_contour_lufs": "course of the loudness in 20 equal stretches of time",
    "agent_audio_properties.tail_level_db": "level of the last 60 ms against the whole; near 0 means cut off",
    "agent_audio_properties.speech_rate_wpm": "words a minute, pauses counted",
    "agent_audio_properties.articulation_rate_wpm": "words a minute, pauses not counted",
    "agent_audio_properties.speech_rate_syllables_per_s": "syllables a second, pauses counted",
    "agent_audio_properties.articulation_rate_syllables_per_s": "syllables a second, pauses not counted",
}


def describe_fields(extractors: Sequence[Extractor], left_out: Sequence[str] = ()) -> str:
    """One line a field that a judge is shown: name, unit, meaning. A plug-in's field is named by its key."""
    lines = dict.fromkeys(_line(key) for item in extractors for key in item.keys if key.partition(".")[0] not in left_out)
    return "\n".join(lines)


def _line(key: str) -> str:
    group, _, leaf = key.partition(".")
    if group in MEANINGS:
        return f"- {group}: {MEANINGS[group]}"
    if key not in FIELDS:
        return f"- {group}.{leaf}"
    unit = f" ({FIELDS[key].unit})" if FIELDS[key].unit else ""
    return f"- {group}.{FIELDS[key].trace_name}{unit}: {MEANINGS[key]}"
