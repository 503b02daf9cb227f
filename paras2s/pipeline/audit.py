"""The gate of a run: no judge teaches and no reward pays before an audit on the run's data, or if that finds chance.

A judge is asked about demonstrations, a reward model about the policy's answers to held-out questions, and about demonstrations
too if its teacher scored each answer for one style alone. What was found is kept
beside the data or the reward model, so that it is asked once, and in the run's folder, where reports read it.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from paras2s.align.job import Rows
from paras2s.bench.audit import AUDITS, FEWEST_CONTRASTS, Audit, Compared, contrasts_of, points_of, run_audits, shares_of
from paras2s.bench.paras2s.audit import OFF_TOPIC, commonest_of, compared_rows, demonstrated_rows, off_topic_rows, position_of
from paras2s.bench.paras2s.scripted_baselines import BAD
from paras2s.bench.results import AnswerRow as BenchRow
from paras2s.bench.systems import TOPLINE
from paras2s.clients.chat import LLMClient
from paras2s.clients.rewards import RewardClient
from paras2s.configs.schema.judges import UNISRM
from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.data_gen.dataset import Dataset, inside, load_dataset
from paras2s.data_gen.policy_inputs import code_clips, encode_questions
from paras2s.errors import JudgeError
from paras2s.pipeline import question_styles
from paras2s.pipeline.demonstrations import first_contrasts
from paras2s.pipeline.learned_answers import KEPT_OUT, LEARNED_FILE, AnswerRow, read_answers
from paras2s.pipeline.people import PeopleTeacher
from paras2s.reward.judges.base import Exchange, Judge, Pair
from paras2s.reward.reward_model.disorder import TAUGHT, disordered
from paras2s.reward.reward_model.model import RewardModel
from paras2s.reward.reward_model.omni import OmniRewardModel
from paras2s.reward.reward_model.teachers import Teacher, TeacherRequest
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion, RewardSource
from paras2s.reward.sources.composite import CompositeReward
from paras2s.reward.sources.omni import OmniSource
from paras2s.run import Run, open_run
from paras2s.statistics.intervals import Interval
from paras2s.statistics.resampling import mean_by_cluster
from paras2s.types import Query, Reward, Unscored
from paras2s.utils.cache import key_of
from paras2s.utils.device import give_back
from paras2s.utils.io import read_json, sample_digest, write_json

TEACHER, MODEL = "teacher", "reward model"
# Sources of reward that count words or steps, or measure sound, and the frozen policy itself, which reads no clips.
MEASURING = ("word_errors", "quality", "length", "overlong", "self_contrast")
OMNI = OmniRewardModel.name
# Sources that are known to score each answer by itself, whatever is beside it in the group.
ALONE = ("rubric", "llm", OMNI, UNISRM)
OTHER_REWARD = "choose another reward"
IS_NONE = (
    f"{OTHER_REWARD}; if it measures and judges nothing, say so (judges: false in its options, judges = False in its class)"
)
# Contrasts of a category that a judge is asked about, and that a reward model is.
MOST_PROBED, MOST_COMPARED = 8, 20
GOOD_FROM, POINTS_APART = 4.0, 2.0
HACKS = (*TAUGHT, "reversed")
MORE_LABELS = (
    "give it more labels (data.preference_contrasts, distill.answers_per_query), or check the judge (`paras2s judge audit`)"
)


def keep_audit(run: Run, role: str, record: Mapping[str, Any], advice: str, stop: bool = True) -> None:
    """Keep and say an audit; it ends the run unless `stop` is False. Raises JudgeError: nothing may be trained on it."""
    audits = run_audits(run.folder)
    if audits.get(role) != record:
        write_json(run.folder / AUDITS, audits | {role: record})
    run.say(f"  audit of the {role}: {record['sentence']}")
    if record["refused"] and not stop:
        run.say(f"  it does not pay for answers: {advice}")
    if record["refused"] and stop and not run.anyway:
        raise JudgeError(
            f"the audit refuses the {role}: {record['sentence']} To do: {advice}; or add --anyway, and every report says so"
        )


# A judge, on demonstrations.


def audited_rows(dataset: Dataset) -> dict[str, list[BenchRow]]:
    """Return gold answers to questions of the styles that have enough contrasts to tell, wrong ones, and ones to another topic.

    {} if no style has enough.
    """
    rows = demonstrated_rows(dataset, MOST_PROBED)
    enough = {
        style
        for style in {row.style for row in rows[TOPLINE]}
        if len({row.contrast_id for row in rows[TOPLINE] if row.style == style}) >= FEWEST_CONTRASTS
    }
    kept = {system: [row for row in own if row.style in enough] for system, own in rows.items()}
    return kept | {OFF_TOPIC: off_topic_rows(kept[TOPLINE])} if kept[BAD] else {}


def audit_teacher(run: Run, dataset: Dataset, teacher: Teacher) -> None:
    """Audit the teacher of the reward model, unless it is people. Raises JudgeError: at chance in a style. BudgetError."""
    rows = audited_rows(dataset)
    if isinstance(teacher, PeopleTeacher) or not rows:
        return

    def ask() -> Audit:
        answers = [row for own in rows.values() for row in own]
        requests = [
            TeacherRequest(
                row.question_text, row.style, inside(dataset.folder, row.question_clip), dataset.clip(row.answer_clip)
            )
            for row in answers
        ]
        cost = teacher.cost(requests)
        _announce(run, cost.calls, cost.usd)
        before, started = teacher.spent.usd, time.perf_counter()
        with run.bar("answers audited", len(requests)) as bar:
            verdicts = teacher.scores(requests, bar.at)
        seconds, after = (time.perf_counter() - started) / len(answers), teacher.spent.usd
        usd = None if before is None or after is None else after - before
        judged = [
            replace(row, score=verdict[row.style], unscored=None, fitting=verdict[row.style] >= GOOD_FROM)
            if isinstance(verdict, dict)
            else replace(row, unscored=verdict.reason)
            for row, verdict in zip(answers, verdicts, strict=True)
        ]
        return _of_rows(teacher.name, dataset, judged, Interval(seconds), usd)

    advice = "choose another judge (distill.teacher)"
    keep_audit(run, TEACHER, _recorded(dataset, [TEACHER, teacher.name], rows, ask), advice)


def _announce(run: Run, calls: int, usd: float | None) -> None:
    if calls:
        price = "an unknown price" if usd is None else f"at most {usd:.2f} USD"
        run.say(f"  the judge is audited first: {calls} calls, for {price}; they count against its budget_usd")


def _of_rows(judge: str, dataset: Dataset, judged: Sequence[BenchRow], seconds: Interval, usd: float | None) -> Audit:
    compared = compared_rows(judged, BAD)
    return Audit(
        judge=judge,
        answers=f"demonstrations of {dataset.folder}",
        wrong_kind=shares_of(compared),
        other_topic=shares_of(compared_rows(judged, OFF_TOPIC)),
        contrasts=contrasts_of(compared),
        n_scored=sum(row.score is not None for row in judged),
        n_answers=len(judged),
        unscored=dict(Counter(row.unscored or "" for row in judged if row.score is None)),
        commonest=commonest_of([(row.score, row.contrast_id) for row in judged]),
        seconds=seconds,
        cost_usd=Interval(None if usd is None else usd / len(judged)),
        total_usd=usd,
    )


def _recorded(
    dataset: Dataset, judge: Sequence[Any] | None, rows: Mapping[str, Sequence[BenchRow]], ask: Callable[[], Audit]
) -> dict[str, Any]:
    """Return the audit of a judge that is on record for these answers, else ask and keep it.

    `judge` is None for a judge without a version: it may be another by the next time.
    """
    if judge is None:
        return ask().to_json()
    of = [[row.query_id, row.answer_clip] for system in rows.values() for row in system]
    path = dataset.folder / "audits" / f"{key_of([judge, of])[:16]}.json"
    if not path.is_file():
        write_json(path, ask().to_json())
    return dict(read_json(path))


# What pays for answers.


def audit_rewards(run: Run, dataset: Dataset, questions: Callable[[Sequence[Query]], Rows[RewardQuestion]]) -> None:
    """Audit the reward model and each source of the run's reward that judges; refuse what is at chance in a style.

    Nothing is audited where recorded preferences are learned from: no reward pays. `questions` makes what a reward may know of
    queries.

    Raises:
        JudgeError: a source is. BudgetError: a judge's budget ended; replies are cached.
    """
    for source in run.config.reward.sources if run.config.align.preferences is None else ():
        if source.kind == RewardModel.name:
            if (record := reward_model_record(run, dataset)) is not None:
                keep_audit(run, MODEL, record, MORE_LABELS)
        elif source.kind not in MEASURING and (rows := audited_rows(dataset)):
            if (record := _source_record(run, dataset, source, rows, questions)) is not None:
                keep_audit(run, source.key, record, OTHER_REWARD if source.kind in (*ALONE, "pairwise") else IS_NONE)
            # Of a model that was loaded to be asked; the workers load it again.
            gc.collect()
            give_back()


def _source_record(
    run: Run,
    dataset: Dataset,
    source: RewardSourceConfig,
    rows: Mapping[str, Sequence[BenchRow]],
    questions: Callable[[Sequence[Query]], Rows[RewardQuestion]],
) -> dict[str, Any] | None:
    """Return the audit of a source that is on record for its version, or make it; None: it says that it judges nothing."""
    setup = replace(run.reward_setup(), config=RewardConfig(sources=(source.model_copy(update={"required": True}),)))
    open_reward = cache(lambda: CompositeReward(setup))
    if source.kind == OMNI:
        # What is on record is known without reading many gigabytes.
        adapter = Path(str(source.options.get("adapter", setup.model_dir / OMNI)))
        version: Any = [[path.name, sample_digest(path).hex()] for path in sorted(adapter.glob("*")) if path.is_file()]
    else:
        part = open_reward().sources[0]
        if not getattr(part, "judges", True):
            return None
        judge: Judge | None = getattr(part, "judge", None)
        version = judge.label if judge is not None else getattr(part, "version", None)

    def ask() -> Audit:
        return _ask_source(run, dataset, open_reward(), rows, questions)

    made_of = [source.kind, source.options, version, question_styles.VERSION]
    return _recorded(dataset, None if version is None else made_of, rows, ask)


def _ask_source(
    run: Run,
    dataset: Dataset,
    reward: CompositeReward,
    rows: Mapping[str, Sequence[BenchRow]],
    questions: Callable[[Sequence[Query]], Rows[RewardQuestion]],
) -> Audit:
    """Ask a reward of one source about groups of a gold answer, a wrong one and, if it scores, one to another topic."""
    (source,), part = reward.setup.config.sources, reward.sources[0]
    judge: Judge | None = getattr(part, "judge", None)
    by_id = {query.id: query for query in dataset.queries}
    given = questions([by_id[row.query_id] for row in rows[TOPLINE]])
    compares = source.kind == "pairwise" or (source.kind == UNISRM and source.options.get("judges", "pairs") == "pairs")
    # A group of two is one game.
    systems = (TOPLINE, BAD) if compares or not rows[OFF_TOPIC] else (TOPLINE, BAD, OFF_TOPIC)
    sides = [_answers(dataset, rows[system], reward.needs_codes) for system in systems]
    groups = [Group(given[number], answers) for number, answers in enumerate(zip(*sides, strict=True))]
    # Whoever may compare is asked in both orders.
    other = [Group(group.question, group.answers[::-1]) for group in groups] if compares or source.kind not in ALONE else []
    _announce(run, *_bill(part, [*groups, *other], compares))
    started = time.perf_counter()
    scores = reward.score([*groups, *other])
    seconds = (time.perf_counter() - started) / max(1, len(systems) * len(scores))
    orders = [scores[: len(groups)], [row[::-1] for row in scores[len(groups) :]]]
    both = [[_mean(values) for values in zip(*sides, strict=True)] for sides in zip(*filter(None, orders), strict=True)]
    judged = [
        replace(row, unscored=score.reason)
        if isinstance(score, Unscored)
        else replace(row, score=score, unscored=None, fitting=score >= GOOD_FROM)
        for side, system in enumerate(systems)
        for row, score in zip(rows[system], [answers[side] for answers in both], strict=True)
    ]
    client, name = _client(part), source.key if judge is None else judge.label
    # What a class of the user's own pays for is not known.
    own_usd = 0.0 if source.kind in (*ALONE, "pairwise") else None
    audit = _of_rows(name, dataset, judged, Interval(seconds), own_usd if client is None else client.spent_usd)
    if not other:
        return audit
    first, second = ([points_of(*map(_value, row[:2])) for row in order] for order in orders)
    other_first = [None if points is None else 1 - points for points in second]
    return replace(audit, position=position_of(first, other_first, [row.contrast_id for row in rows[TOPLINE]]))


def _answers(dataset: Dataset, rows: Sequence[BenchRow], coded: bool) -> list[GivenAnswer]:
    clips = [dataset.clip(row.answer_clip) for row in rows]
    codes = code_clips(clips) if coded else [None] * len(clips)
    return [
        GivenAnswer(0 if own is None else len(own), row.text_stream, clip, codes=own)
        for row, clip, own in zip(rows, clips, codes, strict=True)
    ]


def _client(part: RewardSource) -> LLMClient | RewardClient | None:
    """Return the endpoint that a source asks: its judge's, its served model's, or its own."""
    client = getattr(getattr(part, "judge", None) or getattr(part, "model", None) or part, "client", None)
    return client if isinstance(client, LLMClient | RewardClient) else None


def _bill(part: RewardSource, groups: Sequence[Group], compares: bool) -> tuple[int, float | None]:
    """Return the calls of an audit and the most that they cost; None: unknown."""
    client, judge = _client(part), getattr(part, "judge", None)
    if isinstance(client, RewardClient):
        n_answers, price = sum(len(group.answers) for group in groups), client.config.usd_per_answer
        return -(-n_answers // client.config.batch_size), None if price is None else price * n_answers
    if client is None:
        return 0, 0.0
    items: list[Pair | Exchange] = []
    for group in groups if judge is not None else ():
        question, clips = group.question.utterance(), [answer.clip for answer in group.answers if answer.clip is not None]
        items += [Pair(question, clips[0], clips[1])] if compares else [Exchange(question, clip) for clip in clips]
    bill = client.estimate(part.requests(groups) if isinstance(part, OmniSource) else judge.requests(items) if judge else [])
    return bill.calls, bill.at_most_usd


def _value(reward: Reward | Unscored) -> float | None:
    return reward.value if isinstance(reward, Reward) else None


def _mean(rewards: Sequence[Reward | Unscored]) -> float | Unscored:
    """Return the mean of an answer's rewards in both orders, or why one of them is missing."""
    missing = [reward for reward in rewards if isinstance(reward, Unscored)]
    return missing[0] if missing else fmean(reward.value for reward in rewards if isinstance(reward, Reward))


# The reward model, on answers kept out of its training.


def audit_of_run(folder: Path) -> Audit:
    """Return the audit of a run's reward model. Raises JudgeError: an earlier version did not keep the answers it needs."""
    run = open_run(folder.parent if folder.name == "reward" else folder)
    audit = audit_reward_model(run, load_dataset(run.data_dir), RewardModel.load(run.reward_dir))
    if audit is None:
        raise JudgeError(f"{run.reward_dir / LEARNED_FILE}: holds no held-out answers with scores; run `paras2s distill` again")
    return audit


def reward_model_record(run: Run, dataset: Dataset, model: RewardModel | None = None) -> dict[str, Any] | None:
    """Return the audit of the run's reward model that is kept beside it, or make it; None without held-out answers."""
    path = run.reward_dir / AUDITS
    if model is None and path.is_file():
        return dict(read_json(path))
    if not (run.reward_dir / LEARNED_FILE).is_file():
        return None
    audit = audit_reward_model(run, dataset, model or RewardModel.load(run.reward_dir))
    if audit is not None:
        write_json(path, audit.to_json())
    return None if audit is None else dict(read_json(path))


def audit_reward_model(run: Run, dataset: Dataset, model: RewardModel) -> Audit | None:
    """Ask a reward model about the policy's own answers to held-out questions, which its teacher scored; None without any.

    Where the teacher scored each answer for every style, each question is asked with all answers, and an answer of the right
    kind is compared with those of a kind that another style of the category is worth more: a model that hears no style has
    them wrong in one of the two. Else each answer is asked with its own question, and compared with much worse ones of its
    style; and demonstrations are compared with those to another style, which are right and wrong whatever the teacher says.
    """
    path = run.reward_dir / LEARNED_FILE
    if not path.is_file():
        return None
    by_id = {query.id: query for query in dataset.queries}
    rows = [row for row in read_answers(path).of(KEPT_OUT) if row.query_id in by_id and len(row.codes)]
    kept = {query.id for query in first_contrasts([by_id[str(row.query_id)] for row in rows], MOST_COMPARED)}
    rows = [row for row in rows if row.query_id in kept and isinstance(row.scores, dict)]
    queries = [by_id[name] for name in dict.fromkeys(str(row.query_id) for row in rows)]
    if not rows:
        return None
    started = time.perf_counter()
    scores = model.score_every(encode_questions(dataset, queries), [row.codes for row in rows])
    seconds = (time.perf_counter() - started) / len(rows)
    crossed = all(len(_scores(row)) > 1 for row in rows)
    off_topic: list[Compared] = []
    if crossed:
        compared = list(_crossed(queries, rows, scores))
    else:
        shown, off_topic = _demonstrated_pairs(dataset, model)
        compared = [*_own_pairs(queries, rows, scores), *shown]
    index = {query.id: number for number, query in enumerate(queries)}
    own = [float(scores[index[str(row.query_id)], number]) for number, row in enumerate(rows)]
    return Audit(
        judge=f"{RewardModel.name} of {run.folder.name}",
        answers=f"{len(rows)} answers to {len(queries)} held-out questions{'' if crossed else ', and demonstrations'}",
        wrong_kind=shares_of(compared),
        other_topic=shares_of(off_topic),
        contrasts={query.style or "": 0 for query in queries} | contrasts_of(compared),
        n_scored=len(rows),
        n_answers=len(rows),
        commonest=commonest_of([(value, by_id[str(row.query_id)].contrast_id) for value, row in zip(own, rows, strict=True)]),
        hacks=_hacks(model, rows, by_id),
        seconds=Interval(seconds),
        cost_usd=Interval(0.0),
        total_usd=0.0,
    )


def _scores(row: AnswerRow) -> dict[str, float]:
    assert isinstance(row.scores, dict)
    return row.scores


def _crossed(queries: Sequence[Query], rows: Sequence[AnswerRow], scores: np.ndarray) -> Iterator[Compared]:
    """Yield each question with each answer of its kind beside each of another's; `scores` [Q, N]."""
    contrast = {query.id: query.contrast_id for query in queries}
    styles = {query.style or "": query.category for query in queries}
    for question, query in enumerate(queries):
        style = query.style or ""
        others = [other for other, category in styles.items() if category == query.category and other != style]
        for first, a in enumerate(rows):
            for second, b in enumerate(rows):
                right, wrong = _scores(a), _scores(b)
                if right.get(style, 0.0) > wrong.get(style, np.inf) and any(
                    right.get(other, np.inf) < wrong.get(other, 0.0) for other in others
                ):
                    named = (query.contrast_id, contrast[str(a.query_id)], contrast[str(b.query_id)])
                    yield Compared(style, named, points_of(scores[question, first], scores[question, second]))


def _own_pairs(queries: Sequence[Query], rows: Sequence[AnswerRow], scores: np.ndarray) -> Iterator[Compared]:
    """Yield each answer beside each much worse one of its style, both to their own questions; `scores` [Q, N].

    A teacher of many values orders answers of one kind too, by no more than its own noise.
    """
    index = {query.id: number for number, query in enumerate(queries)}
    own = [
        (queries[index[str(row.query_id)]], row, scores[index[str(row.query_id)], number]) for number, row in enumerate(rows)
    ]
    for query, row, value in own:
        for other, worse, lower in own:
            style = query.style or ""
            if other.style == query.style and _scores(row).get(style, 0.0) - _scores(worse).get(style, np.inf) >= POINTS_APART:
                yield Compared(style, (query.contrast_id, other.contrast_id), points_of(value, lower))


def _demonstrated_pairs(dataset: Dataset, model: RewardModel) -> tuple[list[Compared], list[Compared]]:
    """Return each demonstration beside one to another style of its category, and beside one to another topic."""
    rows = audited_rows(dataset)
    if not rows:
        return [], []
    answers = [row for own in rows.values() for row in own]
    by_id = {query.id: query for query in dataset.queries}
    names = list(dict.fromkeys(row.query_id for row in answers))
    codes = code_clips([dataset.clip(row.answer_clip) for row in answers])
    scores = model.score_every(encode_questions(dataset, [by_id[name] for name in names]), codes)
    values = {
        (row.system, row.query_id, row.answer_index): float(scores[names.index(row.query_id), number])
        for number, row in enumerate(answers)
    }

    def beside(row: BenchRow) -> Compared:
        gold, lower = (values[system, row.query_id, row.answer_index] for system in (TOPLINE, row.system))
        # Two contrasts, as a pair of answers to two questions has.
        return Compared(row.style, (row.contrast_id, row.contrast_id), points_of(gold, lower))

    wrong, off_topic = ([beside(row) for row in rows[system]] for system in (BAD, OFF_TOPIC))
    return wrong, off_topic


def _hacks(model: RewardModel, rows: Sequence[AnswerRow], by_id: Mapping[str, Query]) -> dict[str, Any]:
    """Return how often a good answer out of order is worth at least that answer, for its own style, by kind."""
    good = [
        (by_id[str(row.query_id)], row)
        for row in rows
        if len(row.codes) > 1 and _scores(row).get(by_id[str(row.query_id)].style or "", 0.0) >= GOOD_FROM
    ]
    known = [(query, row.codes) for query, row in good if query.style in model.config.styles]
    if not known:
        return {}
    styles, rng = [query.style or "" for query, _ in known], np.random.default_rng(0)
    before = model.score_for(styles, [codes for _, codes in known])
    shares = {}
    for kind in HACKS:
        after = model.score_for(styles, [disordered(kind, codes, rng) for _, codes in known])
        values = [float(hack >= score) for hack, score in zip(after, before, strict=True)]
        shares[kind] = mean_by_cluster(values, [query.contrast_id for query, _ in known])
    return shares
