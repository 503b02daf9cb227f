"""Prompts and rewards for tests of the learner, and of the ranks that share one."""

from __future__ import annotations

from collections.abc import Sequence

from paras2s.policy.types import Prompt
from paras2s.types import Reward, Rollout, Unscored
from tiny.dual_stream import small_config, small_prompt

STEPS, GROUP = 7, 4


def make_prompts(count: int = 2) -> list[Prompt]:
    return [small_prompt(small_config(), 1 + number % 2, 3 + number, seed=number) for number in range(count)]


def reward(value: float) -> Reward:
    return Reward(value, {})


def rewards_of(rollouts: Sequence[Rollout]) -> list[list[Reward | Unscored]]:
    """Something that depends on the answer and is never flat for long: its first text token and its length."""
    return [[reward(float(r.blocks[0].tokens[g, 0, 0]) + 0.1 * len(r.codes[g])) for g in range(r.size)] for r in rollouts]
