"""Teachers of a reward model: they score sampled answers by the rubric or by any LLM judge (ParaS2S, section 4.2).

A teacher that fails on some answers leaves them without a score. When it fails on more than it may, the run stops: a reward
model learned from what is left would have learned which answers can be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paras2s.audio.clip import Clip
from paras2s.clients.chat import Bill
from paras2s.errors import BudgetError, JudgeError
from paras2s.reward.judges.base import Exchange, Judge, Utterance
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.types import Unscored, Verdict

# Answers in memory at once, and how many must have been judged before a share of failures means anything.
CHUNK_ANSWERS, FEW_ANSWERS = 64, 20
Progress = Callable[[int, int], None]
Scores = dict[str, float]


@dataclass(frozen=True)
class TeacherRequest:
    """One answer to be scored: the question's words, style (labels: preference queries have theirs) and sound; the answer.

    `key` names a sampled answer across runs; what was not sampled has none.
    """

    text: str
    style: str
    question: Path | None
    answer: Clip
    key: str = ""


@dataclass(frozen=True)
class Cost:
    """Calls and USD: at most before teaching; then this run's calls and all verdicts' cost, None if a price is unknown."""

    calls: int
    usd: float | None


class Teacher(Protocol):
    """Scores by style of question: a teacher that costs nothing scores an answer for every style, another for its own alone."""

    @property
    def name(self) -> str:
        """The judge's name, stored with the reward model."""

    @property
    def free(self) -> bool:
        """Whether scores cost neither calls nor money."""

    def scores(self, requests: Sequence[TeacherRequest], on_progress: Progress) -> list[Scores | Unscored]:
        """Score the answers, in order. Raises JudgeError: too many failed. BudgetError: a later run goes on from there."""

    def cost(self, requests: Sequence[TeacherRequest]) -> Cost:
        """Return the cost at most, before any call."""

    @property
    def spent(self) -> Cost:
        """By this instance so far."""


class JudgeTeacher:
    """A judge that scores an answer for the style it was asked in; the rubric, which costs nothing, for all `styles`."""

    def __init__(self, judge: Judge, max_unscored_share: float = 1.0, styles: Sequence[str] = ()) -> None:
        self._judge, self._most, self._styles = judge, max_unscored_share, tuple(styles)
        self._usd: float | None = 0.0
        # Over all calls: answers come part by part.
        self._judged = self._failed = 0
        self._last_failure = ""
        # Reward models of 0.21 and before say no more of the rubric.
        self.name = f"{judge.name}/{judge.version}" if styles else judge.label

    @property
    def free(self) -> bool:
        """Whether scores cost neither calls nor money."""
        return bool(self._styles)

    def _exchange(self, request: TeacherRequest) -> Exchange:
        return self._judge.exchange_of(request.text, request.style, request.question, request.answer)

    def scores(self, requests: Sequence[TeacherRequest], on_progress: Progress) -> list[Scores | Unscored]:
        """Score answers chunk by chunk; replies are cached as they come, so a stopped run repeats no call."""
        if isinstance(self._judge, RubricJudge):
            return self._by_rubric(self._judge, requests, on_progress)
        scores: list[Scores | Unscored] = []
        for start in range(0, len(requests), CHUNK_ANSWERS):
            chunk = requests[start : start + CHUNK_ANSWERS]
            judged = self._judge.score_batch([self._exchange(request) for request in chunk])
            for request, verdict in zip(chunk, judged, strict=True):
                if isinstance(verdict, BudgetError):
                    raise verdict
                self._count(verdict)
                scores.append({request.style: verdict.score} if isinstance(verdict, Verdict) else verdict)
            on_progress(len(scores), len(requests))
            if self._judged >= FEW_ANSWERS and self._failed > self._most * self._judged:
                raise JudgeError(
                    f"{self.name} scored none of {self._failed} in {self._judged} answers, more than "
                    f"distill.max_unscored_share allows (the last: {self._last_failure}); fix the judge and run again, its "
                    "replies are cached"
                )
        return scores

    def _by_rubric(
        self, rubric: RubricJudge, requests: Sequence[TeacherRequest], on_progress: Progress
    ) -> list[Scores | Unscored]:
        """Score every answer for every style; an answer that cannot be scored for its own style is Unscored."""
        every: list[Scores | Unscored] = []
        blueprints = rubric.measure([request.answer for request in requests], on_progress)
        for request, blueprint in zip(requests, blueprints, strict=True):
            styles = dict.fromkeys((*self._styles, request.style))
            questions = [Utterance(None, request.text, style) for style in styles]
            exchanges = [Exchange(question, request.answer, blueprint=blueprint) for question in questions]
            verdicts = dict(zip(styles, rubric.score_batch(exchanges), strict=True))
            own = verdicts[request.style]
            scores = {style: verdict.score for style, verdict in verdicts.items() if isinstance(verdict, Verdict)}
            every.append(own if isinstance(own, Unscored) else scores)
        return every

    def _count(self, verdict: Verdict | Unscored) -> None:
        self._judged += 1
        if isinstance(verdict, Unscored):
            self._failed += 1
            self._last_failure = verdict.reason
            return
        known = self._usd is not None and verdict.cost_usd is not None
        self._usd = (self._usd or 0.0) + (verdict.cost_usd or 0.0) if known else None

    def cost(self, requests: Sequence[TeacherRequest]) -> Cost:
        """Return the cost with the longest replies allowed. Answers are measured for it, and cached."""
        if self._judge.client is None:
            return Cost(0, 0.0)
        bill = Bill()
        for start in range(0, len(requests), CHUNK_ANSWERS):
            chunk = [self._exchange(request) for request in requests[start : start + CHUNK_ANSWERS]]
            bill += self._judge.client.estimate(self._judge.requests(chunk))
        return Cost(bill.calls, bill.at_most_usd)

    @property
    def spent(self) -> Cost:
        """Calls made now, and what all verdicts given so far cost."""
        return Cost(0 if self._judge.client is None else self._judge.client.calls, self._usd)
