"""An LLM judge as reward: it scores each answer alone, from a blueprint, a transcript or the sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paras2s.errors import BudgetError
from paras2s.reward.judges.base import Exchange
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.sources.base import Group, Scores
from paras2s.reward.sources.pairwise import question_of
from paras2s.types import Unscored, Verdict


@dataclass(frozen=True)
class LLMSource:
    """Rewards with an LLM judge directly: every answer is a call (ParaS2S)."""

    judge: LLMJudge
    kind = "llm"
    extractors: ClassVar[tuple[str, ...]] = ()
    needs_sound = True
    needs_codes = False

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Scores all answers of all groups at once; one without sound is Unscored.

        Raises:
            BudgetError: the budget ended before the answers did.
        """
        exchanges, places = [], []
        scores: list[Scores] = [[Unscored(self.kind, "the answer has no sound") for _ in group.answers] for group in groups]
        for place, group in enumerate(groups):
            question = question_of(group)
            for number, answer in enumerate(group.answers):
                if answer.clip is not None and len(answer.clip.samples):
                    exchanges.append(Exchange(question, answer.clip))
                    places.append((place, number))
        for (place, number), verdict in zip(places, self.judge.score_batch(exchanges), strict=True):
            if isinstance(verdict, BudgetError):
                raise verdict
            scores[place][number] = verdict.score if isinstance(verdict, Verdict) else verdict
        return scores
