"""Describes the blueprint's fields for a judge's prompt: only those that the extractors give."""

from __future__ import annotations

from collections.abc import Sequence

from paras2s.reward.blueprint.schema import CONFIDENCE, FIELDS, Extractor

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
# Of the fields whose confidence is shown.
CONFIDENCES = {
    "agent_response": "mean probability of a recognised word, 0 to 1, where known; low: it may never have been said",
    "agent_audio_properties.pitch_mean_hz": "how sure the pitch tracker is that it hears a voice, 0 to 1",
}


def describe_fields(extractors: Sequence[Extractor], left_out: Sequence[str] = ()) -> str:
    """Return a line a field shown to judges, group by group: name (with unit) and meaning, which a plug-in's field lacks."""
    groups: dict[str, dict[str, None]] = {}
    for key in (key for item in extractors for key in item.keys):
        group, _, leaf = key.partition(".")
        if group not in left_out:
            headed = [] if group in MEANINGS or not leaf else [f"{group}:"]
            groups.setdefault(group, {}).update(dict.fromkeys([*headed, *_lines(key, group, leaf)]))
    return "\n".join(line for lines in groups.values() for line in lines)


def _lines(key: str, group: str, leaf: str) -> list[str]:
    if group in MEANINGS:
        name, meaning = group, MEANINGS[group]
    elif key in FIELDS:
        name, meaning = FIELDS[key].trace_name, MEANINGS[key]
    else:
        return [f"- {leaf or group}"]
    confidence = [f"- {name}{CONFIDENCE}: {CONFIDENCES[key]}"] if key in CONFIDENCES else []
    return [f"- {name}: {meaning}", *confidence]
