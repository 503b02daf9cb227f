"""Dynamic sampling (DAPO, section 3.2): queries whose groups are flat teach nothing, so others are sampled in their place.

Which queries, in which augmentation and with which seeds, depends on the run's seed, the step and the round alone: a resumed
run samples what the uninterrupted one did. Unscored answers are no reason to sample again; they are counted as everywhere.
Left out: taking the replacements out of later steps, which ask every prompt once an epoch in any case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from paras2s.rollout.orchestrator import PromptBatch, Rewards
from paras2s.types import Reward, Rollout, Unscored

Item = TypeVar("Item")
# Random stream of the replacements, beside those in grpo.py.
STREAM = 9
# A round's seeds are those of a step that no run reaches, and no other round of any step has.
ROUND_STRIDE = 4_000_000


@dataclass(frozen=True)
class StepAnswers:
    """The prompts of a step [B], their rollouts [B] and rewards [B, G]."""

    prompts: PromptBatch
    rollouts: list[Rollout]
    rewards: Rewards

    def with_groups(self, places: Sequence[int], others: StepAnswers) -> StepAnswers:
        """The same step with other groups in these places, in order."""
        found = dict(zip(places, range(len(places)), strict=True))

        def swapped(own: Sequence[Item], new: Sequence[Item]) -> list[Item]:
            return [new[found[place]] if place in found else one for place, one in enumerate(own)]

        prompts = replace(
            self.prompts,
            prompts=tuple(swapped(self.prompts.prompts, others.prompts.prompts)),
            questions=tuple(swapped(self.prompts.questions, others.prompts.questions)),
            seeds=tuple(swapped(self.prompts.seeds, others.prompts.seeds)),
        )
        return StepAnswers(prompts, swapped(self.rollouts, others.rollouts), swapped(self.rewards, others.rewards))


def replacement_rows(used: Sequence[int], count: int, available: int, seed: int, step: int, number: int) -> list[int]:
    """Rows of the prompts for round `number` of a step: first those that the step has not sampled, then all again."""
    order = [int(row) for row in np.random.default_rng([seed, STREAM, step, number]).permutation(available)]
    there = set(used)
    fresh = [row for row in order if row not in there]
    return list(itertools.islice(itertools.chain(fresh, itertools.cycle(order)), count))


def replace_flat_groups(
    first: StepAnswers,
    flat: Callable[[Sequence[Reward | Unscored]], bool],
    rounds: int,
    sample: Callable[[int, int], StepAnswers],
) -> tuple[StepAnswers, int]:
    """Sample others for flat groups, round after round; returns the step's answers and how many groups were replaced.

    `sample` takes the round's number, from 1, and how many queries it wants. What is flat after the last round stays.
    """
    answers, replaced = first, 0
    for number in range(1, rounds + 1):
        places = [place for place, row in enumerate(answers.rewards) if flat(row)]
        if not places:
            break
        answers = answers.with_groups(places, sample(number, len(places)))
        replaced += len(places)
    return answers, replaced
