"""Extracts the transcript, the speech rate and the articulation rate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from paras2s.audio import asr
from paras2s.audio.asr import Transcript
from paras2s.audio.clip import Clip
from paras2s.audio.pitch import track_pitch
from paras2s.reward.blueprint.schema import RESPONSE, Fields, is_silent, measured
from paras2s.types import Absent

SPEECH_RATE = "agent_audio_properties.speech_rate_syllables_per_s"
ARTICULATION_RATE = "agent_audio_properties.articulation_rate_syllables_per_s"
SPEECH_WPM = "agent_audio_properties.speech_rate_wpm"
ARTICULATION_WPM = "agent_audio_properties.articulation_rate_wpm"
RATE_KEYS = (SPEECH_RATE, ARTICULATION_RATE, SPEECH_WPM, ARTICULATION_WPM)
# Whisper finds words in noise and tones. Speech is voiced for about 0.4 of its time, and noise for next to none.
MIN_VOICED_SHARE = 0.05
WORD_KEYS = (RESPONSE, SPEECH_RATE, ARTICULATION_RATE, SPEECH_WPM, ARTICULATION_WPM)


def count_syllables(word: str) -> int:
    """Return the groups of vowel letters, less a silent final e, at least 1.

    Right for about nine in ten English words ("idea" counts 2 of 3), which is enough for a rate; a number written in
    digits counts 1.
    """
    letters = re.sub(r"[^a-z]", "", word.lower())
    groups = len(re.findall(r"[aeiouy]+", letters))
    if re.search(r"[^aeiouyl]e$", letters):
        groups -= 1
    return max(1, groups)


@dataclass(frozen=True)
class WordsExtractor:
    """Transcript by Whisper on CTranslate2; its confidence, and that of the rates, is the mean probability of a token.

    `model` is "tiny", which comes with the project, or a folder or name that faster-whisper can load.
    """

    model: str = asr.EMBEDDED
    name = "words"
    rate_hz = asr.RATE_HZ
    keys = WORD_KEYS

    @property
    def version(self) -> str:
        """Names the model and how it is used."""
        return f"{asr.version(self.model)}+rates-4"

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Transcribe clips, each in its own window; no words give "" without rates, no voice gives no rates."""
        # Given silence, Whisper makes words up.
        audible = [index for index, clip in enumerate(clips) if not is_silent(clip)]
        recognised = asr.transcribe([clips[index] for index in audible], self.model, timed=True)
        transcripts = dict(zip(audible, recognised, strict=True))
        nothing = Transcript("")
        return [word_fields(transcripts.get(index, nothing), clip) for index, clip in enumerate(clips)]


def word_fields(transcript: Transcript, clip: Clip) -> Fields:
    """Text, rates and their confidence; no word at all is "" and has no rates, and neither have words without a voice."""
    duration_s = clip.duration_s
    words = [word for word in transcript.words if re.search(r"\w", word.text)]
    if not words:
        return {key: Absent("no words were heard") for key in WORD_KEYS} | {RESPONSE: measured(RESPONSE, "")}
    confidence = transcript.confidence
    response = measured(RESPONSE, " ".join(word.text for word in words), confidence)
    voiced = float(track_pitch(clip).voiced.mean())
    if voiced < MIN_VOICED_SHARE:
        unvoiced = Absent(f"hardly a voice is heard: {100 * voiced:.0f} % of the time; the words may be made up")
        return {RESPONSE: response} | dict.fromkeys(RATE_KEYS, unvoiced)
    syllables = sum(count_syllables(word.text) for word in words)
    # The recogniser's word ends leave the pauses out, but the last one may lie beyond the clip.
    word_s = sum(max(0.0, min(word.end_s, duration_s) - max(word.start_s, 0.0)) for word in words)
    fields: Fields = {
        RESPONSE: response,
        SPEECH_RATE: measured(SPEECH_RATE, syllables / duration_s, confidence),
        SPEECH_WPM: measured(SPEECH_WPM, 60 * len(words) / duration_s, confidence),
    }
    if word_s <= 0:
        untimed = Absent("the recogniser placed no word in time")
        return {**fields, ARTICULATION_RATE: untimed, ARTICULATION_WPM: untimed}
    fields[ARTICULATION_RATE] = measured(ARTICULATION_RATE, syllables / word_s, confidence)
    fields[ARTICULATION_WPM] = measured(ARTICULATION_WPM, 60 * len(words) / word_s, confidence)
    return fields
