"""Scores of a reward model outside its training answers: degenerate audio, disorder, other takes, sentences, voices."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paras2s.data_gen.dataset import Dataset, inside
from paras2s.data_gen.policy_inputs import CODEC, code_clips
from paras2s.pipeline.other_answers import JudgedSpoken
from paras2s.pipeline.preference_set import JudgedAnswers, degenerate_answers
from paras2s.pipeline.reward_agreement import PROBES_OF_EACH
from paras2s.reward.reward_model.disorder import KEPT_OUT, TAUGHT, disordered
from paras2s.reward.reward_model.model import RewardModel
from paras2s.reward.reward_model.teachers import Teacher, TeacherRequest

# A hack that scores more than this is worth something to a policy.
HACK_ABOVE = 1.5
GOOD_FROM = 5.0
ORIGINALS = 48


@dataclass(frozen=True)
class JudgedDegenerate:
    """Degenerate answers to held-out questions: kind, place of the question, codes [T, K] and the teacher's score, if any."""

    kinds: list[str]
    queries: list[int]
    codes: list[np.ndarray]
    scores: list[float | None]


def judge_degenerate(teacher: Teacher, held: JudgedAnswers, dataset: Dataset) -> JudgedDegenerate:
    """Make them and ask the teacher."""
    queries, by_kind = held.queries, degenerate_answers(dataset, PROBES_OF_EACH, seed=1000)
    rows = [(kind, number % len(queries), clip) for kind, clips in by_kind.items() for number, clip in enumerate(clips)]
    requests = [
        TeacherRequest(queries[n].text or "", queries[n].style or "", inside(dataset.folder, queries[n].clip), clip)
        for _, n, clip in rows
    ]
    verdicts = teacher.scores(requests, lambda done, total: None)
    scores = [
        verdict[request.style] if isinstance(verdict, dict) else None
        for request, verdict in zip(requests, verdicts, strict=True)
    ]
    codes = code_clips([clip for _, _, clip in rows])
    return JudgedDegenerate([kind for kind, _, _ in rows], [n for _, n, _ in rows], codes, scores)


def probe(model: RewardModel, held: JudgedAnswers, degenerate: JudgedDegenerate) -> dict[str, Any]:
    """Return the highest scores that teacher and reward model give degenerate answers to held-out questions, by kind."""
    predicted = model.score([held.encoded[n] for n in degenerate.queries], degenerate.codes)
    table = {}
    for kind in dict.fromkeys(degenerate.kinds):
        places = [index for index, other in enumerate(degenerate.kinds) if other == kind]
        scores = [score for p in places if (score := degenerate.scores[p]) is not None]
        table[kind] = {
            "judge_max": max(scores) if scores else None,
            "judge_unscored": len(places) - len(scores),
            "model_max": max(predicted[p] for p in places),
            "model_mean": float(np.mean([predicted[p] for p in places])),
            "n": len(places),
        }
    return table


def _row(
    model: RewardModel, answers: Sequence[np.ndarray], predicted: Sequence[float], judged: Sequence[float | None], taught: bool
) -> dict[str, Any]:
    """Make a row; `known` is the share like the model's training answers; the others would get no score as rewards."""
    known = [score for score in judged if score is not None]
    return {
        "taught": taught,
        "known": model.known_share(answers),
        "model_mean": float(np.mean(predicted)),
        "model_above": float(np.mean([score > HACK_ABOVE for score in predicted])),
        "judge_mean": float(np.mean(known)) if known else None,
        "n": len(predicted),
    }


@dataclass(frozen=True)
class JudgedDisorder:
    """Good held-out answers, each for a style, and the same out of order: codes [T, K] and the teacher's scores by kind."""

    styles: list[str]
    codes: dict[str, list[np.ndarray]]
    scores: dict[str, list[float | None]]


def judge_disorder(teacher: Teacher, held: JudgedAnswers, known: Collection[str]) -> JudgedDisorder:
    """Disorder good answers of known styles, or answer by the question, and ask a teacher that costs nothing."""
    style_of = {index: held.queries[held.owners[index]].style or "" for index, score in held.scored() if score >= GOOD_FROM}
    good = [p for p, style in style_of.items() if style in known and len(held.codes[p]) >= 2][:ORIGINALS]
    styles = [style_of[index] for index in good]
    rng = np.random.default_rng(0)
    codes = {"original": [held.codes[index] for index in good]}
    codes |= {kind: [disordered(kind, held.codes[p], rng) for p in good] for kind in (*TAUGHT, *KEPT_OUT)}
    codes["question"] = [held.encoded[held.owners[index]].codes for index in good]
    judged: list[float | None] = [None] * (len(codes) * len(good))
    if teacher.free:
        both = [(style, codes_of) for answers in codes.values() for style, codes_of in zip(styles, answers, strict=True)]
        requests = [TeacherRequest("", style, None, CODEC.decode(codes_of)) for style, codes_of in both]
        verdicts = teacher.scores(requests, lambda done, total: None)
        judged = [
            verdict.get(style) if isinstance(verdict, dict) else None
            for verdict, (style, _) in zip(verdicts, both, strict=True)
        ]
    return JudgedDisorder(styles, codes, {kind: judged[n * len(good) : (n + 1) * len(good)] for n, kind in enumerate(codes)})


def disorder_report(model: RewardModel, disorder: JudgedDisorder) -> dict[str, Any]:
    """Score good held-out answers, and the same answers out of order, for the style of the question, by kind."""
    if not disorder.styles:
        return {}
    return {
        kind: _row(model, answers, model.score_for(disorder.styles, answers), disorder.scores[kind], kind in TAUGHT)
        for kind, answers in disorder.codes.items()
    }


def spoken_report(model: RewardModel, spoken: Sequence[JudgedSpoken]) -> dict[str, Any]:
    """Score scripted answers for their own style by part; `right_tone_above`: a kept-out take above the wrong tone's."""
    table: dict[str, Any] = {}
    predicted = model.score_for([answer.spoken.style for answer in spoken], [answer.codes for answer in spoken])
    for group in ("", "take", "sentence", "voice"):
        for in_tone in (True, False):
            rows = [n for n, answer in enumerate(spoken) if (answer.spoken.group, answer.spoken.in_tone) == (group, in_tone)]
            if rows:
                name = f"{group or 'taught'}, {'right' if in_tone else 'wrong'} tone"
                judged = [spoken[n].scores.get(spoken[n].spoken.style) for n in rows]
                codes = [spoken[n].codes for n in rows]
                table[name] = _row(model, codes, [predicted[n] for n in rows], judged, group == "")
    above: list[bool] = []
    for n, answer in enumerate(spoken):
        if answer.spoken.in_tone and answer.spoken.group in ("take", "sentence"):
            text = answer.spoken.take.text
            above += [
                predicted[n] > predicted[m]
                for m, other in enumerate(spoken)
                if other.spoken.take.text == text and not other.spoken.in_tone
            ]
    table["right_tone_above"] = {"share": float(np.mean(above)) if above else None, "n": len(above)}
    return table
