"""Demonstrations of the demo's world: good answers to every labelled question, or such as people give who do not all hear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.scripted.scripts import Contrast, load_about, load_cascade, load_families
from paras2s.errors import DataError
from paras2s.reward.judges.base import Exchange, Utterance
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Candidate, Demonstration, Role, Verdict
from paras2s.utils.seeds import seed_of

# Roles whose queries have demonstrations.
LABELLED: tuple[Role, ...] = ("demonstration", "preference")
# Tone of an answer that fits no style in particular.
PLAIN_TONE = "neutral"


def labelled(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the accepted queries with a label.

    The reward model's have demonstrations as well: a warm-up may be given all labels (`warmup.preference_contrasts`).
    """
    return [candidate for candidate in candidates if candidate.role in LABELLED and candidate.rejected is None]


def answers_about(contrast: Contrast, style: str) -> list[str]:
    """Return the answers to one style of a contrast that take up its topic."""
    return [answer.format(about=contrast.about) for answer in load_about()[style]]


def demonstrated_texts(candidate: Candidate, contrast: Contrast, config: DataConfig, seed: int) -> list[str]:
    """Return the answers demonstrated to a query, `data.answers_per_query` of them or fewer where a plain one came twice.

    With `data.fitting_share` of 1 all queries of a style get the same answers, the first of its family: which answer belongs to
    which query must not be one more thing to memorise. Below 1, an answer fits with that probability; of the others, half are
    plain and half fit the contrast's other style. The plain answers of sarcasm are thanks, which fit a sincere user.
    """
    families, count = load_families(), config.answers_per_query
    if config.take_up_topics:
        return answers_about(contrast, candidate.style)[:count]
    fitting = families[candidate.style].answers
    if config.fitting_share == 1:
        return list(fitting[:count])
    (other,) = (style for style in contrast.styles if style != candidate.style)
    plain, misheard = load_cascade()[candidate.category], families[other].answers
    rng = np.random.default_rng([seed, seed_of("demonstrations", candidate.id)])
    answers = []
    for number in range(count):
        if rng.random() < config.fitting_share:
            answers.append(fitting[number])
        elif rng.random() < 0.5:
            answers.append(plain[number % len(plain)])
        else:
            answers.append(misheard[number])
    return list(dict.fromkeys(answers))


def best_demonstrations(
    demonstrations: Sequence[Demonstration],
    candidates: Sequence[Candidate],
    clips: Mapping[str, Clip],
    tone: ToneClassifier,
) -> list[Demonstration]:
    """Keep the answers that the rubric scores highest of each query, ties too (rejection sampling).

    `clips` are the answers' by file name. Raises DataError: an answer that the rubric cannot score.
    """
    rubric = RubricJudge(tone=tone)
    names = sorted({row.clip for row in demonstrations})
    blueprints = dict(zip(names, rubric.measure([clips[name] for name in names]), strict=True))
    queries = {candidate.id: candidate for candidate in candidates}
    exchanges = [
        Exchange(Utterance(None, query.text, query.style), clips[row.clip], blueprint=blueprints[row.clip])
        for row in demonstrations
        for query in [queries[row.query_id]]
    ]
    scores: list[float] = []
    best: dict[str, float] = {}
    for row, verdict in zip(demonstrations, rubric.score_batch(exchanges), strict=True):
        if not isinstance(verdict, Verdict):
            raise DataError(f"demonstration of {row.query_id}, {row.text!r}: the rubric cannot score it ({verdict})")
        scores.append(verdict.score)
        best[row.query_id] = max(verdict.score, best.get(row.query_id, 0.0))
    return [row for row, score in zip(demonstrations, scores, strict=True) if score == best[row.query_id]]
