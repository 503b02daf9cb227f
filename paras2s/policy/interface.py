"""What a trainer may know of a policy, and no more (one interface for dual-stream, interleaved and framed models)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from paras2s.audio import Clip
from paras2s.records import Block


@dataclass(frozen=True)
class SlotSpec:
    """One token slot: ids [start, stop) can be sampled in it."""

    name: str
    kind: Literal["text", "audio"]
    start: int
    stop: int


@dataclass(frozen=True)
class PolicySpec:
    """What is fixed about a policy.

    `joint_step`: several slots are sampled from one history. `lora_targets` and `hearing_parameters` are patterns of
    names: modules that LoRA goes on, and parameters that take the question in and say nothing.
    """

    slots: tuple[SlotSpec, ...]
    step_rate_hz: float
    input_rate_hz: int
    output_rate_hz: int
    shared_prefill: bool
    has_target_encoder: bool
    stochastic_decoder: bool
    continuous_audio_input: bool
    joint_step: bool
    lora_targets: str
    hearing_parameters: str


@dataclass(frozen=True)
class Sampling:
    """How to sample. There is no truncation: top-k and top-p would break on-policy log-probs."""

    text_temperature: float = 1.0
    audio_temperature: float = 1.0
    max_steps: int = 52


@dataclass(frozen=True)
class Prompt:
    """A question as a policy reads it. Opaque to everyone else; arrays only, so it travels between processes.

    audio_ids [L, K], text_ids [L], features [L, F] or None, continuous [L] bool; `words_dim` is how many of the last
    features describe the words (so that warm-up can hide them); `code_offsets` [K] turn audio ids into codec codes.
    """

    audio_ids: np.ndarray
    text_ids: np.ndarray
    features: np.ndarray | None
    continuous: np.ndarray
    words_dim: int = 0
    code_offsets: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """L."""
        return len(self.text_ids)


@dataclass(frozen=True)
class Generation:
    """What `Policy.generate` gives for one prompt: G answers in blocks of token slots."""

    blocks: tuple[Block, ...]
    finish_reason: tuple[str, ...]
    seeds: tuple[int, ...]


class Policy(Protocol):
    """The operations of a policy that can be trained by reinforcement learning."""

    spec: PolicySpec

    def encode_prompt(self, clip: Clip, heard: str) -> Prompt:
        """A question as the model reads it; `heard` is the recogniser's transcript."""

    def generate(
        self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[Generation]:
        """G answers for each prompt, from one prefill a prompt; `seeds` [B][G] make each answer reproducible."""

    def logprobs(self, prompts: Sequence[Prompt], blocks: Sequence[Block], sampling: Sampling) -> Tensor:
        """Teacher-forced log-probs [sum of G, T, S], differentiable, 0 where not sampled."""

    def decode_audio(self, block: Block, answer: int) -> Clip:
        """Waveform of one answer; empty for an empty answer."""

    def decode_text(self, block: Block, answer: int) -> str:
        """The text stream of one answer."""

    def encode_target(self, clip: Clip, text: str) -> Block:
        """A demonstration as the block that the model should have sampled (G = 1)."""

    def reference(self) -> AbstractContextManager[None]:
        """Inside, the policy is the one from before training."""

    def save(self, folder: Path) -> None:
        """Write weights and config."""
