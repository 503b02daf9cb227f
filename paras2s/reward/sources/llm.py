"""An LLM as reward: it scores each answer by itself, over a blueprint, a transcript or the sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paras2s.errors import BudgetError
from paras2s.reward.judges.llm_judge import Exchange, LLMJudge
from paras2s.reward.sources.base import Group, Scores
from paras2s.reward.sources.pairwise import asked_utterance
from paras2s.types import Unscored, Verdict


@dataclass(frozen=True)
class LLMSource:
    """ParaS2S's judge used directly: every answer is a call."""

    judge: LLMJudge
    kind = "llm"
    extractors: ClassVar[tuple[str, ...]] = ()
    needs_sound = True

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """All answers of all groups at once; one without sound is Unscored.

        Raises:
            BudgetError: the budget ended before the answers did.
        """
        exchanges, places = [], []
        found: list[Scores] = [[Unscored(self.kind, "the answer has no sound") for _ in group.answers] for group in groups]
        for place, group in enumerate(groups):
            question = asked_utterance(group)
            for number, answer in enumerate(group.answers):
                if answer.clip is not None and len(answer.clip.samples):
                    exchanges.append(Exchange(question, answer.clip))
                    places.append((place, number))
        for (place, number), verdict in zip(places, self.judge.answers(exchanges), strict=True):
            if isinstance(verdict, BudgetError):
                raise verdict
            found[place][number] = verdict.score if isinstance(verdict, Verdict) else verdict
        return found
