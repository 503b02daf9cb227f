"""`paras2s judge audit`: is this judge of any use on these answers? Gold answers against wrong kinds, style by style.

An overall share hides a judge that is always wrong in one style: a small LLM put 0 of 7 gold answers to sarcastic questions
above thanks, and 7 of 7 to sincere ones. The answers are a finished run's own, whose kinds are known by their making.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paras2s.bench.paras2s.judges import AnswerJudge
from paras2s.bench.paras2s.scripted_baselines import BAD, FLAT
from paras2s.bench.paras2s.second_judge import judge_again, take_evenly
from paras2s.bench.results import AnswerRow, load_rows
from paras2s.bench.systems import TOPLINE, Progress
from paras2s.errors import DataError
from paras2s.statistics.correlation import Correlation, correlations
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import mean_by_cluster

Judged = list[tuple[AnswerRow, AnswerRow]]
CHANCE = 0.5
SYSTEMS = (TOPLINE, BAD, FLAT)
# Beside the shares of pairs a judge that gives nearly always the same score tells little.
MOST_EQUAL = 0.9


@dataclass(frozen=True)
class Audit:
    """Shares of pairs ordered rightly, agreement with the run's own judge, and the seconds of a verdict.

    `wrong_kind` and `wrong_tone` are the shares of gold answers above an answer of a wrong kind and above the same words in a
    neutral voice, a tie half, by style or "all". `commonest` is the commonest whole score and its share; `cost_usd` is of the
    replies with a known cost.
    """

    judge: str
    answers: str
    wrong_kind: dict[str, Share]
    wrong_tone: dict[str, Share]
    agreement: Correlation
    n_scored: int
    n_answers: int
    commonest: tuple[int, float] | None
    unscored: dict[str, int]
    seconds: float
    cost_usd: float

    @property
    def at_chance(self) -> list[str]:
        """The styles in which gold answers are not surely above those of a wrong kind."""
        named = {style: share for style, share in self.wrong_kind.items() if style != "all"}
        return [style for style, share in named.items() if share.low is None or share.low <= CHANCE]

    @property
    def sentence(self) -> str:
        """The finding in a sentence."""
        if not self.n_scored:
            return f"{self.judge} scored none of {self.n_answers} answers: {next(iter(self.unscored), 'no reason is known')}."
        if self.commonest is not None and self.commonest[1] >= MOST_EQUAL:
            return f"{self.judge} says {self.commonest[0]} to {self.commonest[1]:.0%} of all answers: it tells nothing."
        if self.at_chance:
            return (
                f"{self.judge} is not told from chance in: {', '.join(self.at_chance)}. Nothing should be trained on it there."
            )
        return f"{self.judge} puts gold answers above wrong ones in every style of these answers."

    def to_json(self) -> dict[str, Any]:
        """Return the audit as JSON."""
        return {**asdict(self), "at_chance": self.at_chance, "sentence": self.sentence}

    def table(self) -> list[tuple[str, str, str]]:
        """Return rows of style, gold above wrong kind, gold above wrong tone."""
        return [
            (style, _share_text(share), _share_text(self.wrong_tone[style]) if style in self.wrong_tone else "")
            for style, share in self.wrong_kind.items()
        ]


def _share_text(share: Share) -> str:
    if share.value is None:
        return f"none of {share.n_asked}"
    ends = "" if share.low is None or share.high is None else f" ({share.low:.2f} to {share.high:.2f})"
    return f"{share.value:.2f}{ends}, {share.n} of {share.n_asked}"


def load_answers(run: Path) -> tuple[Path, dict[str, list[AnswerRow]]]:
    """Return the answers of a run by system: those to its validation queries where they were benched, else to the test queries.

    Raises:
        DataError: the run has no gold or no wrong answers.
    """
    for folder in (run / "bench-validation", run / "bench"):
        if (folder / f"{TOPLINE}.jsonl").is_file() and (folder / f"{BAD}.jsonl").is_file():
            return folder, {path.stem: load_rows(path) for path in sorted(folder.glob("*.jsonl"))}
    raise DataError(f"{run}: no {TOPLINE} and {BAD} answers; run paras2s bench contrasts RUN --on validation first")


def audit_judge(judge: AnswerJudge, run: Path, limit: int | None, on_progress: Progress) -> tuple[Audit, Judged]:
    """Judge a run's answers again, `limit` queries at most, and return the audit with the rows before and now.

    Raises:
        DataError: the run has no such answers. BudgetError: the budget ended; replies are cached.
    """
    folder, rows = load_answers(run)
    chosen = {row.query_id for row in take_evenly(rows[TOPLINE], limit)}
    given = [row for own in rows.values() for row in own if row.query_id in chosen]
    started = time.perf_counter()
    judged = judge_again(given, run, judge, on_progress)
    seconds = (time.perf_counter() - started) / max(1, len(judged))
    both = list(zip(given, judged, strict=True))
    pairs = [(before.score, now.score, now.contrast_id) for before, now in both if before.score and now.score]
    scored = Counter(round(row.score) for row in judged if row.score is not None)
    audit = Audit(
        judge=judge.name,
        answers=str(folder),
        wrong_kind=_shares(judged, BAD),
        wrong_tone=_shares(judged, FLAT),
        agreement=correlations([(first, second) for first, second, _ in pairs], [contrast for _, _, contrast in pairs])[0],
        n_scored=sum(scored.values()),
        n_answers=len(judged),
        commonest=None if not scored else (scored.most_common(1)[0][0], scored.most_common(1)[0][1] / scored.total()),
        unscored=dict(Counter(row.unscored or "" for row in judged if row.score is None)),
        seconds=seconds,
        cost_usd=sum(row.cost_usd or 0.0 for row in judged),
    )
    return audit, both


def _shares(rows: Sequence[AnswerRow], lower: str) -> dict[str, Share]:
    """Return how often the topline's answers are above another system's to the same question, by style, then of all."""
    scores: Mapping[tuple[str, str, int], float | None] = {
        (row.system, row.query_id, row.answer_index): row.score for row in rows if row.system in SYSTEMS
    }
    won: dict[str, list[tuple[float | None, str]]] = {}
    for row in rows:
        key = (lower, row.query_id, row.answer_index)
        if row.system != TOPLINE or key not in scores:
            continue
        other = scores[key]
        points = None if row.score is None or other is None else 0.5 * (1 + (row.score > other) - (row.score < other))
        for name in (row.style, "all"):
            won.setdefault(name, []).append((points, row.contrast_id))
    names = [*sorted(set(won) - {"all"}), *(["all"] if won else [])]
    return {name: mean_by_cluster([points for points, _ in won[name]], [c for _, c in won[name]]) for name in names}
