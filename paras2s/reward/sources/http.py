"""A reward server as a source: it is sent what is known of questions and answers, and its scores are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paras2s.audio.clip import Clip
from paras2s.clients.rewards import RewardClient, SentAnswer, SentGroup, SentQuestion, SentTurn, Sound, sound_of
from paras2s.reward.sources.base import GivenAnswer, Group, Scores, read_sound


@dataclass(frozen=True)
class HttpSource:
    """Rewards with the scores of a server; an answer without one has its reason."""

    client: RewardClient
    kind: ClassVar[str] = "http"
    extractors: ClassVar[tuple[str, ...]] = ()
    needs_codes: ClassVar[bool] = False

    @property
    def needs_sound(self) -> bool:
        """Whether clips are sent."""
        return self.client.config.audio != "none"

    @property
    def judges(self) -> bool:
        """Whether the server judges answers, and is audited."""
        return self.client.config.judges

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Score all groups, as many calls at once as the config allows. Raises BudgetError: spent, or failing alike."""
        scores = self.client.score([self._sent(row, group) for row, group in enumerate(groups)])
        return [[scores[f"{row}/{number}"] for number in range(len(group.answers))] for row, group in enumerate(groups)]

    def _sent(self, row: int, group: Group) -> SentGroup:
        question = group.question
        sent = SentQuestion(text=question.transcript or None, style=question.style, audio=self._sound(question.clip))
        answers = [self._answer(f"{row}/{n}", a) for n, a in enumerate(group.answers)]
        history = [
            SentTurn(speaker=turn.speaker, text=turn.text or None, audio=self._sound(turn.clip)) for turn in question.history
        ]
        return SentGroup(id=question.id, question=sent, answers=answers, history=history or None)

    def _sound(self, clip: Path | Clip | None) -> Sound | None:
        audio = self.client.config.audio
        if audio == "path" and isinstance(clip, Path):
            return Sound(path=str(clip))
        return None if audio == "none" else sound_of(read_sound(clip))

    def _answer(self, id_: str, answer: GivenAnswer) -> SentAnswer:
        return SentAnswer(id=id_, text=answer.text or None, audio=sound_of(answer.clip) if self.needs_sound else None)
