"""The Omni reward model as a source: it hears the question and the answer themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paras2s.clients.chat import Request
from paras2s.errors import JudgeError
from paras2s.reward.reward_model.omni import LOW_MASS, OmniRewardModel, OmniScore, SpokenPair
from paras2s.reward.reward_model.omni_vllm import ServedOmni
from paras2s.reward.sources.base import Group, Scores
from paras2s.types import Unscored


@dataclass(frozen=True)
class InProcess:
    """A model of this process; where a batch has a pair that cannot be read, the batch is halved until that pair is alone."""

    model: OmniRewardModel

    def score_each(self, pairs: Sequence[SpokenPair]) -> list[OmniScore | Unscored]:
        """Score the answers, in order."""
        try:
            return list(self.model.score(pairs))
        except JudgeError as error:
            if len(pairs) == 1:
                return [Unscored(OmniRewardModel.name, str(error))]
            middle = len(pairs) // 2
            return self.score_each(pairs[:middle]) + self.score_each(pairs[middle:])


@dataclass(frozen=True)
class OmniSource:
    """Expected digit of each answer. Where digits have hardly any mass, the model did not understand the task."""

    model: InProcess | ServedOmni
    kind = OmniRewardModel.name
    extractors: ClassVar[tuple[str, ...]] = ()
    needs_sound = True
    needs_codes = False

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Score all answers together: a server fills its slots, and a model its batches, across groups."""
        spoken = _spoken(groups)
        scores = dict(zip(spoken, self.model.score_each(list(spoken.values())) if spoken else [], strict=True))
        return [
            [self._one(group, scores.get((row, number))) for number in range(len(group.answers))]
            for row, group in enumerate(groups)
        ]

    def requests(self, groups: Sequence[Group]) -> list[Request | Unscored]:
        """Return the calls of `score`; a model of this process makes none."""
        return (
            [self.model.request_or_reason(pair) for pair in _spoken(groups).values()]
            if isinstance(self.model, ServedOmni)
            else []
        )

    def _one(self, group: Group, score: OmniScore | Unscored | None) -> float | Unscored:
        if score is None:
            silent = "the question has no sound" if group.question.clip is None else "the answer has no sound"
            return Unscored(self.kind, silent)
        return self._checked(score)

    def _checked(self, score: OmniScore | Unscored) -> float | Unscored:
        if isinstance(score, Unscored):
            return score
        if not np.isfinite(score.expected):
            return Unscored(self.kind, f"the score is {score.expected}")
        if score.digit_mass < LOW_MASS:
            mass = f"{score.digit_mass:.2f}"
            return Unscored(self.kind, f"only {mass} of the probability is on digits: the prompt is not understood")
        return score.expected


def _spoken(groups: Sequence[Group]) -> dict[tuple[int, int], SpokenPair]:
    """Return the answers with sound to questions with sound, by group and number."""
    spoken: dict[tuple[int, int], SpokenPair] = {}
    for row, group in enumerate(groups):
        question = group.question.sound()
        if question is None:
            continue
        for number, answer in enumerate(group.answers):
            if answer.clip is not None and len(answer.clip.samples):
                spoken[row, number] = SpokenPair(question, answer.clip)
    return spoken
