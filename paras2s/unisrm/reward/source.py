"""A trained UniSRM as a reward of single answers: the overall quality of each (T2), whatever the question was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paras2s.errors import BudgetError
from paras2s.reward.judges.base import Exchange, Utterance
from paras2s.reward.sources.base import Group, Scores
from paras2s.types import Unscored, Verdict
from paras2s.unisrm.reward.judge import UniSRMJudge


@dataclass(frozen=True)
class UniSRMSource:
    """Rewards with the overall quality, which is on the scale already. An answer without sound is Unscored."""

    judge: UniSRMJudge
    kind = "unisrm"
    extractors: ClassVar[tuple[str, ...]] = ()
    needs_sound = True
    needs_codes = False

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """All answers in one batch."""
        clips = [answer.clip for group in groups for answer in group.answers]
        spoken = [Exchange(Utterance(), clip) for clip in clips if clip is not None and len(clip.samples)]
        verdicts = iter(self.judge.score_batch(spoken))
        scores = iter([self._one(next(verdicts)) if clip is not None and len(clip.samples) else None for clip in clips])
        silent = Unscored(self.kind, "the answer has no sound")
        return [[silent if (one := next(scores)) is None else one for _ in group.answers] for group in groups]

    def _one(self, verdict: Verdict | Unscored | BudgetError) -> float | Unscored:
        if isinstance(verdict, BudgetError):
            raise verdict
        return verdict.score if isinstance(verdict, Verdict) else verdict
