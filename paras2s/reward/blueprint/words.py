"""What was said and how fast: transcript, speech rate, articulation rate."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paras2s.acoustics import asr
from paras2s.acoustics.asr import Transcript
from paras2s.audio import Clip
from paras2s.records import Absent
from paras2s.reward.blueprint.schema import RESPONSE, Fields, is_silent, measured

SPEECH_RATE = "agent_audio_properties.speech_rate_syllables_per_s"
ARTICULATION_RATE = "agent_audio_properties.articulation_rate_syllables_per_s"


def count_syllables(word: str) -> int:
    """Groups of vowel letters, less a silent final e, at least 1.

    Right for about nine in ten English words ("idea" counts 2 of 3), which is enough for a rate; a number written in
    digits counts 1.
    """
    letters = re.sub(r"[^a-z]", "", word.lower())
    groups = len(re.findall(r"[aeiouy]+", letters))
    if re.search(r"[^aeiouyl]e$", letters):
        groups -= 1
    return max(1, groups)


class WordsExtractor:
    """Transcript by Whisper tiny; its confidence, and that of the rates, is the mean word probability."""

    name = "words"
    version = f"{asr.VERSION}+syllables-1"
    rate_hz = asr.RATE_HZ
    keys = (RESPONSE, SPEECH_RATE, ARTICULATION_RATE)

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Words of all clips, several to a window; nothing heard is "" and has no rates."""
        # Given silence, Whisper makes words up, and its stray full stops land in the clip before.
        audible = [index for index, clip in enumerate(clips) if not is_silent(clip)]
        heard = dict(zip(audible, asr.transcribe([clips[index] for index in audible]), strict=True))
        nothing = Transcript(())
        return [_fields(heard.get(index, nothing), clip.duration_s) for index, clip in enumerate(clips)]


def _fields(transcript: Transcript, duration_s: float) -> Fields:
    words = [word for word in transcript.words if re.search(r"\w", word.text)]
    if not words:
        absent = Absent("no words were heard")
        return {RESPONSE: measured(RESPONSE, ""), SPEECH_RATE: absent, ARTICULATION_RATE: absent}
    confidence = sum(word.probability for word in words) / len(words)
    syllables = sum(count_syllables(word.text) for word in words)
    # The recogniser's word ends leave the pauses out, but the last one may lie beyond the clip.
    word_s = sum(max(0.0, min(word.end_s, duration_s) - max(word.start_s, 0.0)) for word in words)
    return {
        RESPONSE: measured(RESPONSE, " ".join(word.text for word in words), confidence),
        SPEECH_RATE: measured(SPEECH_RATE, syllables / duration_s, confidence),
        ARTICULATION_RATE: measured(ARTICULATION_RATE, syllables / word_s, confidence)
        if word_s > 0
        else Absent("the recogniser placed no word in time"),
    }
