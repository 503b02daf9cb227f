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
from paras2s.reward.blueprint.parallel import measure_answers
from paras2s.reward.judges.base import Exchange
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.rubric import Question, RubricJudge
from paras2s.reward.tone_classifier import ToneClassifier
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
    """Calls and USD: at most, before teaching; after it, the calls of this run and what all verdicts cost, whenever they were
    paid for. USD is None where no price is known.
    """

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
        """In order.

        Raises:
            JudgeError: it failed on more answers than it may. BudgetError: the budget ended; a later run goes on from there.
        """

    def cost(self, requests: Sequence[TeacherRequest]) -> Cost:
        """Returns the cost at most, before any call."""

    @property
    def spent(self) -> Cost:
        """By this instance so far."""


class RubricTeacher:
    """The rubric: offline, by rules. It scores an answer for every style of question at no cost."""

    free = True
    spent = Cost(0, 0.0)

    def __init__(self, tone: ToneClassifier, styles: Sequence[str]) -> None:
        self.judge, self._tone, self._styles = RubricJudge(), tone, tuple(styles)
        self.name = f"{self.judge.name}/{self.judge.version}"

    def scores(self, requests: Sequence[TeacherRequest], on_progress: Progress) -> list[Scores | Unscored]:
        """In order; what cannot be scored for its own style is unscored."""
        found: list[Scores | Unscored] = []
        blueprints = measure_answers([one.answer for one in requests], self._tone, on_progress)
        for one, blueprint in zip(requests, blueprints, strict=True):
            own = self.judge.judge(Question(one.text, one.style), blueprint)
            if isinstance(own, Unscored):
                found.append(own)
                continue
            verdicts = {style: self.judge.judge(Question(one.text, style), blueprint) for style in self._styles}
            scores = {style: verdict.score for style, verdict in verdicts.items() if isinstance(verdict, Verdict)}
            found.append(scores | {one.style: own.score})
        return found

    def cost(self, requests: Sequence[TeacherRequest]) -> Cost:
        """Nothing."""
        return self.spent


class LLMTeacher:
    """An LLM judge over blueprints, transcripts or the sound itself: it scores an answer for the style it was asked in."""

    free = False

    def __init__(self, judge: LLMJudge, max_unscored_share: float) -> None:
        self._judge, self._most = judge, max_unscored_share
        self._usd: float | None = 0.0
        # Over all calls: answers come part by part.
        self._judged = self._failed = 0
        self._last_failure = ""
        self.name = f"{judge.name}/{judge.version}/{judge.answer_prompt.hash}"

    def _exchange(self, one: TeacherRequest) -> Exchange:
        return self._judge.exchange_of(one.text, one.style, one.question, one.answer)

    def scores(self, requests: Sequence[TeacherRequest], on_progress: Progress) -> list[Scores | Unscored]:
        """Scores answers chunk by chunk; replies are cached as they come, so a stopped run repeats no call."""
        found: list[Scores | Unscored] = []
        for start in range(0, len(requests), CHUNK_ANSWERS):
            chunk = requests[start : start + CHUNK_ANSWERS]
            judged = self._judge.score_batch([self._exchange(one) for one in chunk])
            for one, verdict in zip(chunk, judged, strict=True):
                if isinstance(verdict, BudgetError):
                    raise verdict
                self._judged += 1
                if isinstance(verdict, Unscored):
                    self._failed += 1
                    self._last_failure = verdict.reason
                if isinstance(verdict, Verdict):
                    known = self._usd is not None and verdict.cost_usd is not None
                    self._usd = (self._usd or 0.0) + (verdict.cost_usd or 0.0) if known else None
                found.append({one.style: verdict.score} if isinstance(verdict, Verdict) else verdict)
            on_progress(len(found), len(requests))
            if self._judged >= FEW_ANSWERS and self._failed > self._most * self._judged:
                raise JudgeError(
                    f"{self.name} scored none of {self._failed} in {self._judged} answers, more than "
                    f"distill.max_unscored_share allows (the last: {self._last_failure}); mend the judge and run again, its "
                    "replies are cached"
                )
        return found

    def cost(self, requests: Sequence[TeacherRequest]) -> Cost:
        """Returns the cost with the longest replies allowed. Answers are measured for it, and cached."""
        bill = Bill()
        for start in range(0, len(requests), CHUNK_ANSWERS):
            chunk = [self._exchange(one) for one in requests[start : start + CHUNK_ANSWERS]]
            bill += self._judge.client.estimate(self._judge.answer_requests(chunk))
        return Cost(bill.calls, bill.at_most_usd)

    @property
    def spent(self) -> Cost:
        """Calls made now, and what all verdicts given so far cost."""
        return Cost(self._judge.client.calls, self._usd)
