"""Prompts and rewards for tests of the learner, and of the ranks that share one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import Prompt
from paras2s.train.sft import Example
from paras2s.types import Reward, Rollout, Unscored
from tiny.dual_stream import small_config, small_prompt

STEPS, GROUP = 7, 4


def make_prompts(count: int = 2) -> list[Prompt]:
    return [small_prompt(small_config(), 1 + number % 2, 3 + number, seed=number) for number in range(count)]


def examples(policy: EmbeddedPolicy, count: int) -> list[Example]:
    config = policy.model.dual_config
    made = []
    for number in range(count):
        rng = np.random.default_rng(100 + number)
        hidden = (config.blank_id, config.pad_id)
        prompt = replace(small_prompt(config, 1 + number % 2, 3, seed=number), words_dim=1, hidden_ids=hidden)
        codes = rng.integers(config.codebook_sizes, size=(4 + number % 3, config.num_codebooks))
        made.append(Example(prompt, (policy.target_block(codes, rng.integers(config.text_eos_id, size=3).tolist()),)))
    return made


@dataclass(frozen=True)
class Demonstrations:
    """Demonstrations in memory, in place of `DemonstrationFiles`; no prompt is changed unless it is told how."""

    rows: Sequence[Example]
    augment: Callable[[Prompt, Any], Prompt] = lambda prompt, _: prompt

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Example:
        return self.rows[row]

    def encode(self, *_: Any) -> None:
        """They are encoded."""


def reward(value: float) -> Reward:
    return Reward(value, {})


def rewards_of(rollouts: Sequence[Rollout]) -> list[list[Reward | Unscored]]:
    """Something that depends on the answer and is never flat for long: its first text token and its length."""
    return [[reward(float(r.blocks[0].tokens[g, 0, 0]) + 0.1 * len(r.codes[g])) for g in range(r.size)] for r in rollouts]
