"""`RubricJudge`: a deterministic judge after ParaS2S's guideline (appendix I.5), for runs without an LLM.

It recognises the kind of an answer by sentence similarity to the rubric's examples, its tone by the tone classifier, and
whether it takes up the question's topic by the words that both share. It knows nothing else, and checks no facts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paras2s.audio.asr import normalise_words
from paras2s.audio.clip import Clip
from paras2s.audio.text_embedding import embed_sentences
from paras2s.errors import ConfigError
from paras2s.reward.blueprint.parallel import measure_answers
from paras2s.reward.judges.base import QUESTION_WORDS, Exchange, Judge, Progress, Scored, with_words
from paras2s.reward.judges.rubric_rules import Finding, load_rubric
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Absent, Blueprint, Measured, Unscored, Verdict

RESPONSE = "agent_response"
RATE = "agent_audio_properties.speech_rate_syllables_per_s"
VOICED = "agent_audio_properties.voiced_share"
TAIL = "agent_audio_properties.tail_level_db"
TONE_PREFIX = "agent_emotion."


def tone_of(answer: Blueprint) -> str | Absent:
    """Return the likeliest tone of an answer's voice by its blueprint."""
    fields = {key: field for key, field in answer.fields.items() if key.startswith(TONE_PREFIX)}
    tones = {key: float(field.value) for key, field in fields.items() if isinstance(field, Measured)}
    if not tones or len(tones) < len(fields):
        return Absent(answer.why_absent(next(iter(fields), TONE_PREFIX)))
    return max(tones, key=lambda key: tones[key]).removeprefix(TONE_PREFIX)


class RubricJudge(Judge):
    """Scores answers from 1 to 5 by the rules of a rubric. To judge clips, not blueprints, it needs a tone classifier."""

    name = "rubric"
    version = "3"
    scores_alone = True
    needs_question_audio = False
    needs = (QUESTION_WORDS, "question.style", "answer.audio")

    def __init__(self, rubric_path: Path | None = None, tone: ToneClassifier | None = None) -> None:
        self.tone = tone
        self.rubric, self.prompt_hash = load_rubric(rubric_path)
        self._names = [name for name, family in self.rubric.families.items() for _ in family.examples]
        self._examples = embed_sentences([e for family in self.rubric.families.values() for e in family.examples])

    @property
    def fingerprint(self) -> str:
        """The version, the rubric's hash and the tone classifier's version."""
        return f"{self.version}/{self.prompt_hash}/{self.tone.version if self.tone else ''}"

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Score answers; those without a blueprint are measured first, and questions without words are transcribed.

        Raises:
            ConfigError: an answer is to be measured, and this instance has no tone classifier.
        """
        clips = [exchange.answer for exchange in exchanges if exchange.blueprint is None]
        measured = iter(self.measure(clips, on_progress) if clips else [])
        return [
            self._verdict(item, next(measured) if item.blueprint is None else item.blueprint) for item in with_words(exchanges)
        ]

    def measure(self, clips: Sequence[Clip], on_progress: Progress | None = None) -> list[Blueprint]:
        """Return the blueprints that this judge reads. Raises ConfigError: this instance has no tone classifier."""
        if self.tone is None:
            raise ConfigError("the rubric needs a fitted tone classifier to judge clips")
        return measure_answers(clips, self.tone, on_progress)

    def _verdict(self, exchange: Exchange, answer: Blueprint) -> Verdict | Unscored:
        started = time.perf_counter()
        text, style = exchange.question.text, exchange.question.style
        if text is None or style is None:
            return Unscored(self.name, "the rubric needs the instruction's words and style")
        finding = self.find(text, style, answer)
        if isinstance(finding, Unscored):
            return finding
        return finding.verdict(self, answer.value(RESPONSE), time.perf_counter() - started)

    def find(self, question: str, style: str, answer: Blueprint) -> Finding | Unscored:
        """Apply the rules; return the score with the recognised family and tone. `question` are the question's words."""
        transcript = answer.value(RESPONSE)
        if style not in self.rubric.content:
            return Unscored(self.name, f"the rubric has no rules for style {style!r}", transcript=transcript)
        if transcript is None:
            return Unscored(self.name, f"no transcript: {answer.why_absent(RESPONSE)}")
        words = normalise_words(transcript).split()
        if flaw := self.rubric.flaw(question, words, answer.value(VOICED), answer.value(RATE), answer.value(TAIL)):
            return Finding(None, None, 1.0, flaw, {"kind": 1.0})
        family, similarity = self._family(" ".join(self.rubric.without_topic(question, words)))
        if similarity < self.rubric.mumbled:
            return Finding(None, None, 1.0, f"the words do not make an answer (similarity {similarity:.2f})", {"kind": 1.0})
        tone = tone_of(answer)
        if isinstance(tone, Absent):
            return Unscored(self.name, f"no tone: {tone.reason}", transcript=transcript)
        unclear = f"similarity {similarity:.2f}" if similarity < self.rubric.understood else self.rubric.breaks_off(words)
        if unclear:
            return self.rubric.unsure(style, family, tone, unclear)
        return self.rubric.finding(style, family, tone, self.rubric.takes_up(question, family, words))

    def kind_of_words(self, question: str, style: str, text: str) -> float | None:
        """Return the score of an answer's kind in writing, for a policy's text stream; None without rules for the style."""
        if style not in self.rubric.content:
            return None
        words = normalise_words(text).split()
        if self.rubric.flaw(question, words, None, None, None):
            return 1.0
        family, similarity = self._family(" ".join(self.rubric.without_topic(question, words)))
        if similarity < self.rubric.mumbled:
            return 1.0
        kind = float(self.rubric.content_score(style, family))
        return min(kind, 2.0) if similarity < self.rubric.understood or self.rubric.breaks_off(words) else kind

    def _family(self, transcript: str) -> tuple[str, float]:
        similarity = self._examples @ embed_sentences([transcript])[0]
        best = int(np.argmax(similarity))
        return self._names[best], float(similarity[best])
