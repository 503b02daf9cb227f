"""Rollouts to flat batches for the loss: which groups are learned from, in which micro-batches, under which masks.

Alphabet: B prompts, G answers a prompt, N answers in all, T steps, S slots, M flat tokens a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.policy.types import Prompt
from paras2s.train.losses import LogProbBatch, LossNormalizer, loss_normalizer
from paras2s.types import AUDIO, TEXT, Block, Rollout


@dataclass(frozen=True)
class MicroBatch:
    """The input of one forward pass: prompts, their answers' blocks, and the advantages of all answers in order [N].

    `styled` are the prompts that tell the question's style; () without a teacher.
    """

    prompts: tuple[Prompt, ...]
    answers: tuple[tuple[Block, ...], ...]
    advantages: tuple[float, ...]
    styled: tuple[Prompt, ...] = ()


@dataclass(frozen=True)
class TokenBatch:
    """The sampler's record of a micro-batch, all [N, M]; the mask is the sampler's own."""

    mask: Tensor
    behaviour_logp: Tensor
    step_id: Tensor
    stream_id: Tensor

    def only(self, streams: Sequence[int]) -> TokenBatch:
        """Return the record of these streams' tokens alone."""
        return replace(self, mask=self.mask * torch.isin(self.stream_id, torch.tensor(streams, device=self.mask.device)))

    def normalizer(self, objective: ObjectiveConfig) -> LossNormalizer:
        """Return the micro-batch's part of the full batch's denominators."""
        return loss_normalizer(self.mask, self.step_id, self.stream_id, objective)

    def batch(self, logp: Tensor, ref_logp: Tensor, old_logp: Tensor) -> LogProbBatch:
        """Return the input of the loss, from log-probs [N, M]."""
        return LogProbBatch(logp, old_logp, ref_logp, self.mask, self.step_id, self.stream_id)


def token_batch(answers: Sequence[Sequence[Block]], dtype: torch.dtype, device: torch.device) -> TokenBatch:
    """Return blocks as flat tokens: block after block, each padded to its longest; all steps have distinct ids."""
    columns: list[list[np.ndarray]] = [[], [], [], []]
    first_step = 0
    for number in range(len(answers[0])):
        blocks = [row[number] for row in answers]
        steps, slots = max(block.tokens.shape[1] for block in blocks), blocks[0].tokens.shape[2]
        rows = sum(len(block.tokens) for block in blocks)
        step_id = np.broadcast_to(first_step + np.arange(steps)[:, None], (rows, steps, slots))
        first_step += steps
        for column, values in zip(columns[:3], zip(*(_padded(block, steps) for block in blocks), strict=True), strict=True):
            column.append(np.concatenate(values).reshape(rows, -1))
        columns[3].append(step_id.reshape(rows, -1))
    mask, behaviour, streams, step_ids = (torch.from_numpy(np.concatenate(column, 1)).to(device) for column in columns)
    return TokenBatch(mask.to(dtype), behaviour.to(dtype), step_ids, streams)


def _padded(block: Block, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    behind = ((0, 0), (0, steps - block.tokens.shape[1]), (0, 0))
    streams = np.pad(block.streams.astype(np.int64), behind)
    return np.pad(block.sampled, behind), np.pad(block.behaviour_logp.astype(np.float64), behind), streams


def top_groups_by_reward_std(advantages: Sequence[Sequence[float | None]], count: int) -> list[int]:
    """Return the `count` groups whose advantages differ most, in their order; the rest would move little (after DAPO, 3.2).

    A group with fewer than two advantages is never among them.
    """
    spread = {}
    for number, group in enumerate(advantages):
        known = [value for value in group if value is not None]
        if len(known) > 1:
            spread[number] = float(np.std(known))
    return sorted(sorted(spread, key=lambda number: -spread[number])[:count])


def micro_batches(
    prompts: Sequence[Prompt],
    rollouts: Sequence[Rollout],
    advantages: Sequence[Sequence[float | None]],
    chosen: Sequence[int],
    micro_batch_size: int | None,
    styled: Sequence[Prompt] = (),
) -> list[MicroBatch]:
    """Return the chosen groups' answers that have an advantage, in batches of at most `micro_batch_size` (None: one batch).

    A group is split only where it alone is larger; its prompt is then read once a micro-batch. `styled` [B]: see `MicroBatch`.
    """
    limit = micro_batch_size or sum(rollout.size for rollout in rollouts) + 1
    batches: list[MicroBatch] = []
    held: list[tuple[Prompt, tuple[Block, ...], tuple[float, ...], Prompt | None]] = []
    size = 0

    def close() -> None:
        if held:
            parts = tuple(zip(*held, strict=True))
            values = tuple(value for group in parts[2] for value in group)
            batches.append(MicroBatch(parts[0], parts[1], values, parts[3] if styled else ()))
        held.clear()

    for number in chosen:
        rows = [row for row, value in enumerate(advantages[number]) if value is not None]
        for start in range(0, len(rows), limit):
            part = rows[start : start + limit]
            if size + len(part) > limit:
                close()
                size = 0
            values = tuple(value for row in part if (value := advantages[number][row]) is not None)
            blocks = tuple(block.part(part) for block in rollouts[number].blocks)
            held.append((prompts[number], blocks, values, styled[number] if styled else None))
            size += len(part)
    close()
    return batches


def parity(tokens: TokenBatch, logp: Tensor) -> dict[str, tuple[float, float, float]]:
    """Return by stream the largest and summed difference of sampler's and learner's log-probs, and the number of tokens."""
    differences = {}
    for name, stream in (("text", TEXT), ("audio", AUDIO)):
        chosen = (tokens.mask > 0) & (tokens.stream_id == stream)
        difference = (tokens.behaviour_logp[chosen] - logp.detach()[chosen]).abs()
        if len(difference):
            differences[name] = float(difference.max()), float(difference.sum()), float(len(difference))
    return differences
