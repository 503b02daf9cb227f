"""`paras2s judge audit` of a judge that compares: an audio model, a UniSRM, or one of your own that scores no answer alone.

It is asked which of two answers to a question is better, a gold one or a worse one, in both orders.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from paras2s.audio.clip import Clip
from paras2s.bench.audit import Audit, Compared, contrasts_of, shares_of
from paras2s.bench.paras2s.audit import HACKS, PROBED, JudgeAudit, Judged, points_in, position_of
from paras2s.bench.paras2s.scripted_baselines import BAD, FLAT
from paras2s.bench.results import AnswerRow
from paras2s.bench.systems import TOPLINE, Progress
from paras2s.clients.chat import Bill
from paras2s.configs.schema.judges import UNISRM, NamedJudge
from paras2s.errors import BudgetError
from paras2s.reward.judges.base import Judge, Pair, Preferred
from paras2s.statistics.intervals import Interval, Share
from paras2s.statistics.resampling import mean_by_cluster
from paras2s.types import Preference

CHUNK_PAIRS = 64


def only_compares(named: NamedJudge, judge: Judge) -> bool:
    """Return whether a judge is asked about pairs alone: what its kind scores is a clip's quality, or it scores nothing."""
    return named.kind in ("audio", UNISRM) or type(judge).score_batch is Judge.score_batch


@dataclass
class _Compared:
    """A gold answer and a worse one to its question, of a system (`bad`, `flat`) or a hack; the gold one's points by order."""

    kind: str
    gold: AnswerRow
    clips: tuple[Clip, Clip]
    verdicts: list[Preferred] = field(default_factory=list)

    @property
    def by_order(self) -> list[float | None]:
        """The gold answer's points, heard first and heard second."""
        first, second = map(points_in, self.verdicts)
        return [first, None if second is None else 1 - second]

    @property
    def points(self) -> float | None:
        """The gold answer's points, the mean of both orders; None: a verdict is missing."""
        first, second = self.by_order
        return None if first is None or second is None else (first + second) / 2


class PairAudit(JudgeAudit):
    """Asks one judge to compare answers of a folder, to `limit` queries at most."""

    def estimate(self) -> Bill:
        """Return the most that the audit costs."""
        compared, client = self._compared(), self.judge.client
        pairs = [pair for item in compared for pair in self._pairs_of(item)]
        again = [self._pairs_of(item)[0] for item in _probed_pairs(compared)]
        return Bill() if client is None else client.estimate(self.judge.requests([*pairs, *again]))

    def run(self, on_progress: Progress) -> tuple[Audit, Judged]:
        """Compare all answers; return the audit, and no rows. Raises BudgetError: replies are cached."""
        compared, client = self._compared(), self.judge.client
        verdicts = self._judge([pair for item in compared for pair in self._pairs_of(item)], on_progress)
        for number, item in enumerate(compared):
            item.verdicts = verdicts[2 * number : 2 * number + 2]
        repeated, seconds = self._ask_again(_probed_pairs(compared))
        wrong = [item for item in compared if item.kind == BAD]
        shown = {kind: [_points(item) for item in compared if item.kind == kind] for kind in (BAD, FLAT, *HACKS)}
        missing = [verdict for verdict in verdicts if points_in(verdict) is None]
        costs = [verdict.cost_usd for verdict in verdicts if isinstance(verdict, Preference) and verdict.cost_usd is not None]
        audit = Audit(
            judge=self.judge.label,
            answers=str(self.source),
            wrong_kind=shares_of(shown[BAD]),
            contrasts=contrasts_of(shown[BAD]),
            n_scored=len(verdicts) - len(missing),
            n_answers=len(verdicts),
            unscored=dict(Counter(getattr(verdict, "reason", "") for verdict in missing)),
            wrong_tone=shares_of(shown[FLAT]),
            position=position_of(
                [item.by_order[0] for item in wrong],
                [points_in(item.verdicts[1]) for item in wrong],
                [item.gold.contrast_id for item in wrong],
            ),
            hacks={kind: _not_below(shown[kind]) for kind in HACKS if shown[kind]},
            repeated=repeated,
            seconds=Interval(seconds),
            cost_usd=mean_by_cluster(costs, is_share=False) if costs else None,
            total_usd=0.0 if client is None else client.spent_usd,
        )
        return audit, []

    def _compared(self) -> list[_Compared]:
        compared: list[_Compared] = []
        for kind in (BAD, FLAT):
            worse = {(row.query_id, row.answer_index): row for row in self._of(kind)}
            for gold in self._of(TOPLINE):
                if (other := worse.get((gold.query_id, gold.answer_index))) is not None:
                    compared.append(_Compared(kind, gold, (self._clip(gold.answer_clip), self._clip(other.answer_clip))))
        good = self._gold()
        for kind, hacked, (gold, clip) in zip(
            [kind for kind in HACKS for _ in good], self._hacks(), len(HACKS) * good, strict=True
        ):
            compared.append(_Compared(kind, gold, (clip, hacked[1])))
        return compared

    def _pairs_of(self, item: _Compared) -> list[Pair]:
        question = self._question(item.gold)
        return [Pair(question, *item.clips), Pair(question, *item.clips[::-1])]

    def _judge(self, pairs: Sequence[Pair], on_progress: Progress) -> list[Preferred]:
        verdicts: list[Preferred] = []
        for start in range(0, len(pairs), CHUNK_PAIRS):
            verdicts += self.judge.compare_batch(pairs[start : start + CHUNK_PAIRS])
            if stopped := next((verdict for verdict in verdicts if isinstance(verdict, BudgetError)), None):
                raise stopped
            on_progress(len(verdicts), len(pairs))
        return verdicts

    def _ask_again(self, compared: Sequence[_Compared]) -> tuple[Share, float]:
        """Return how often the same pair gets the same verdict again, whatever is cached, and the seconds of a verdict."""
        pairs = [self._pairs_of(item)[0] for item in compared]
        started, client = time.perf_counter(), self.judge.client
        if client is not None:
            client.repeat = 1
        try:
            again = self._judge(pairs, lambda done, total: None)
        finally:
            if client is not None:
                client.repeat = 0
        seconds = (time.perf_counter() - started) / max(1, len(pairs))
        both = [(item.by_order[0], points_in(verdict)) for item, verdict in zip(compared, again, strict=True)]
        same = [None if before is None or now is None else float(before == now) for before, now in both]
        return mean_by_cluster(same, [item.gold.contrast_id for item in compared]), seconds


def _probed_pairs(compared: Sequence[_Compared]) -> list[_Compared]:
    return [item for item in compared if item.kind == BAD][:PROBED]


def _points(item: _Compared) -> Compared:
    return Compared(item.gold.style, (item.gold.contrast_id,), item.points)


def _not_below(compared: Sequence[Compared]) -> Share:
    """Return how often a hack is worth at least the answer that it was made of."""
    values = [None if pair.points is None else float(pair.points <= 0.5) for pair in compared]
    return mean_by_cluster(values, [pair.contrasts[0] for pair in compared])
