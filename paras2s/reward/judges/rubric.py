"""`RubricJudge`: a deterministic judge after ParaS2S's guideline (appendix I.5), for runs without an LLM.

It recognises the kind of an answer by sentence similarity to the rubric's examples, its tone by the tone classifier, and
whether it takes up the question's topic by the words that both share. It knows nothing else, and checks no facts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paras2s.audio.asr import normalise_words
from paras2s.audio.clip import Clip
from paras2s.audio.text_embedding import embed_sentences
from paras2s.errors import ConfigError
from paras2s.reward.blueprint.parallel import measure_answers
from paras2s.reward.judges.base import Exchange, Judge, Progress, Scored
from paras2s.reward.judges.rubric_rules import Finding, load_rubric
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Blueprint, Measured, Unscored, Verdict

RESPONSE = "agent_response"
RATE = "agent_audio_properties.speech_rate_syllables_per_s"
VOICED = "agent_audio_properties.voiced_share"
TAIL = "agent_audio_properties.tail_level_db"
TONE_PREFIX = "agent_emotion."


@dataclass(frozen=True)
class Question:
    """A question as the rubric reads it: its words c_i and its style s_i."""

    text: str
    style: str


class RubricJudge(Judge):
    """Scores answers from 1 to 5 by the rules of a rubric. To judge clips, not blueprints, it needs a tone classifier."""

    name = "rubric"
    version = "3"
    scores_alone = True

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
        """Measures and scores answers.

        Raises:
            ConfigError: this instance has no tone classifier.
        """
        blueprints = self.measure([exchange.answer for exchange in exchanges], on_progress)
        return [self.judge_measured(*one) for one in zip(exchanges, blueprints, strict=True)]

    def measure(self, clips: Sequence[Clip], on_progress: Progress | None = None) -> list[Blueprint]:
        """Returns the blueprints that this judge reads.

        Raises:
            ConfigError: this instance has no tone classifier.
        """
        if self.tone is None:
            raise ConfigError("the rubric needs a fitted tone classifier to judge clips")
        return measure_answers(clips, self.tone, on_progress)

    def judge_measured(self, exchange: Exchange, answer: Blueprint) -> Verdict | Unscored:
        """Scores an answer from its blueprint, where the question's words and style are known."""
        text, style = exchange.question.text, exchange.question.style
        if text is None or style is None:
            return Unscored(self.name, "the rubric needs the instruction's words and style")
        return self.judge(Question(text, style), answer)

    def judge(self, question: Question, answer: Blueprint) -> Verdict | Unscored:
        """Scores one answer from its blueprint."""
        started = time.perf_counter()
        finding = self.find(question, answer)
        if isinstance(finding, Unscored):
            return finding
        reply = f"family={finding.family} tone={finding.tone} score={finding.score:.0f}"
        latency_s = time.perf_counter() - started
        return Verdict(
            self.name, self.version, self.prompt_hash, finding.score, finding.reason, reply, 0.0, latency_s, parts=finding.parts
        )

    def find(self, question: Question, answer: Blueprint) -> Finding | Unscored:
        """Applies the rules; returns the score with the recognised family and tone."""
        if question.style not in self.rubric.content:
            return Unscored(self.name, f"the rubric has no rules for style {question.style!r}")
        transcript = answer.value(RESPONSE)
        if transcript is None:
            return Unscored(self.name, f"no transcript: {answer.why_absent(RESPONSE)}")
        words = normalise_words(transcript).split()
        if flaw := self.rubric.flaw(question.text, words, answer.value(VOICED), answer.value(RATE), answer.value(TAIL)):
            return Finding(None, None, 1.0, flaw, {"kind": 1.0})
        family, similarity = self._family(" ".join(self.rubric.without_topic(question.text, words)))
        if similarity < self.rubric.mumbled:
            return Finding(None, None, 1.0, f"the words do not make an answer (similarity {similarity:.2f})", {"kind": 1.0})
        fields = {key: field for key, field in answer.fields.items() if key.startswith(TONE_PREFIX)}
        tones = {key: float(field.value) for key, field in fields.items() if isinstance(field, Measured)}
        if not tones or len(tones) < len(fields):
            return Unscored(self.name, f"no tone: {answer.why_absent(next(iter(fields), TONE_PREFIX))}")
        tone = max(tones, key=lambda key: tones[key]).removeprefix(TONE_PREFIX)
        unclear = f"similarity {similarity:.2f}" if similarity < self.rubric.understood else self.rubric.breaks_off(words)
        if unclear:
            return self.rubric.unsure(question.style, family, tone, unclear)
        return self.rubric.finding(question.style, family, tone, self.rubric.takes_up(question.text, family, words))

    def kind_of_words(self, question: Question, words: str) -> float | None:
        """The score of an answer's kind if its sound were these words; None where the rubric has no rules for the style.

        For a policy's text stream: the kind that it wrote, beside the kind in its sound.
        """
        if question.style not in self.rubric.content:
            return None
        said = normalise_words(words).split()
        if self.rubric.flaw(question.text, said, None, None, None):
            return 1.0
        family, similarity = self._family(" ".join(self.rubric.without_topic(question.text, said)))
        if similarity < self.rubric.mumbled:
            return 1.0
        kind = float(self.rubric.content_score(question.style, family))
        return min(kind, 2.0) if similarity < self.rubric.understood or self.rubric.breaks_off(said) else kind

    def _family(self, transcript: str) -> tuple[str, float]:
        similarity = self._examples @ embed_sentences([transcript])[0]
        best = int(np.argmax(similarity))
        return self._names[best], float(similarity[best])
