"""People as the teacher of a reward model: their scores or their choices between answers, from the files of a listening study.

The first `paras2s distill` samples the answers, writes them as items of a study and stops; with people's answers it continues.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.bench.human_correlation import load_ratings
from paras2s.bench.results import HIGHEST_SCORE, LOWEST_SCORE
from paras2s.bench.speakbench.data import load_pairs
from paras2s.configs.schema.run import PEOPLE_SUFFIXES
from paras2s.errors import JudgeError
from paras2s.reward.judges.votes import POINTS
from paras2s.reward.reward_model.teachers import Cost, Progress, Scores, TeacherRequest
from paras2s.types import Unscored
from paras2s.utils.io import write_jsonl

SCORES_SUFFIX, CHOICES_SUFFIX = PEOPLE_SUFFIXES


def is_people(teacher: str) -> bool:
    """Return whether `distill.teacher` names a study's file, by its suffix."""
    return Path(teacher).suffix.lower() in PEOPLE_SUFFIXES


def answer_key(query_id: str, codes: np.ndarray) -> str:
    """Name an answer, codes [T, K], in a study: equal answers to one query share the name, in every run."""
    return f"{query_id}.{hashlib.sha256(np.ascontiguousarray(codes, dtype='<i4').tobytes()).hexdigest()[:12]}"


def read_scores(path: Path) -> dict[str, float]:
    """Read each answer's score on the scale 1 to 5, by its key.

    Of ratings (`ratings.csv`) the mean over raters. Of choices (`labels.json`) the share of its pairs that an answer won, a tie
    of either kind half a win, laid over the scale: it compares the answers to one query and nothing else, as GRPO does.

    Raises:
        DataError: missing, empty or a wrong row; names the fault.
    """
    given: dict[str, list[float]] = {}
    if path.suffix.lower() == SCORES_SUFFIX:
        for rating in load_ratings(path):
            given.setdefault(rating.id, []).append(rating.score)
        return {key: fmean(scores) for key, scores in given.items()}
    for pair in load_pairs(path):
        points = POINTS[pair.label.overall]
        given.setdefault(pair.model_a, []).append(points)
        given.setdefault(pair.model_b, []).append(1.0 - points)
    return {key: LOWEST_SCORE + (HIGHEST_SCORE - LOWEST_SCORE) * fmean(points) for key, points in given.items()}


class PeopleTeacher:
    """People's scores of sampled answers; a missing file has none. Raises DataError: the file is wrong."""

    free = False
    spent = Cost(0, 0.0)

    def __init__(self, path: Path, max_unscored_share: float) -> None:
        self.path, self.max_unscored_share = path, max_unscored_share
        self._scores = read_scores(path) if path.exists() else {}
        digest = hashlib.sha256(repr(sorted(self._scores.items())).encode()).hexdigest()[:12]
        self.name = f"people/{digest}"

    def has(self, key: str) -> bool:
        """Return whether people scored this answer."""
        return key in self._scores

    def scores(self, requests: Sequence[TeacherRequest], on_progress: Progress) -> list[Scores | Unscored]:
        """Score answers in order, each for its own style alone."""
        on_progress(len(requests), len(requests))
        missing = Unscored(self.name, f"no score by people in {self.path}")
        return [{request.style: self._scores[request.key]} if self.has(request.key) else missing for request in requests]

    def cost(self, requests: Sequence[TeacherRequest]) -> Cost:
        """Return no cost: nothing is paid by the call."""
        return self.spent


@dataclass(frozen=True)
class StudyAnswer:
    """An answer that people may be given: its key, its query, the question's clip and its own sound."""

    key: str
    query_id: str
    category: str
    question: Path
    clip: Clip


def require_people(teacher: PeopleTeacher, answers: Sequence[StudyAnswer], folder: Path) -> None:
    """Require that people scored enough of a run's answers; else write the others as items of a study.

    An answer without sound cannot be played: it has no item, and is not counted.

    Raises:
        JudgeError: more answers lack a score than `max_unscored_share`; names the commands to collect scores.
    """
    audible = {answer.key: answer for answer in answers if len(answer.clip.samples)}
    missing = [answer for answer in audible.values() if not teacher.has(answer.key)]
    if len(missing) <= teacher.max_unscored_share * len(audible):
        return
    in_pairs = teacher.path.suffix.lower() == CHOICES_SUFFIX
    items = _write_items(list(audible.values()) if in_pairs else missing, teacher, folder, in_pairs)
    kind, exported = ("pair", "labels.json") if in_pairs else ("single", "ratings.csv")
    if not items:
        raise JudgeError(
            f"distill.teacher: {teacher.path}: {len(missing)} of {len(audible)} answers are the only one to their question, so "
            f"there is nothing to choose from; raise distill.answers_per_query, or let people score them (FILE.csv)"
        )
    lacks = "has no score for" if teacher.path.exists() else "is missing, so there is no score for"
    source, study = shlex.quote(str(folder / "items.jsonl")), shlex.quote(str(folder / "study"))
    raise JudgeError(
        f"distill.teacher: {teacher.path} {lacks} {len(missing)} of {len(audible)} answers, more than "
        f"distill.max_unscored_share allows. {items} items of a listening study are in {folder / 'items.jsonl'}. Let people "
        f"listen: `paras2s study new {source} --kind {kind} --out {study} --annotator NAME`, `paras2s studio {study}`, "
        f"`paras2s study export {study} --out EXPORT`; add EXPORT/{exported} to {teacher.path}, and run this again: the "
        "answers stay the same"
    )


def _write_items(answers: Sequence[StudyAnswer], teacher: PeopleTeacher, folder: Path, in_pairs: bool) -> int:
    """Write items.jsonl and its clips; return how many items there are."""
    by_query: dict[str, list[StudyAnswer]] = {}
    for answer in answers:
        by_query.setdefault(answer.query_id, []).append(answer)
    rows: list[dict[str, Any]] = []
    for number, group in enumerate(by_query.values()):
        # Pairs of answers that all have a score were chosen between already.
        several = [pair for pair in combinations(group, 2) if not all(teacher.has(answer.key) for answer in pair)]
        question = f"clips/question-{number:05d}.wav"
        clip_of = {answer.key: f"clips/{answer.key.replace('/', '_')}.wav" for answer in group}
        if several or not in_pairs:
            write_clip(folder / question, read_clip(group[0].question))
            for answer in group:
                write_clip(folder / clip_of[answer.key], answer.clip)
        for together in several if in_pairs else [(answer,) for answer in group]:
            names = [clip_of[answer.key] for answer in together]
            systems = [answer.key if in_pairs else "policy" for answer in together]
            rows.append(
                {
                    "id": together[0].query_id if in_pairs else together[0].key,
                    "instruction_id": together[0].query_id,
                    "category": together[0].category or "all",
                    "question": question,
                    "answers": [{"system": s, "clip": name} for s, name in zip(systems, names, strict=True)],
                }
            )
    write_jsonl(folder / "items.jsonl", rows)
    return len(rows)
