"""A judge as reward: it scores each answer alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.errors import BudgetError
from paras2s.reward.judges.base import Exchange, Judge
from paras2s.reward.sources.base import GivenAnswer, Group, Scores
from paras2s.types import Unscored, Verdict

SILENCE = Clip(np.zeros(0, dtype=np.float32), 16_000)


@dataclass(frozen=True)
class JudgeSource:
    """Rewards with a judge directly (ParaS2S). With `extractors` the judge reads the blueprint that all sources share."""

    judge: Judge
    kind: str = "llm"
    extractors: tuple[str, ...] = ()
    needs_codes = False

    @property
    def needs_sound(self) -> bool:
        """Whether the judge listens to the waveform itself."""
        return not self.extractors

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Score all groups at once; an answer without sound is Unscored. Raises BudgetError: the budget ended first."""
        missing = "the answer has no sound" if self.needs_sound else "nothing was measured on the answer"
        scores: list[Scores] = [[Unscored(self.kind, missing) for _ in group.answers] for group in groups]
        exchanges: dict[tuple[int, int], Exchange] = {}
        for row, group in enumerate(groups):
            question = group.question.utterance(self.judge.needs_question_audio)
            for number, answer in enumerate(group.answers):
                if self._can_judge(answer):
                    exchanges[row, number] = Exchange(question, answer.clip or SILENCE, blueprint=answer.blueprint)
        verdicts = self.judge.score_batch(list(exchanges.values()))
        for (row, number), verdict in zip(exchanges, verdicts, strict=True):
            if isinstance(verdict, BudgetError):
                raise verdict
            scores[row][number] = verdict.score if isinstance(verdict, Verdict) else verdict
        return scores

    def _can_judge(self, answer: GivenAnswer) -> bool:
        if self.needs_sound:
            return answer.clip is not None and bool(len(answer.clip.samples))
        return answer.blueprint is not None
