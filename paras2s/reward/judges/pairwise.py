"""Every judge of the project as one that compares two answers, so that rankings and probes can ask any of them.

A judge that scores single answers compares by its scores (AudioJudge, appendix E). A judge that is configured for both orders
asks both and gives one preference; else a pair is heard in the order given, as probes need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paras2s.errors import BudgetError
from paras2s.reward.fusion import FusionRule
from paras2s.reward.judges.llm_judge import Exchange, LLMJudge, Pair, Progress
from paras2s.reward.judges.votes import POINTS, prefer
from paras2s.types import Label, PairLabel, PairVerdict, Preference, Unscored, Verdict

Score = float | Verdict | Unscored | BudgetError
Preferred = Preference | Unscored | BudgetError


class PairJudge(Protocol):
    """Compares pairs: in the order given, or in both where it is configured so."""

    @property
    def name(self) -> str:
        """Of the judge and the model behind it."""

    @property
    def scores_alone(self) -> bool:
        """Whether it scores each answer without hearing the other: then no order of a pair can move it."""

    def compare(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """A preference each, in order; what cannot be judged is Unscored, what the budget does not reach a BudgetError."""


@dataclass(frozen=True)
class LabellingJudge:
    """TRACE's judge: the labels of three dimensions, fused; both kinds of tie are a tie."""

    judge: LLMJudge
    rule: FusionRule
    scores_alone = False

    @property
    def name(self) -> str:
        """The LLM judge's."""
        return self.judge.name

    def compare(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """One call a pair, or two where the judge is configured for both orders."""
        return [self._preference(one) for one in self.judge.pairs(pairs, on_progress)]

    def _preference(self, found: PairVerdict | Unscored | BudgetError) -> Preferred:
        if not isinstance(found, PairVerdict):
            return found
        fused = self.rule.fuse(found.labels)
        labels: dict[Label, PairLabel] = {"1": "1", "2": "2", "both_good": "tie", "both_bad": "tie"}
        return _preference(
            found.judge, found.version, found.prompt_hash, "overall", labels[fused], reason=found.reason,
            cost_usd=found.cost_usd, latency_s=found.latency_s,
        )  # fmt: skip


@dataclass(frozen=True)
class ScoringJudge:
    """A judge of single answers: the rubric, a reward model, an LLM that scores. Equal scores tie.

    `score` gives one score an exchange; equal exchanges may be asked for more than once.
    """

    name: str
    score: Callable[[Sequence[Exchange]], Sequence[Score]]
    scores_alone = True

    def compare(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Both answers of every pair scored, the second after the first."""
        scores = self.score([side for pair in pairs for side in sides_of(pair)])
        if on_progress:
            on_progress(len(pairs), len(pairs))
        return [self._preference(*two) for two in zip(scores[::2], scores[1::2], strict=True)]

    def _preference(self, first: Score, second: Score) -> Preferred:
        for one in (first, second):
            if isinstance(one, Unscored | BudgetError):
                return one
        values = [one.score if isinstance(one, Verdict) else float(one) for one in (first, second)]  # type: ignore[arg-type]
        label = prefer(values[0], values[1])
        return _preference(self.name, "", "", "score", label, reason=f"scores {values[0]:.3f} and {values[1]:.3f}")


def sides_of(pair: Pair) -> tuple[Exchange, Exchange]:
    """Both answers of a pair, each by itself, with its words where these are known."""
    first, second = pair.words or (None, None)
    return Exchange(pair.instruction, pair.first, first), Exchange(pair.instruction, pair.second, second)


def _preference(
    judge: str, version: str, prompt_hash: str, task: str, label: PairLabel, *, reason: str,
    cost_usd: float | None = 0.0, latency_s: float = 0.0,
) -> Preference:  # fmt: skip
    points = POINTS[label]
    return Preference(
        judge, version, prompt_hash, task, label, points, (label,), (points,), None, None, reason, "",
        cost_usd=cost_usd, latency_s=latency_s,
    )  # fmt: skip
