"""Answers of systems other than the policy, to train and to probe the reward model.

The SFT policy's own samples show one take of each demonstrated sentence. A reward model that sees no others learns the takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paras2s.audio.synthesis import Speaker
from paras2s.data_gen.scripted.build import answer_take
from paras2s.data_gen.scripted.scripts import load_families
from paras2s.data_gen.tts.render import Take, render
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.reward_model.teachers import Scores, Teacher, TeacherRequest
from paras2s.run import Run
from paras2s.types import Unscored

# A voice that the reward model never learns from.
OTHER_VOICE = Speaker("other", 1.06, 1.01)
# Takes of a sentence in its own tone: these are learned from, and one more is kept out.
TAUGHT_TAKES = 2


@dataclass(frozen=True)
class SpokenAnswer:
    """A scripted answer to one style. `group` says what of it is kept out of training: "" (nothing), "take", "sentence",
    "voice"; `in_tone` whether it is spoken in the tone that fits the style.
    """

    style: str
    group: str
    in_tone: bool
    take: Take


@dataclass(frozen=True)
class JudgedSpoken:
    """A spoken answer, its codes [T, K] and its scores by style."""

    spoken: SpokenAnswer
    codes: np.ndarray
    scores: Scores


def plan_spoken(styles: Sequence[str]) -> list[SpokenAnswer]:
    """Plan the scripted answers to some styles: in several takes, in a tone against the words, in another voice.

    Of each style the last sentence is kept out of training whole; of the others a take, and the other voice.
    """
    contrary = RubricJudge().rubric.contrary
    planned = []
    for style, family in load_families().items():
        if style not in styles:
            continue
        against = contrary[family.tone][0]
        last = len(family.answers) - 1
        for number, text in enumerate(family.answers):
            # The dataset's answers were chosen from these takes, so most are in the cache.
            takes = [answer_take(text, family.tone, n) for n in range(TAUGHT_TAKES + 1)]
            planned += [
                SpokenAnswer(style, "sentence" if number == last else "take" if n == TAUGHT_TAKES else "", True, take)
                for n, take in enumerate(takes)
            ]
            wrong = answer_take(text, against, 0)
            planned.append(SpokenAnswer(style, "sentence" if number == last else "", False, wrong))
        voiced = replace(answer_take(family.answers[0], family.tone, 0), speaker=OTHER_VOICE)
        planned.append(SpokenAnswer(style, "voice", True, voiced))
    return planned


def judge_spoken(run: Run, teacher: Teacher, styles: Sequence[str]) -> list[JudgedSpoken]:
    """Speak the planned answers and have them scored; those without a score are left out and logged."""
    planned = plan_spoken(styles)
    texts = len({answer.take.text for answer in planned})
    with run.bar("other answers spoken", texts) as bar:
        rendered = render([answer.take for answer in planned], run.config.cache_dir, bar.at)
        bar.at(texts, texts)
    requests = [TeacherRequest("", answer.style, None, clip.clip) for answer, clip in zip(planned, rendered, strict=True)]
    with run.bar("other answers judged", len(requests)) as bar:
        judged = teacher.scores(requests, bar.at)
    if failed := sum(isinstance(scores, Unscored) for scores in judged):
        run.say(f"  {failed} of {len(judged)} spoken answers have no score and are left out")
    return [
        JudgedSpoken(answer, clip.features.codes, scores)
        for answer, clip, scores in zip(planned, rendered, judged, strict=True)
        if not isinstance(scores, Unscored)
    ]
