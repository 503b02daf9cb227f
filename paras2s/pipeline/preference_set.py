"""The preference set: answers that the SFT policy samples, and their scores by the teacher (ParaS2S, section 4.2).

Answers and scores are written as they come. A stopped run samples and judges the missing ones, and memory holds the
sound of no more answers than are judged together.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.data_gen.dataset import ClipFolder, Dataset, inside
from paras2s.data_gen.policy_inputs import code_clips, encode_questions
from paras2s.data_gen.tts.piper_world import USER_STYLES
from paras2s.errors import ConfigError, DataError
from paras2s.pipeline.people import PeopleTeacher, StudyAnswer, answer_key, is_people
from paras2s.policy.types import Sampling
from paras2s.policy.weights import fingerprint
from paras2s.reward.reward_model.degenerate import KINDS, degenerate_clip
from paras2s.reward.reward_model.model import EncodedQuestion
from paras2s.reward.reward_model.teachers import JudgeTeacher, Scores, Teacher, TeacherRequest
from paras2s.rollout.answer_files import AnswerShard, StoredAnswer, plan_shards, read_shard
from paras2s.rollout.samplers import LocalSampler, Sampler, WorkerSampler
from paras2s.run import Run
from paras2s.types import Query, Unscored
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, write_json, write_jsonl
from paras2s.utils.progress import progress_bar
from paras2s.utils.tables import size_text

# Answers that are judged together: chunks for 64 measuring processes, at most 9 GB of sound (31 s each, 24 kHz).
JUDGED_TOGETHER = 3072


@dataclass(frozen=True)
class Sampled:
    """Answers, and the query of each."""

    owners: list[int]
    answers: list[StoredAnswer]

    @property
    def coded_by_policy(self) -> bool:
        """Whether the codes are the policy's own, not made from its sound."""
        return all(answer.file is None for answer in self.answers)

    def parts(self, size: int) -> Iterator[Sampled]:
        """Return the same in parts of at most `size` answers."""
        for start in range(0, len(self.answers), size):
            part = slice(start, start + size)
            yield Sampled(self.owners[part], self.answers[part])


def study_answers(dataset: Dataset, queries: Sequence[Query], sampled: Sampled) -> list[StudyAnswer]:
    """Return sampled answers in the form that people are given."""
    return [
        StudyAnswer(
            answer_key(query.id, answer.codes),
            query.id,
            query.category or "",
            inside(dataset.folder, query.clip),
            answer.sound(),
        )
        for owner, answer in zip(sampled.owners, sampled.answers, strict=True)
        for query in [queries[owner]]
    ]


def open_sampler(run: Run) -> Sampler:
    """Open the sampler that this run's config names."""
    checkpoint = run.sft_dir.resolve()
    if run.config.distill.rollout is None:
        return LocalSampler(lambda: run.load_policy(checkpoint))
    return WorkerSampler(run.config, checkpoint)


@dataclass(frozen=True)
class SampleJob:
    """`count` answers to each of some queries; `stream` sets their seeds apart from those of other answers of the run."""

    queries: Sequence[Query]
    count: int
    stream: int


def sample_answers(run: Run, dataset: Dataset, jobs: Sequence[SampleJob]) -> list[Sampled]:
    """Sample all requested answers; shards of an earlier try are read. Raises ConfigError: the disk has no room for them."""
    planned = [_plan(run, job) for job in jobs]
    missing = [shard for shards in planned for shard in shards if read_shard(shard) is None]
    total = sum(len(job.queries) for job in jobs)
    with run.bar("answers sampled", total) as bar:
        done = total - sum(len(shard.queries) for shard in missing)
        for number, shard in enumerate(open_sampler(run).sample(ClipFolder(dataset.folder.resolve()), missing)):
            done += len(shard.queries)
            bar.at(done, total)
            if number == 0 and len(missing) > 1:
                _announce_size(run, shard, len(missing))
    return [
        Sampled(
            [owner for owner in range(len(job.queries)) for _ in range(job.count)], [a for s in shards for a in _written(s)]
        )
        for job, shards in zip(jobs, planned, strict=True)
    ]


def _plan(run: Run, job: SampleJob) -> list[AnswerShard]:
    temperature, seed = run.config.distill.temperature, run.config.seed
    sampling = Sampling(temperature, temperature, run.config.policy.max_answer_steps)
    # Absolute, since workers have other working directories.
    folder = (run.reward_dir / f"sampled-{job.stream}").resolve()
    made_of = key_of([fingerprint(run.sft_dir), seed, job.stream, temperature, sampling.max_steps])
    return plan_shards(folder, job.queries, job.count, sampling, seed, job.stream, made_of)


def _written(shard: AnswerShard) -> list[StoredAnswer]:
    answers = read_shard(shard)
    if answers is None:
        raise DataError(
            f"{shard.path}: a worker has written this shard elsewhere; put the run on storage that all machines share"
        )
    return answers


def _announce_size(run: Run, shard: AnswerShard, shards: int) -> None:
    """Log how much disk the answers take, estimated from the first shard. Raises ConfigError: the disk has less."""
    files = [shard.path, *(shard.sounds.iterdir() if shard.sounds.is_dir() else ())]
    needed = sum(file.stat().st_size for file in files) * (shards - 1)
    free = shutil.disk_usage(shard.folder).free
    run.say(f"  the answers take {size_text(needed)} more in {shard.folder}, which has {size_text(free)} left")
    if needed > free:
        raise ConfigError(
            f"distill.answers_per_query: the answers take {size_text(needed)} more and {shard.folder} has {size_text(free)} "
            "left; free some, or take fewer answers or shorter ones (policy.max_answer_steps)"
        )


def open_teacher(run: Run, dataset: Dataset) -> Teacher:
    """Open the teacher that the config names. Raises ConfigError: no such judge, a judge that must not teach, or no key."""
    from paras2s.configs.schema.judges import RUBRIC
    from paras2s.reward.judges.registry import open_scoring_judge
    from paras2s.reward.judges.rubric import RubricJudge

    config = run.config.distill
    if is_people(config.teacher):
        return PeopleTeacher(Path(config.teacher), config.max_unscored_share)
    if config.teacher == RUBRIC:
        return JudgeTeacher(RubricJudge(tone=dataset.agent_tone), styles=tuple(USER_STYLES))
    cache = {"cache_dir": str(run.config.cache_dir)}
    judge = open_scoring_judge(config.teacher, "distill.teacher", cache, dataset.agent_tone)
    return JudgeTeacher(judge, config.max_unscored_share)


@dataclass(frozen=True)
class JudgedAnswers:
    """Sampled answers to queries and the teacher's scores; `again`: codes of their sound where `codes` are the policy's own."""

    queries: Sequence[Query]
    encoded: Sequence[EncodedQuestion]
    owners: list[int]
    answers: list[StoredAnswer]
    scores: list[Scores | Unscored]
    durations_s: list[float]
    loudness_db: list[float]
    per_s: float
    again: list[np.ndarray] | None

    @cached_property
    def codes(self) -> list[np.ndarray]:
        """Codes [T, K] of the embedded codec."""
        return [answer.codes for answer in self.answers]

    @property
    def coded_again(self) -> list[np.ndarray]:
        """The codes that the answers' sound is coded into."""
        return self.codes if self.again is None else self.again

    def only(self, places: Sequence[int]) -> JudgedAnswers:
        """Return the same, of some answers alone."""
        fields: tuple[list[Any], ...] = (self.owners, self.answers, self.scores, self.durations_s, self.loudness_db)
        owners, answers, scores, durations, loudness = ([field[index] for index in places] for field in fields)
        again = None if self.again is None else [self.again[index] for index in places]
        return JudgedAnswers(self.queries, self.encoded, owners, answers, scores, durations, loudness, self.per_s, again)

    def scored(self) -> list[tuple[int, float]]:
        """Return (answer, score for its own style) of the answers that have a score."""
        return [
            (index, scores[style])
            for index, scores in enumerate(self.scores)
            if isinstance(scores, dict) and (style := self.queries[self.owners[index]].style or "") in scores
        ]


def judge_sampled(
    run: Run,
    dataset: Dataset,
    teacher: Teacher,
    queries: Sequence[Query],
    sampled: Sampled,
    with_bar: bool = True,
    folder: Path | None = None,
    later: int = 0,
) -> JudgedAnswers:
    """Score all answers by the teacher, part by part; `per_s` counts the time it takes to measure them too.

    `with_bar` False: another bar is shown meanwhile, and there can be only one. `folder` keeps the scores of a teacher without
    a cache of its own, None: the reward model's. The run will score `later` more answers, whose cost is logged as well.
    """
    started = time.perf_counter()
    folder = folder or run.reward_dir
    if not teacher.free:
        _announce_cost(run, dataset, teacher, queries, sampled, later)
    tell = run.save_progress if with_bar else None
    total = len(sampled.answers)
    scores: list[Scores | Unscored] = []
    durations_s: list[float] = []
    loudness_db: list[float] = []
    again: list[np.ndarray] = []
    with progress_bar(run.console, "answers judged", total, run.quiet or not with_bar, tell) as bar:
        for part in sampled.parts(JUDGED_TOGETHER):
            clips = [answer.sound() for answer in part.answers]
            before = len(scores)
            requests = _requests(dataset, queries, part, clips)
            scores += _score(folder, teacher, requests, lambda done, _, before=before: bar.at(before + done, total))
            durations_s += [clip.duration_s for clip in clips]
            loudness_db += [_loudness_db(clip) for clip in clips]
            again += code_clips(clips) if sampled.coded_by_policy else []
    unscored = [score for score in scores if isinstance(score, Unscored)]
    if unscored:
        run.say(f"  {len(unscored)} of {len(scores)} answers have no score (the first: {unscored[0].reason})")
    per_s = total / (time.perf_counter() - started)
    encoded = encode_questions(dataset, queries)
    owners, answers, coded = sampled.owners, sampled.answers, again if sampled.coded_by_policy else None
    return JudgedAnswers(queries, encoded, owners, answers, scores, durations_s, loudness_db, per_s, coded)


def _requests(dataset: Dataset, queries: Sequence[Query], part: Sampled, clips: Sequence[Clip]) -> list[TeacherRequest]:
    of_answers = [queries[owner] for owner in part.owners]
    return [
        TeacherRequest(q.text or "", q.style or "", inside(dataset.folder, q.clip), clip, answer_key(q.id, answer.codes))
        for q, clip, answer in zip(of_answers, clips, part.answers, strict=True)
    ]


def _announce_cost(
    run: Run, dataset: Dataset, teacher: Teacher, queries: Sequence[Query], sampled: Sampled, later: int
) -> None:
    """Log the most that the scores cost, and those of `later` at the same price an answer."""
    calls = 0
    usd: float | None = 0.0
    for part in sampled.parts(JUDGED_TOGETHER):
        cost = teacher.cost(_requests(dataset, queries, part, [answer.sound() for answer in part.answers]))
        # A price that is not known once is known nowhere.
        calls, usd = calls + cost.calls, None if cost.usd is None or usd is None else usd + cost.usd
    if calls:
        price = _price(usd)
        run.say(f"  {teacher.name} scores {calls} answers, for {price}; cached scores cost nothing")
        if later:
            price = _price(None if usd is None else usd / calls * later)
            run.say(f"  while the policy is aligned, up to {later} more (distill.refresh_every), for {price}")


def _price(usd: float | None) -> str:
    return "an unknown price" if usd is None else f"at most {usd:.2f} USD"


def _score(folder: Path, teacher: Teacher, requests: Sequence[TeacherRequest], on_progress: Any) -> list[Scores | Unscored]:
    """Score one part. Scores of a teacher without a cache of its own are stored for resumed runs."""
    if not teacher.free:
        return teacher.scores(requests, on_progress)
    path = folder / "judged" / f"{key_of([teacher.name, [[request.key, request.style] for request in requests]])[:32]}.json"
    if not path.is_file():
        scores = teacher.scores(requests, on_progress)
        write_json(path, [{"unscored": vars(score)} if isinstance(score, Unscored) else {"scores": score} for score in scores])
    return [row["scores"] if "scores" in row else Unscored(**row["unscored"]) for row in read_json(path)]


def _loudness_db(clip: Clip) -> float:
    return float(10 * np.log10(np.mean(clip.samples**2) + 1e-10)) if len(clip.samples) else -100.0


def degenerate_answers(dataset: Dataset, per_kind: int, seed: int) -> dict[str, list[Clip]]:
    """Make degenerate relatives of demonstrated answers, by kind."""
    demonstrated = sorted({demonstration.clip for demonstration in dataset.demonstrations})
    by_kind: dict[str, list[Clip]] = {kind: [] for kind in KINDS}
    for number in range(per_kind):
        answer = dataset.clip(demonstrated[(seed + number) % len(demonstrated)])
        for kind in KINDS:
            by_kind[kind].append(degenerate_clip(kind, answer, seed + number))
    return by_kind


def save_preferences(run: Run, judged: JudgedAnswers) -> None:
    """Save the preference set for people to look at: query, answer, scores by style or why there are none."""
    rows = []
    both = zip(judged.owners, judged.answers, judged.durations_s, judged.scores, strict=True)
    for owner, answer, duration_s, scores in both:
        unscored = scores.reason if isinstance(scores, Unscored) else None
        row = {"query_id": judged.queries[owner].id, "style": judged.queries[owner].style, "steps": len(answer.codes)}
        rows.append(row | {"duration_s": duration_s, "scores": None if unscored else scores, "unscored": unscored})
    write_jsonl(run.reward_dir / "preferences.jsonl", rows)
