"""`RubricJudge`: a deterministic judge after ParaS2S's guideline (appendix I.5), for runs without an LLM.

It recognises the kind of an answer by sentence similarity to the rubric's examples, and its tone by the tone classifier.
It knows nothing else: it checks neither facts nor whether an answer takes up the question's topic.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from paras2s.audio.asr import normalise_words
from paras2s.audio.clip import Clip
from paras2s.audio.text_embedding import embed_sentences
from paras2s.errors import ConfigError, one_line
from paras2s.reward.blueprint.parallel import measure_answers
from paras2s.reward.judges.base import Exchange, Judge, Progress, Scored
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Blueprint, Measured, Unscored, Verdict

RESPONSE = "agent_response"
RATE = "agent_audio_properties.speech_rate_syllables_per_s"
VOICED = "agent_audio_properties.voiced_share"
TAIL = "agent_audio_properties.tail_level_db"
TONE_PREFIX = "agent_emotion."


class RubricFamily(BaseModel):
    """One kind of answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    category: str
    tone: str
    examples: tuple[str, ...]


class Rubric(BaseModel):
    """The rules in `rubric.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    families: dict[str, RubricFamily]
    content: dict[str, dict[str, int]]
    tone_penalty: dict[str, int]
    contrary: dict[str, tuple[str, ...]]
    understood: float
    mumbled: float
    min_speech_rate_syllables_per_s: float
    max_repeated_share: float
    min_words: int
    min_voiced_share: float
    max_tail_level_db: float

    @model_validator(mode="after")
    def _check(self) -> Rubric:
        if not self.families:
            raise ValueError("there are no families")
        for style, row in self.content.items():
            if "other" not in row:
                raise ValueError(f"content.{style} has no score for 'other'")
        if missing := {"plain", "contrary"} - self.tone_penalty.keys():
            raise ValueError(f"tone_penalty has no {', '.join(sorted(missing))}")
        return self


@dataclass(frozen=True)
class Question:
    """A question as the rubric reads it: its words c_i and its style s_i."""

    text: str
    style: str


@dataclass(frozen=True)
class Finding:
    """An answer's family as recognised (None: not understood), its tone, score and reason."""

    family: str | None
    tone: str | None
    score: float
    reason: str


def repeated_share(words: Sequence[str]) -> float:
    """Returns the share of words that form a pair of neighbours seen before, or repeat the word before them."""
    seen: Counter[tuple[str, str]] = Counter()
    repeated = 0
    for before, word in itertools.pairwise(words):
        repeated += before == word or seen[(before, word)] > 0
        seen[(before, word)] += 1
    return repeated / max(1, len(words) - 1)


class RubricJudge(Judge):
    """Scores answers from 1 to 5 by the rules of a rubric. To judge clips, not blueprints, it needs a tone classifier."""

    name = "rubric"
    version = "2"
    scores_alone = True

    def __init__(self, rubric_path: Path | None = None, tone: ToneClassifier | None = None) -> None:
        self.tone = tone
        source = rubric_path or resources.files("paras2s.reward.judges").joinpath("rubric.yaml")
        try:
            text = source.read_text()
            self.rubric = Rubric(**yaml.safe_load(text))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "rubric"
            raise ConfigError(f"{source}: not a rubric ({place}: {first['msg']})") from error
        except (OSError, UnicodeDecodeError, TypeError, yaml.YAMLError) as error:
            raise ConfigError(f"{source}: not a rubric ({one_line(error)})") from error
        self.prompt_hash = hashlib.sha256(text.encode()).hexdigest()[:16]
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
        return Verdict(self.name, self.version, self.prompt_hash, finding.score, finding.reason, reply, 0.0, latency_s)

    def find(self, question: Question, answer: Blueprint) -> Finding | Unscored:
        """Applies the rules; returns the score with the recognised family and tone."""
        rules = self.rubric.content.get(question.style)
        if rules is None:
            return Unscored(self.name, f"the rubric has no rules for style {question.style!r}")
        transcript = answer.value(RESPONSE)
        if transcript is None:
            return Unscored(self.name, f"no transcript: {answer.why_absent(RESPONSE)}")
        words = normalise_words(transcript).split()
        if flaw := self._flaw(words, answer):
            return Finding(None, None, 1.0, flaw)
        family, similarity = self._family(" ".join(words))
        if similarity < self.rubric.mumbled:
            return Finding(None, None, 1.0, f"the words do not make an answer (similarity {similarity:.2f})")
        fields = {key: field for key, field in answer.fields.items() if key.startswith(TONE_PREFIX)}
        tones = {key: float(field.value) for key, field in fields.items() if isinstance(field, Measured)}
        if not tones or len(tones) < len(fields):
            return Unscored(self.name, f"no tone: {answer.why_absent(next(iter(fields), TONE_PREFIX))}")
        tone = max(tones, key=lambda key: tones[key]).removeprefix(TONE_PREFIX)
        content = rules.get(family, rules["other"])
        if similarity < self.rubric.understood:
            score = min(content, 2)
            return Finding(family, tone, float(score), f"hard to make out, perhaps {family} (similarity {similarity:.2f})")
        score, tone_reason = self._with_tone(content, family, tone)
        wording = "fits" if content >= 4 else "does not fit" if content <= 2 else "is not wrong but not for"
        return Finding(family, tone, float(score), f"an answer of kind {family} {wording} a {question.style} user{tone_reason}")

    def _with_tone(self, content: int, family: str, tone: str) -> tuple[int, str]:
        own = self.rubric.families[family].tone
        if tone == own or content < 4:
            return content, f"; spoken {tone}" + (", as it should be" if tone == own else "")
        kind = "contrary" if tone in self.rubric.contrary.get(own, ()) else "plain"
        return content - self.rubric.tone_penalty[kind], f"; spoken {tone} where {own} would carry it"

    def _flaw(self, words: Sequence[str], answer: Blueprint) -> str | None:
        """Returns why this is no answer at all; None if it is one."""
        rules = self.rubric
        if len(words) < rules.min_words:
            return f"only {len(words)} words were heard"
        if repeated_share(words) > rules.max_repeated_share:
            return "the same words come again and again"
        voiced = answer.value(VOICED)
        if voiced is not None and voiced < rules.min_voiced_share:
            return f"hardly a voice is heard: {100 * voiced:.0f} % of the time"
        rate = answer.value(RATE)
        if rate is not None and rate < rules.min_speech_rate_syllables_per_s:
            return f"far too slow or too long: {rate:.1f} syllables a second"
        tail_db = answer.value(TAIL)
        if tail_db is not None and tail_db > rules.max_tail_level_db:
            return "the answer is cut off"
        return None

    def _family(self, transcript: str) -> tuple[str, float]:
        similarity = self._examples @ embed_sentences([transcript])[0]
        best = int(np.argmax(similarity))
        return self._names[best], float(similarity[best])
