"""The preference set: answers that the SFT policy samples, and what the teacher scores them (ParaS2S, section 4.2)."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.data_gen.dataset import Dataset, inside
from paras2s.data_gen.policy_inputs import CODEC, code_clips, encode_questions
from paras2s.data_gen.tts.piper_world import USER_STYLES
from paras2s.errors import AudioError
from paras2s.pipeline.people import PeopleTeacher, StudyAnswer, answer_key, is_people
from paras2s.policy.base import Policy
from paras2s.policy.types import Prompt, Sampling
from paras2s.reward.reward_model.degenerate import KINDS, degenerate_clip
from paras2s.reward.reward_model.model import EncodedQuestion
from paras2s.reward.reward_model.teachers import LLMTeacher, RubricTeacher, Scores, Teacher, TeacherRequest
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.rollout.reward_inputs import embedded_codes
from paras2s.run import Run
from paras2s.types import Query, Unscored
from paras2s.utils.io import write_bytes, write_jsonl
from paras2s.utils.progress import progress_bar

BATCH_QUERIES = 16


@dataclass(frozen=True)
class Sampled:
    """Answers as the embedded codec's codes [T, K], and which query each was given to. Stored before a judge is paid.

    `clips` is their sound where the policy has a codec of its own, None where the codes are all there is.
    """

    owners: list[int]
    codes: list[np.ndarray]
    clips: list[Clip] | None = None

    def sounds(self) -> list[Clip]:
        """The answers' sound, decoded where the codes are all there is."""
        return self.clips if self.clips is not None else [CODEC.decode(one) for one in self.codes]


def study_answers(dataset: Dataset, queries: Sequence[Query], sampled: Sampled) -> list[StudyAnswer]:
    """Sampled answers as people may be given them."""
    return [
        StudyAnswer(answer_key(query.id, codes), query.id, query.category or "", inside(dataset.folder, query.clip), clip)
        for owner, codes, clip in zip(sampled.owners, sampled.codes, sampled.sounds(), strict=True)
        for query in [queries[owner]]
    ]


def sample_answers(
    run: Run, policy: Policy, queries: Sequence[Query], prompts: Sequence[Prompt], count: int, stream: int
) -> Sampled:
    """Sample `count` answers to each query, or read those of an earlier try that was stopped."""
    path = run.reward_dir / f"sampled-{stream}.npz"
    query_ids = [query.id for query in queries]
    sounds = policy.spec.code_format != CODEC.version
    if (kept := _load_sampled(path, query_ids, count, sounds)) is not None:
        return kept
    engine = NativeEngine(policy)
    temperature = run.config.distill.temperature
    sampling = Sampling(temperature, temperature, run.config.policy.max_answer_steps)
    owners: list[int] = []
    codes: list[np.ndarray] = []
    clips: list[Clip] = []
    with run.bar("answers sampled", len(queries)) as bar:
        for start in range(0, len(queries), BATCH_QUERIES):
            part = slice(start, start + BATCH_QUERIES)
            seeds = answer_seeds(run.config.seed, stream + start, range(len(query_ids[part])), count)
            for number, rollout in enumerate(engine.generate(query_ids[part], prompts[part], count, sampling, seeds, sounds)):
                owners += [start + number] * count
                codes += embedded_codes(rollout, CODEC)
                clips += [Clip(wave, rollout.sample_rate_hz) for wave in rollout.waves] if sounds else []
            bar.at(min(start + BATCH_QUERIES, len(queries)), len(queries))
    buffer = io.BytesIO()
    width = CODEC.num_codebooks
    flat = np.concatenate([np.zeros((0, width), dtype=np.int16), *(one.astype(np.int16) for one in codes)])
    arrays: dict[str, Any] = {"asked": np.array(query_ids)}  # The name that files of earlier versions have.
    np.savez(buffer, **arrays, owners=owners, steps=[len(one) for one in codes], codes=flat)
    for number, clip in enumerate(clips):
        if len(clip.samples):
            write_clip(_sound(path, number), clip)
    write_bytes(path, buffer.getvalue())
    return Sampled(owners, codes, clips if sounds else None)


def _sound(path: Path, number: int) -> Path:
    return path.with_suffix("") / f"{number:06d}.wav"


def _load_sampled(path: Path, query_ids: Sequence[str], count: int, sounds: bool) -> Sampled | None:
    """The stored answers; None where there are none, or they are of other queries."""
    try:
        with np.load(path) as held:
            if held["asked"].tolist() != list(query_ids) or len(held["owners"]) != count * len(query_ids):
                return None
            edges = np.cumsum(held["steps"])[:-1]
            codes = np.split(held["codes"].astype(np.int64), edges)
            if not sounds:
                return Sampled(held["owners"].tolist(), list(codes))
            clips = [read_clip(_sound(path, n)) if len(one) else CODEC.decode(one) for n, one in enumerate(codes)]
            return Sampled(held["owners"].tolist(), list(codes), clips)
    except (AudioError, OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def open_teacher(run: Run, dataset: Dataset) -> Teacher:
    """The teacher that the config names.

    Raises:
        ConfigError: no such judge, one that must not teach, or it lacks its key.
    """
    from paras2s.reward.judges.registry import RUBRIC, open_llm_judge, refuse_to_teach

    config = run.config.distill
    refuse_to_teach(config.teacher, "distill.teacher")
    if is_people(config.teacher):
        return PeopleTeacher(Path(config.teacher), config.max_unscored_share)
    if config.teacher == RUBRIC:
        return RubricTeacher(dataset.agent_tone, tuple(USER_STYLES))
    cache = {"cache_dir": str(run.config.cache_dir)}
    return LLMTeacher(open_llm_judge(config.teacher, cache, tone=dataset.agent_tone), config.max_unscored_share)


@dataclass(frozen=True)
class JudgedAnswers:
    """Sampled answers to some queries and what the teacher says of each.

    `coded_again` are the codes that the answers' sound is coded into, where `codes` are the policy's own; else the same.
    """

    queries: Sequence[Query]
    encoded: Sequence[EncodedQuestion]
    owners: list[int]
    codes: list[np.ndarray]
    clips: list[Clip]
    scores: list[Scores | Unscored]
    per_s: float
    coded_again: list[np.ndarray]

    def only(self, places: Sequence[int]) -> JudgedAnswers:
        """The same, of some answers alone."""
        fields: tuple[list[Any], ...] = (self.owners, self.codes, self.clips, self.scores, self.coded_again)
        owners, codes, clips, scores, again = ([field[place] for place in places] for field in fields)
        return JudgedAnswers(self.queries, self.encoded, owners, codes, clips, scores, self.per_s, again)

    def scored(self) -> list[tuple[int, float]]:
        """(answer, score for its own style) of those that have one."""
        return [
            (place, scores[style])
            for place, scores in enumerate(self.scores)
            if isinstance(scores, dict) and (style := self.queries[self.owners[place]].style or "") in scores
        ]


def judge_sampled(
    run: Run,
    dataset: Dataset,
    teacher: Teacher,
    queries: Sequence[Query],
    sampled: Sampled,
    with_bar: bool = True,
) -> JudgedAnswers:
    """Score all answers by the teacher; `per_s` counts the time it takes to measure them too.

    `with_bar` False: another bar is shown meanwhile, and there can be only one.
    """
    owners, codes = sampled.owners, sampled.codes
    clips = sampled.sounds()
    of_answers = [queries[owner] for owner in owners]
    requests = [
        TeacherRequest(q.text or "", q.style or "", inside(dataset.folder, q.clip), clip, answer_key(q.id, one))
        for q, clip, one in zip(of_answers, clips, codes, strict=True)
    ]
    started = time.perf_counter()
    cost = teacher.cost(requests)
    if cost.calls:
        usd = "an unknown price" if cost.usd is None else f"at most {cost.usd:.2f} USD"
        run.say(f"  {teacher.name} scores {cost.calls} answers, for {usd}; cached scores cost nothing")
    tell = run.save_progress if with_bar else None
    with progress_bar(run.console, "answers judged", len(clips), run.quiet or not with_bar, tell) as bar:
        scores = teacher.scores(requests, bar.at)
    unscored = [one for one in scores if isinstance(one, Unscored)]
    if unscored:
        run.say(f"  {len(unscored)} of {len(scores)} answers have no score (the first: {unscored[0].reason})")
    per_s = len(clips) / (time.perf_counter() - started)
    again = codes if sampled.clips is not None else code_clips(clips)
    return JudgedAnswers(queries, encode_questions(dataset, queries), owners, codes, clips, scores, per_s, again)


def degenerate_answers(dataset: Dataset, per_kind: int, seed: int) -> dict[str, list[Clip]]:
    """Degenerate relatives of demonstrated answers, by kind."""
    demonstrated = sorted({one.clip for one in dataset.demonstrations})
    found: dict[str, list[Clip]] = {kind: [] for kind in KINDS}
    for number in range(per_kind):
        answer = dataset.clip(demonstrated[(seed + number) % len(demonstrated)])
        for kind in KINDS:
            found[kind].append(degenerate_clip(kind, answer, seed + number))
    return found


def save_preferences(run: Run, judged: JudgedAnswers) -> None:
    """The preference set, to be looked at: which answer to which query, its scores by style or why it has none."""
    rows = []
    for owner, codes, clip, scores in zip(judged.owners, judged.codes, judged.clips, judged.scores, strict=True):
        unscored = scores.reason if isinstance(scores, Unscored) else None
        row = {"query_id": judged.queries[owner].id, "style": judged.queries[owner].style, "steps": len(codes)}
        rows.append(row | {"duration_s": clip.duration_s, "scores": None if unscored else scores, "unscored": unscored})
    write_jsonl(run.reward_dir / "preferences.jsonl", rows)
