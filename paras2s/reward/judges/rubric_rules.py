"""The rules by which an answer of a kind and a tone gets its score: what is asked, whoever hears the answer.

Two judges score by them: the rubric, which teaches, and the independent judge. They share nothing by which they hear.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from paras2s.audio.asr import normalise_words
from paras2s.errors import ConfigError, first_problem
from paras2s.reward.judges.topic import taken_up, topic_words, without_topic
from paras2s.types import Verdict
from paras2s.utils.io import parse_yaml, reading

if TYPE_CHECKING:
    from paras2s.reward.judges.base import Judge

# From this score on, an answer's kind fits.
FITTING = 4


class RubricFamily(BaseModel):
    """One kind of answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    category: str
    tone: str
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """An answer's family as recognised (None: not understood), its tone, score and reason.

    `parts` are what the score is made of, each from 1 to 5: "kind" (does this kind of answer fit the style), "tone" (does the
    voice carry it), "topic" (does it take up what the question is about; missing where the question names nothing). An answer
    that cannot be understood has a kind of 1 alone.
    """

    family: str | None
    tone: str | None
    score: float
    reason: str
    parts: Mapping[str, float] = field(default_factory=dict)

    def verdict(self, judge: Judge, transcript: str | None, latency_s: float) -> Verdict:
        """Return the finding as a verdict of the judge that heard the answer."""
        reply = f"family={self.family} tone={self.tone} score={self.score:.0f}"
        return Verdict(
            judge.name, judge.version, judge.prompt_hash, self.score, self.reason, reply, 0.0, latency_s, parts=self.parts,
            transcript=transcript, family=self.family, tone=self.tone,
        )  # fmt: skip


class Rubric(BaseModel):
    """The rules in `rubric.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    families: dict[str, RubricFamily]
    content: dict[str, dict[str, int]]
    tone_penalty: dict[str, int]
    contrary: dict[str, tuple[str, ...]]
    topic_penalty: int
    understood: float
    mumbled: float
    min_speech_rate_syllables_per_s: float
    max_repeated_share: float
    max_echoed_share: float
    unfinished: tuple[str, ...]
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

    def content_score(self, style: str, family: str) -> int:
        """Return the score of an answer's words alone, for the style. Raises KeyError: the rubric has no rules for it."""
        row = self.content[style]
        return row.get(family, row["other"])

    def flaw(
        self,
        question: str,
        words: Sequence[str],
        voiced_share: float | None,
        syllables_per_s: float | None,
        tail_db: float | None,
    ) -> str | None:
        """Return why this is no answer at all; None if it is one. What was not measured is not held against it."""
        if len(words) < self.min_words:
            return f"only {len(words)} words were heard"
        if repeated_share(words) > self.max_repeated_share:
            return "the same words come again and again"
        if echoed_share(normalise_words(question).split(), words) > self.max_echoed_share:
            return "the question is said again"
        if voiced_share is not None and voiced_share < self.min_voiced_share:
            return f"hardly a voice is heard: {100 * voiced_share:.0f} % of the time"
        if syllables_per_s is not None and syllables_per_s < self.min_speech_rate_syllables_per_s:
            return f"far too slow or too long: {syllables_per_s:.1f} syllables a second"
        if tail_db is not None and tail_db > self.max_tail_level_db:
            return "the answer is cut off"
        return None

    @cached_property
    def _words_of(self) -> dict[str, frozenset[str]]:
        return {
            name: frozenset(word for example in family.examples for word in normalise_words(example).split())
            for name, family in self.families.items()
        }

    def without_topic(self, question: str, words: Sequence[str]) -> list[str]:
        """Return an answer's words with "that" for what it takes from the question: "the funeral" makes no answer sad."""
        said_anyway = frozenset().union(*self._words_of.values())
        return without_topic(words, taken_up(question, words, said_anyway))

    def takes_up(self, question: str, family: str, words: Sequence[str]) -> bool | None:
        """Return whether an answer says what the question is about; None if the question names nothing.

        What answers of its kind say anyway is no topic: "thank you" does not take up "Thank you for the flowers".
        """
        said_anyway = self._words_of[family]
        if not set(topic_words(question)) - said_anyway:
            return None
        return bool(taken_up(question, words, said_anyway))

    def breaks_off(self, words: Sequence[str]) -> str | None:
        """Return why an answer's last word leaves it unfinished, or None."""
        return f"it breaks off after '{words[-1]}'" if words[-1] in self.unfinished else None

    def unsure(self, style: str, family: str, tone: str, why: str) -> Finding:
        """Return the finding on an answer whose family is a guess: 2 at most, whatever its tone and topic."""
        score = float(min(self.content_score(style, family), 2))
        return Finding(family, tone, score, f"hard to make out, perhaps {family} ({why})", {"kind": score})

    def finding(self, style: str, family: str, tone: str, on_topic: bool | None) -> Finding:
        """Return the finding on an answer that was understood: its kind's score, less what tone and topic take away."""
        kind = self.content_score(style, family)
        wording = "fits" if kind >= FITTING else "does not fit" if kind <= 2 else "is not wrong but not for"
        tone_loss, tone_reason = self._tone_loss(family, tone)
        topic_loss = self.topic_penalty if on_topic is False else 0
        score = max(1, kind - tone_loss - topic_loss) if kind >= FITTING else kind
        parts = {"kind": float(kind), "tone": float(5 - 2 * tone_loss)}
        reason = f"an answer of kind {family} {wording} a {style} user; spoken {tone}{tone_reason}"
        if on_topic is not None:
            parts["topic"] = 5.0 if on_topic else 1.0
            reason += "; takes up the topic" if on_topic else "; says nothing about the topic"
        return Finding(family, tone, float(score), reason, parts)

    def _tone_loss(self, family: str, tone: str) -> tuple[int, str]:
        own = self.families[family].tone
        if tone == own:
            return 0, ", as it should be"
        kind = "contrary" if tone in self.contrary.get(own, ()) else "plain"
        return self.tone_penalty[kind], f" where {own} would carry it"


def repeated_share(words: Sequence[str]) -> float:
    """Return the share of words that form a pair of neighbours seen before, or repeat the word before them."""
    seen: Counter[tuple[str, str]] = Counter()
    repeated = 0
    for before, word in itertools.pairwise(words):
        repeated += before == word or seen[(before, word)] > 0
        seen[(before, word)] += 1
    return repeated / max(1, len(words) - 1)


def echoed_share(question: Sequence[str], words: Sequence[str]) -> float:
    """Return the share of an answer's pairs of neighbouring words that the question has as well."""
    known = set(itertools.pairwise(question))
    return sum(pair in known for pair in itertools.pairwise(words)) / max(1, len(words) - 1)


def load_rubric(path: Path | None = None) -> tuple[Rubric, str]:
    """Read a rubric and its file's hash; without a path, the shipped one. Raises ConfigError: missing, or not a rubric."""
    source = path or resources.files("paras2s.reward.judges").joinpath("rubric.yaml")
    with reading(source, "not a rubric", kind=ConfigError):
        text = source.read_text(encoding="utf-8")
        rules = {key: value for key, value in dict(parse_yaml(text, source, "not a rubric")).items() if key != "kind"}
        try:
            return Rubric(**rules), hashlib.sha256(text.encode()).hexdigest()[:16]
        except ValidationError as error:
            raise ConfigError(f"{source}: not a rubric ({first_problem(error, 'rubric')})") from error
