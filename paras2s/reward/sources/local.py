"""Sources that need no endpoint: the distilled model, word errors, quality, length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paras2s.audio.asr import countable_words, word_error_rate
from paras2s.errors import ConfigError, JudgeError
from paras2s.reward.blueprint.quality import OVERALL
from paras2s.reward.blueprint.schema import RESPONSE
from paras2s.reward.reward_model.model import RewardModel
from paras2s.reward.sources.base import GivenAnswer, Group, Scores, on_scale
from paras2s.types import Unscored


@dataclass(frozen=True)
class ModelSource:
    """Rewards with the distilled reward model, which reads codes of the question and the answer."""

    model: RewardModel
    kind = RewardModel.name
    extractors: ClassVar[tuple[str, ...]] = ()
    needs_sound = False
    needs_codes = True

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Score all answers in one batch; none for clips that are too long or unlike all it learned, or if not finite."""
        # A run with this source encodes every question, and every answer; an omitted answer would give its score to the next.
        pairs = [
            (group.question.encoded, answer.codes)
            for group in groups
            for answer in group.answers
            if group.question.encoded is not None and answer.codes is not None
        ]
        if len(pairs) < sum(len(group.answers) for group in groups):
            raise JudgeError(f"{self.kind}: a question or an answer came without codes")
        flat = iter(self.model.score_known([question for question, _ in pairs], [codes for _, codes in pairs]))
        return [[self._checked(next(flat)) for _ in group.answers] for group in groups]

    def _checked(self, value: float | Unscored) -> float | Unscored:
        if isinstance(value, Unscored):
            return value
        return float(value) if np.isfinite(value) else Unscored(self.kind, f"the score is {value}")


@dataclass(frozen=True)
class WordErrorSource:
    """Rewards speech that matches the text stream: 5 without an error, 1 where every word is wrong."""

    kind = "word_errors"
    extractors: ClassVar[tuple[str, ...]] = ("words",)
    needs_sound = False
    needs_codes = False

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Score the answers, each in its turn."""
        return [[self._one(answer) for answer in group.answers] for group in groups]

    def _one(self, answer: GivenAnswer) -> float | Unscored:
        transcript = None if answer.blueprint is None else answer.blueprint.value(RESPONSE)
        if transcript is None:
            return Unscored(self.kind, "no transcript of the answer")
        if not countable_words(answer.text):
            return Unscored(self.kind, "the text stream holds no word to compare with")
        return on_scale(1.0 - word_error_rate(answer.text, transcript))


@dataclass(frozen=True)
class QualitySource:
    """Overall personalised DNSMOS, which is on the scale already."""

    kind = "quality"
    extractors: ClassVar[tuple[str, ...]] = ("quality",)
    needs_sound = False
    needs_codes = False

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Score the answers, each in its turn."""
        return [[self._one(answer) for answer in group.answers] for group in groups]

    def _one(self, answer: GivenAnswer) -> float | Unscored:
        if answer.blueprint is None:
            return Unscored(self.kind, "nothing was measured on the answer")
        value = answer.blueprint.value(OVERALL)
        return Unscored(self.kind, answer.blueprint.why_absent(OVERALL)) if value is None else float(value)


@dataclass(frozen=True)
class OverlongSource:
    """Penalises over-long answers softly (DAPO, section 3.4): 5 up to `from_steps`, falling to 1 at `to_steps`."""

    from_steps: int
    to_steps: int
    kind = "overlong"

    extractors: ClassVar[tuple[str, ...]] = ()
    needs_sound = False
    needs_codes = False

    def __post_init__(self) -> None:
        if not 0 < self.from_steps < self.to_steps:
            raise ConfigError("reward.sources: overlong: from_steps must be above 0 and below to_steps")

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Score the answers, each in its turn."""
        falls_over = self.to_steps - self.from_steps
        return [[on_scale((self.to_steps - answer.steps) / falls_over) for answer in group.answers] for group in groups]


@dataclass(frozen=True)
class LengthSource:
    """Rewards a length near `target_steps`: 5 at the target, 1 at no steps and at twice as many."""

    target_steps: int = 32
    kind = "length"

    extractors: ClassVar[tuple[str, ...]] = ()
    needs_sound = False
    needs_codes = False

    def __post_init__(self) -> None:
        if self.target_steps < 1:
            raise ConfigError("reward.sources: length: target_steps must be at least 1")

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Score the answers, each in its turn."""
        return [
            [on_scale(1.0 - abs(answer.steps - self.target_steps) / self.target_steps) for answer in group.answers]
            for group in groups
        ]
