"""`paras2s judge audit`: asks a judge about answers that are known to be good or wrong by their making.

They are a finished run's answers of the scripted systems, or the demonstrations of a dataset: one to a question of another
style is wrong.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paras2s.audio.clip import Clip, read_clip
from paras2s.bench.audit import Audit, Compared, OrderFigures, contrasts_of, points_of, shares_of
from paras2s.bench.paras2s.judges import AnswerJudge, behind_history
from paras2s.bench.paras2s.scripted_baselines import BAD, FLAT
from paras2s.bench.paras2s.second_judge import judge_again, take_evenly
from paras2s.bench.results import AnswerRow, load_rows
from paras2s.bench.systems import TOPLINE, Progress, histories_of
from paras2s.clients.chat import Bill
from paras2s.data_gen.dataset import Manifest, data_folder, load_manifest
from paras2s.data_gen.histories import FILE as HISTORIES
from paras2s.data_gen.policy_inputs import CODEC, code_clips
from paras2s.data_gen.scripted.scripts import fitting_demonstrations
from paras2s.errors import BudgetError, DataError
from paras2s.reward.judges.base import Exchange, Judge, Pair, Preferred, Scored, Utterance
from paras2s.reward.reward_model.disorder import disordered
from paras2s.statistics.correlation import correlations
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import mean_by_cluster
from paras2s.types import Demonstration, PastTurn, Preference, Query, Verdict

Judged = list[tuple[AnswerRow, AnswerRow]]
# Gold answers that are compared in both orders, made into hacks, and asked about again: each is a call or several.
PROBED = 12
OFF_TOPIC = "off_topic"
HACKS = ("shuffled", "reversed", "half", "twice", "stutter")


def load_answers(folder: Path) -> tuple[Path, Path, dict[str, list[AnswerRow]]]:
    """Return the answers of a run or of a dataset by system, the folder that they are of, and that which names clips.

    Of a run they are those to its validation queries where they were benched, else to the test queries, else the
    demonstrations of its data.

    Raises:
        DataError: there are no gold answers, or no wrong ones.
    """
    for rows in (folder / "bench-validation", folder / "bench"):
        if (rows / f"{TOPLINE}.jsonl").is_file() and (rows / f"{BAD}.jsonl").is_file():
            return rows, folder, {path.stem: load_rows(path) for path in sorted(rows.glob("*.jsonl"))}
    data = next((part for part in (folder, folder / "data") if (part / "queries.parquet").is_file()), None)
    if data is None:
        raise DataError(
            f"{folder}: holds no data (queries.parquet), and no {TOPLINE} and {BAD} answers; run paras2s bench contrasts RUN "
            "--on validation first"
        )
    shown = demonstrated_rows(load_manifest(data))
    if not shown[BAD]:
        raise DataError(f"{data}: no demonstration has another of its category, to a question in another style, beside it")
    return data, data, shown


def _histories(folder: Path) -> dict[str, tuple[PastTurn, ...]]:
    """Return the turns before the questions of a run or of a dataset."""
    data = data_folder(folder)
    return histories_of(load_manifest(data).queries, data) if (data / HISTORIES).is_file() else {}


def demonstrated_rows(dataset: Manifest, most: int | None = None) -> dict[str, list[AnswerRow]]:
    """Return fitting demonstrations as gold, and beside each one of another style of its category, of its contrast if any."""
    shown: dict[str, list[Demonstration]] = {}
    for demonstration in fitting_demonstrations(dataset.demonstrations, dataset.queries):
        shown.setdefault(demonstration.query_id, []).append(demonstration)
    queries = [query for query in dataset.queries if query.id in shown and query.style is not None]
    kept = {
        contrast
        for category in {query.category for query in queries}
        for contrast in [*dict.fromkeys(query.contrast_id for query in queries if query.category == category)][:most]
    }
    rows: dict[str, list[AnswerRow]] = {TOPLINE: [], BAD: []}
    for query in queries:
        others = [other for other in queries if other.category == query.category and other.style != query.style]
        if others and query.contrast_id in kept:
            other = next((other for other in others if other.contrast_id == query.contrast_id), others[0])
            # All of them: a judge may misread a sentence that is the first of its style for every query.
            for number, own in enumerate(shown[query.id]):
                rows[TOPLINE].append(_row(query, TOPLINE, number, own))
                rows[BAD].append(_row(query, BAD, number, shown[other.id][number % len(shown[other.id])]))
    return rows


def off_topic_rows(gold: Sequence[AnswerRow]) -> list[AnswerRow]:
    """Return beside each gold answer one to a question of another category; none if there is one category.

    Each style takes the others' answers in turn: in turn over all styles, alternating ones would always meet the same style.
    """
    categories = dict.fromkeys(row.category for row in gold)
    of_others = {category: [row for row in gold if row.category != category] for category in categories}
    taken: Counter[str] = Counter()
    made = []
    for row in gold:
        if others := of_others[row.category]:
            other = others[taken[row.style] % len(others)]
            taken[row.style] += 1
            of_other = replace(row, text_stream=other.text_stream, answer_clip=other.answer_clip, transcript=None)
            made.append(replace(of_other, system=OFF_TOPIC, score=None, unscored="not judged yet", judge=""))
    return made


def _row(query: Query, system: str, number: int, answer: Demonstration) -> AnswerRow:
    assert query.category is not None
    return AnswerRow(
        system=system, query_id=query.id, contrast_id=query.contrast_id, category=query.category, style=query.style or "",
        question_text=query.text or "", question_clip=query.clip, answer_index=number, text_stream=answer.text, transcript=None,
        tone=None, tone_scores={}, score=None, unscored="not judged yet", reason="", family=None, fitting=False,
        answer_clip=answer.clip, duration_s=0.0, word_error_rate=None, judge="", model_score=None,
    )  # fmt: skip


class JudgeAudit:
    """Asks one judge about the answers of a folder, `limit` queries at most."""

    def __init__(self, judge: Judge, folder: Path, limit: int | None) -> None:
        """Choose the answers. Raises DataError: the folder has none."""
        self.judge, self._answers = judge, AnswerJudge(judge)
        self.source, self.root, rows = load_answers(folder)
        # A question may have several gold answers.
        by_query = {row.query_id: row for row in rows[TOPLINE]}
        chosen = {row.query_id for row in take_evenly([*by_query.values()], limit)}
        self.given = [row for own in rows.values() for row in own if row.query_id in chosen]
        self.given += off_topic_rows(self._of(TOPLINE))
        self.histories = _histories(folder)
        # Evenly over the contrasts, the same for each probe.
        by_contrast: dict[str, AnswerRow] = {row.contrast_id: row for row in self._of(TOPLINE)}
        self.probed = [*by_contrast.values()][:: max(1, len(by_contrast) // PROBED)][:PROBED]

    def _of(self, system: str) -> list[AnswerRow]:
        return [row for row in self.given if row.system == system]

    def _question(self, row: AnswerRow) -> Utterance:
        clip = self._clip(row.question_clip) if self.judge.needs_question_audio else None
        question = Utterance(clip, row.question_text or None, row.style)
        return behind_history(self.judge, self.histories.get(row.query_id, ()), question)

    def _clip(self, name: str) -> Clip:
        return read_clip(self.root / name)

    def _exchanges(self, answers: Sequence[tuple[AnswerRow, Clip]]) -> list[Exchange]:
        exchanges = []
        for row, clip in answers:
            made = self.judge.exchange_of(row.question_text, row.style, self.root / row.question_clip, clip)
            before = self.histories.get(row.query_id, ())
            exchanges.append(replace(made, question=behind_history(self.judge, before, made.question)))
        return exchanges

    def _pairs(self) -> list[Pair]:
        """Return gold and wrong answers, each pair in both orders; none for a judge that compares by two scores."""
        if self.judge.scores_alone or type(self.judge).compare_batch is Judge.compare_batch:
            return []
        wrong = {(row.query_id, row.answer_index): row for row in self._of(BAD)}
        made = []
        for row in self.probed:
            gold, worse = (self._clip(side.answer_clip) for side in (row, wrong[row.query_id, row.answer_index]))
            question = self._question(row)
            made += [Pair(question, gold, worse), Pair(question, worse, gold)]
        return made

    def _hacks(self) -> list[tuple[AnswerRow, Clip]]:
        """Return each probed gold answer out of order, kind by kind."""
        codes, rng = code_clips([self._clip(row.answer_clip) for row in self.probed]), np.random.default_rng(0)
        both = list(zip(self.probed, codes, strict=True))
        return [(row, CODEC.decode(disordered(kind, own, rng) if len(own) > 1 else own)) for kind in HACKS for row, own in both]

    def _gold(self) -> list[tuple[AnswerRow, Clip]]:
        return [(row, self._clip(row.answer_clip)) for row in self.probed]

    def estimate(self) -> Bill:
        """Return the most that the audit costs."""
        client = self.judge.client
        if client is None:
            return Bill()
        given = [(row, self._clip(row.answer_clip)) for row in self.given]
        # Gold answers are asked about twice.
        scored = self.judge.requests(self._exchanges([*given, *self._hacks(), *self._gold()]))
        return client.estimate([*scored, *self.judge.requests(self._pairs())])

    def run(self, on_progress: Progress) -> tuple[Audit, Judged]:
        """Judge all answers; return the audit with the rows before and now. Raises BudgetError: replies are cached."""
        judged = judge_again(self.given, self.root, self._answers, on_progress, self.histories)
        both = list(zip(self.given, judged, strict=True))
        known = [(before.score, now.score, now.contrast_id) for before, now in both if before.score and now.score]
        gold = {(row.query_id, row.answer_index): row.score for row in judged if row.system == TOPLINE}
        probed = [gold[row.query_id, row.answer_index] for row in self.probed]
        again = self._again()
        costs = [verdict.cost_usd for verdict in again if isinstance(verdict, Verdict) and verdict.cost_usd is not None]
        wrong, client = compared_rows(judged, BAD), self.judge.client
        audit = Audit(
            judge=self._answers.name,
            answers=str(self.source),
            wrong_kind=shares_of(wrong),
            contrasts=contrasts_of(wrong),
            n_scored=sum(row.score is not None for row in judged),
            n_answers=len(judged),
            unscored=dict(Counter(row.unscored or "" for row in judged if row.score is None)),
            other_topic=shares_of(compared_rows(judged, OFF_TOPIC)),
            wrong_tone=shares_of(compared_rows(judged, FLAT)),
            agreement=correlations([pair[:2] for pair in known], [pair[2] for pair in known])[0] if known else None,
            commonest=commonest_of([(row.score, row.contrast_id) for row in judged]),
            position=self._position(),
            hacks=self._hack_shares(probed),
            repeated=self._share(probed, map(_score, again), operator.eq),
            seconds=mean_by_cluster([verdict.latency_s for verdict in again if isinstance(verdict, Verdict)], is_share=False),
            cost_usd=mean_by_cluster(costs, is_share=False) if costs else None,
            total_usd=0.0 if client is None else client.spent_usd,
        )
        return audit, both

    def _score_all(self, answers: Sequence[tuple[AnswerRow, Clip]]) -> list[Scored]:
        verdicts = self.judge.score_batch(self._exchanges(answers)) if answers else []
        for verdict in verdicts:
            if isinstance(verdict, BudgetError):
                raise verdict
        return verdicts

    def _again(self) -> list[Scored]:
        """Score the probed answers once more; an endpoint is asked again, whatever is cached."""
        client = self.judge.client
        if client is not None:
            client.repeat = 1
        try:
            return self._score_all(self._gold())
        finally:
            if client is not None:
                client.repeat = 0

    def _hack_shares(self, probed: Sequence[float | None]) -> dict[str, Share]:
        scores = list(map(_score, self._score_all(self._hacks())))
        size = len(probed)
        return {
            kind: self._share(scores[n * size : (n + 1) * size], probed, operator.ge) for n, kind in enumerate(HACKS) if size
        }

    def _share(
        self, first: Iterable[float | None], second: Iterable[float | None], holds: Callable[[float, float], bool]
    ) -> Share:
        pairs = zip(first, second, strict=True)
        values = [None if a is None or b is None else float(holds(a, b)) for a, b in pairs]
        return mean_by_cluster(values, [row.contrast_id for row in self.probed])

    def _position(self) -> OrderFigures | None:
        pairs = self._pairs()
        points = [points_in(verdict) for verdict in self.judge.compare_batch(pairs)] if pairs else []
        return position_of(points[::2], points[1::2], [row.contrast_id for row in self.probed]) if pairs else None


def _score(verdict: Scored) -> float | None:
    return verdict.score if isinstance(verdict, Verdict) else None


def points_in(verdict: Preferred) -> float | None:
    """Return the points of the answer heard first; None: there is no verdict. Raises BudgetError."""
    if isinstance(verdict, BudgetError):
        raise verdict
    return verdict.points if isinstance(verdict, Preference) else None


def position_of(
    gold_first: Sequence[float | None], gold_second: Sequence[float | None], contrasts: Sequence[str]
) -> OrderFigures:
    """Return the position bias from the points of the answer heard first, for each pair in both orders."""
    both = list(zip(gold_first, gold_second, strict=True))
    first = [None if a is None or b is None else (a + b) / 2 for a, b in both]
    equal = [None if a is None or b is None else float(a == 1 - b) for a, b in both]
    return OrderFigures(mean_by_cluster(first, contrasts), mean_by_cluster(equal, contrasts))


def commonest_of(scores: Sequence[tuple[float | None, str]]) -> tuple[int, Share] | None:
    """Return the commonest whole score and its share, from scores with their contrasts; None without any."""
    rounded = [(round(score), contrast) for score, contrast in scores if score is not None]
    if not rounded:
        return None
    commonest = Counter(score for score, _ in rounded).most_common(1)[0][0]
    share = mean_by_cluster([float(score == commonest) for score, _ in rounded], [contrast for _, contrast in rounded])
    return commonest, share


def compared_rows(rows: Sequence[AnswerRow], lower: str) -> list[Compared]:
    """Return the topline's answers beside another system's to the same question."""
    other = {(row.query_id, row.answer_index): row.score for row in rows if row.system == lower}
    return [
        Compared(row.style, (row.contrast_id,), points_of(row.score, other[row.query_id, row.answer_index]))
        for row in rows
        if row.system == TOPLINE and (row.query_id, row.answer_index) in other
    ]
