"""A reward without a judge: how much likelier the frozen policy finds an answer when it is given the question's style in words.

The ratio is log p(answer | question, its style) - log p(answer | question, another style), of several other styles their mean
probability, over the tokens of a stream or of both; a sigmoid takes it to 1 to 5, as the judge `contrast` does for the words
of any language model. The policy is the warm-up's (`rollout/answer_reader.py`): it pays for what it knows of styles, no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from paras2s.configs.schema.styles import shipped_styles
from paras2s.errors import ConfigError
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion, Scores
from paras2s.types import Unscored

STREAMS: dict[str, tuple[float, float]] = {"text": (1.0, 0.0), "audio": (0.0, 1.0), "both": (1.0, 1.0)}


class AnswerReader(Protocol):
    """The frozen policy, which is asked how likely answers are."""

    @property
    def style_words(self) -> Mapping[str, str]:
        """The run's own words of styles."""

    @property
    def needs_sound(self) -> bool:
        """Whether it encodes answers from their sound; else it reads the embedded codec's codes."""

    def nats(self, question: RewardQuestion, words: str, answers: Sequence[GivenAnswer]) -> list[tuple[float, float] | str]:
        """Return log-likelihoods of (text, audio) of each answer, or why there is none; `words` "": no style is given."""


@dataclass(frozen=True)
class SelfContrastSource:
    """Rewards with the policy's own likelihood ratio; `against` "none": the same question without a style."""

    reader: AnswerReader
    streams: Literal["text", "audio", "both"] = "text"
    against: Literal["others", "none"] = "others"
    sigmoid_nats: float = 2.0
    kind = "self_contrast"
    extractors: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.streams not in STREAMS or self.against not in ("others", "none") or not self.sigmoid_nats > 0:
            raise ConfigError(
                "reward.sources: self_contrast: streams is text, audio or both, against is others or none, sigmoid_nats above 0"
            )

    @property
    def needs_sound(self) -> bool:
        """Whether the reader encodes answers from their sound."""
        return self.reader.needs_sound

    @property
    def needs_codes(self) -> bool:
        """Whether the reader takes codes."""
        return not self.reader.needs_sound

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Score all answers; Unscored where the style is not known or nothing was said."""
        return [self._group(group) for group in groups]

    def _group(self, group: Group) -> Scores:
        own, others = self._styles(group.question.style)
        if own is None:
            reason = f"the style of the question ({group.question.style}) has no words, or no other style to be told from"
            return [Unscored(self.kind, reason) for _ in group.answers]
        read = [self.reader.nats(group.question, words, group.answers) for words in (own, *others)]
        return [self._score(row) for row in zip(*read, strict=True)]

    def _styles(self, style: str | None) -> tuple[str | None, list[str]]:
        """Return a style in words, and the words of those that it is compared with; None if there are none."""
        category = next((dict(named) for named in shipped_styles().values() if style in named), {})
        known = category | {name: words for name, words in self.reader.style_words.items() if name in category or name == style}
        others = [""] if self.against == "none" else [words for name, words in known.items() if name != style]
        return (known.get(style or "") if others else None), others

    def _score(self, row: Sequence[tuple[float, float] | str]) -> float | Unscored:
        weights, nats = STREAMS[self.streams], []
        for read in row:
            if isinstance(read, str):
                return Unscored(self.kind, read)
            nats.append(float(np.dot(weights, read)))
        ratio = nats[0] - (float(np.logaddexp.reduce(nats[1:])) - math.log(len(nats) - 1))
        if not math.isfinite(ratio):
            return Unscored(self.kind, f"the likelihood ratio is {ratio}")
        return 3.0 + 2.0 * math.tanh(ratio / (2 * self.sigmoid_nats))
