"""A policy under check: prompts to try it on, how far numbers may be apart, and what a check finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.types import Generation, Prompt, SampleRequest, Sampling, Turn
from paras2s.types import Block

# Nats by which two ways to the same log-prob may differ, of one token; half precision rounds by position in a batch.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 0.5, torch.float16: 0.1}


@dataclass(frozen=True)
class Finding:
    """One check: `ok` is None if it does not apply, and `detail` says what was measured or why not."""

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class Subject:
    """A policy with prompts to try it on, of different length, and how far numbers may be apart."""

    policy: Policy
    prompts: tuple[Prompt, ...]
    tolerance: float
    steps: int = 8
    # Of some answers, so that they pass where a sampler rounds up its lengths.
    long_steps: int = 72
    group: int = 3
    text: str = "hello there"

    @property
    def warm(self) -> Sampling:
        """A temperature of its own for each stream."""
        return Sampling(0.7, 1.4, self.steps)

    def seeds(self, prompts: int, group: int) -> list[list[int]]:
        """[B, G], all different."""
        return [[1000 * row + number for number in range(group)] for row in range(prompts)]

    def sampled(self, sampling: Sampling) -> list[Generation]:
        """G answers to every prompt."""
        return self.policy.generate(SampleRequest(self.prompts, self.seeds(len(self.prompts), self.group), sampling))

    def scored(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling) -> tuple[Tensor, ...]:
        """Teacher-forced, without a gradient."""
        with torch.no_grad():
            return self.policy.logprobs(prompts, answers, sampling)


def sample_dialogues(rate_hz: int) -> list[list[Turn]]:
    """Make questions of different length, the second of two clips: sliding tones, since no check needs speech."""
    dialogues = []
    for number, durations in enumerate([(1.3,), (0.5, 0.8), (0.4,)]):
        turns = []
        for index, duration_s in enumerate(durations):
            time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
            pitch_hz = 150 + 60 * number + 40 * index + 30 * np.sin(4 * time_s)
            wave = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch_hz) / rate_hz) * (0.6 + 0.4 * np.sin(9 * time_s))
            turns.append(Turn("user", "hello there", Clip(wave.astype(np.float32), rate_hz)))
        dialogues.append(turns)
    return dialogues


def subject_of(policy: Policy, dialogues: Sequence[Sequence[Turn]] | None = None) -> Subject:
    """Return a policy and prompts; prompts of several clips are left out for a policy that refuses them."""
    prompts = []
    for turns in dialogues or sample_dialogues(policy.spec.input_rate_hz):
        try:
            prompts.append(_prompt_of(policy, turns))
        except PolicyError:
            if len(turns) == 1:
                raise
    return Subject(policy, tuple(prompts), TOLERANCE[next(policy.model.parameters()).dtype])


def _prompt_of(policy: Policy, turns: Sequence[Turn]) -> Prompt:
    """Return a dialogue's prompt; a policy that speaks given words, as CSM does, is given some."""
    try:
        return policy.encode_prompt(turns)
    except PolicyError as refused:
        try:
            return policy.encode_prompt([*turns, Turn("assistant", "hello there")])
        except PolicyError:
            raise refused from None
