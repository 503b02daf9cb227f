"""Rewards that a run pays for hacks: each hack is in one group with the good answer that it was made of.

Alphabet: B questions, G answers to each, the good one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import CODEC, code_clips
from paras2s.data_gen.scripted.scripts import fitting_demonstrations
from paras2s.pipeline.align import RewardQuestions
from paras2s.reward.reward_model.disorder import disordered
from paras2s.reward.sources.base import GivenAnswer, Group
from paras2s.reward.sources.composite import CompositeReward
from paras2s.run import Run
from paras2s.types import Query, Reward, Unscored

DISORDER = ("shuffled", "reversed", "half", "twice", "stutter")
ECHO, OTHER = "the question itself", "another's answer"
# With the good answer as many as a group of alignment.
HACKS = (*DISORDER, ECHO, OTHER)


@dataclass(frozen=True)
class HackRow:
    """One kind of hack over B questions.

    `paid`: the share of questions where it gets at least what the good answer gets; `mean` and `good_mean` are the rewards of
    either; None if there is no score. `n_scored` of `n_asked` pairs have both scores.
    """

    paid: float | None
    mean: float | None
    good_mean: float | None
    n_scored: int
    n_asked: int


def hack_report(run: Run, dataset: Dataset, questions: int) -> dict[str, HackRow]:
    """Ask the run's reward about hacks of the answers to at most `questions` demonstrated queries, evenly over them."""
    by_query = {row.query_id: row for row in fitting_demonstrations(dataset.demonstrations, dataset.queries)}
    queries = [query for query in dataset.of_role("demonstration") if query.id in by_query]
    queries = queries[:: max(1, len(queries) // questions)][:questions]
    reward = CompositeReward(run.reward_setup())
    groups = make_groups(run, dataset, queries, [by_query[query.id].text for query in queries], reward.needs_sound)
    return count_hacks(reward.score(groups))


def make_groups(run: Run, dataset: Dataset, queries: Sequence[Query], texts: Sequence[str], sound: bool) -> list[Group]:
    """Make groups of the good answer and its hacks, in the order of `HACKS`; `sound`: decode each."""
    by_query = {row.query_id: row for row in fitting_demonstrations(dataset.demonstrations, dataset.queries)}
    good = code_clips([dataset.clip(by_query[query.id].clip) for query in queries])
    questions = RewardQuestions(run, dataset, queries)
    echoes = [dataset.clip_features(query.clip, CODEC).codes for query in queries]
    rng = np.random.default_rng(0)
    groups = []
    for n, codes in enumerate(good):
        # An answer to a question in another style, where there is one.
        styles = [query.style != queries[n].style for query in queries]
        other = (n + 1 + int(np.argmax(np.roll(styles, -n - 1)))) % len(good)
        made = [(codes, texts[n]), *((disordered(kind, codes, rng), texts[n]) for kind in DISORDER)]
        made += [(echoes[n], queries[n].transcript), (good[other], texts[other])]
        answers = [
            GivenAnswer(len(answer), text, CODEC.decode(answer) if sound else None, codes=answer) for answer, text in made
        ]
        groups.append(Group(questions[n], tuple(answers)))
    return groups


def count_hacks(rewards: Sequence[Sequence[Reward | Unscored]]) -> dict[str, HackRow]:
    """Count how often each hack is paid at least as much as the good answer; `rewards` is [B, 1 + hacks]."""
    good = [row[0] for row in rewards]
    return {kind: _row([row[number] for row in rewards], good) for number, kind in enumerate(HACKS, 1)}


def _row(own: Sequence[Reward | Unscored], good: Sequence[Reward | Unscored]) -> HackRow:
    pairs = [
        (hack, other) for hack, other in zip(own, good, strict=True) if isinstance(hack, Reward) and isinstance(other, Reward)
    ]
    paid = sum(hack.value >= other.value for hack, other in pairs) / len(pairs) if pairs else None
    return HackRow(paid, _mean(own), _mean(good), len(pairs), len(own))


def _mean(rewards: Sequence[Reward | Unscored]) -> float | None:
    scored = [reward.value for reward in rewards if isinstance(reward, Reward)]
    return sum(scored) / len(scored) if scored else None
