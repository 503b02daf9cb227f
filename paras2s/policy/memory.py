"""What attention reads again: a prompt's keys and values, read once for all its answers, and those of the answers.

Three kinds behind one method, `attend`: `PromptMemory` while prompts are read, `AnswerMemory` while whole answers are
scored behind them, `StepMemory` while answers grow step by step.
Alphabet: B prompts, G answers a prompt, N rows, H heads, J key heads, P longest prompt, T steps, D head size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as fn


class Memory(Protocol):
    """Attention of one layer; layers are counted through the shared ones, the text branch and the audio branch."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries [N, H, L, D] over what is remembered and keys and values [N, J, L, D]; gives [N, H, L, D]."""


class PromptMemory:
    """Keys and values [B, J, P, D] of every layer, with their gradients; prompts are padded on the right."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        self.pairs: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal; what stands behind a prompt's end is never seen from inside it."""
        self.pairs[layer] = k, v
        return fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    def unseen(self, like: Tensor) -> Tensor:
        """What to add to scores over the prompts [B, P]: minus infinity on padding."""
        places = torch.arange(int(self.lengths.max()))
        return torch.zeros(len(self.lengths), len(places), dtype=like.dtype).masked_fill(
            places >= self.lengths[:, None], float("-inf")
        )


class AnswerMemory:
    """Whole answers, each behind its prompt: row n continues prompt `prompt_of[n]`."""

    def __init__(self, prompts: PromptMemory, prompt_of: Tensor, steps: int) -> None:
        self.prompts, self.prompt_of, self.steps = prompts, prompt_of, steps
        self._mask: Tensor | None = None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Over the prompt and, causally, the answer; a branch may be given fewer steps than there are."""
        prompt_k, prompt_v = self.prompts.pairs[layer]
        k = torch.cat([prompt_k.index_select(0, self.prompt_of), k], 2)
        v = torch.cat([prompt_v.index_select(0, self.prompt_of), v], 2)
        steps, prompt = q.shape[2], prompt_k.shape[2]
        mask = self._whole_mask(q)[..., :steps, : prompt + steps]
        return fn.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

    def _whole_mask(self, like: Tensor) -> Tensor:
        if self._mask is None:
            over_prompt = self.prompts.unseen(like).index_select(0, self.prompt_of)
            over_answer = torch.full((self.steps, self.steps), float("-inf"), dtype=like.dtype).triu(1)
            shape = (len(self.prompt_of), self.steps, -1)
            self._mask = torch.cat([over_prompt[:, None].expand(shape), over_answer.expand(shape)], 2)[:, None]
        return self._mask


class StepMemory:
    """Answers that grow by one step at a time; `capacity` steps are preallocated, the prompts are kept once a group.

    Scores over the prompt are products of a whole group's queries with one prompt's keys, so that a prompt is read once
    a step and not once an answer.
    """

    def __init__(self, prompts: PromptMemory, group_size: int, capacity: int) -> None:
        key = prompts.pairs[0][0]
        batch, heads, _, size = key.shape
        shape = (len(prompts.pairs), batch * group_size, heads, capacity, size)
        self.keys, self.values = torch.zeros(shape, dtype=key.dtype), torch.zeros(shape, dtype=key.dtype)
        self.prompts, self.group_size, self.length = prompts, group_size, 0
        # Where each row stands in [B, G]; None while all rows are there.
        self._seat: Tensor | None = None
        self._rows = batch * group_size
        padded = len(set(prompts.lengths.tolist())) > 1
        self._unseen = prompts.unseen(key).repeat_interleave(group_size, 0)[:, None, None] if padded else None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One step, L = 1; the caller advances `length` once all layers are through."""
        prompt_k, prompt_v = self.prompts.pairs[layer]
        stop, width, (rows, heads, _, size) = self.length + 1, prompt_k.shape[2], k.shape
        self.keys[layer, :rows, :, self.length] = k[:, :, 0]
        self.values[layer, :rows, :, self.length] = v[:, :, 0]
        q = (q * size**-0.5).view(rows, heads, -1, size)
        over_prompt = self._by_row(self._by_prompt(q) @ prompt_k.transpose(2, 3), q.shape[2])
        if self._unseen is not None:
            over_prompt = over_prompt + self._unseen
        over_own = q @ self.keys[layer, :rows, :, :stop].transpose(2, 3)
        weights = torch.cat([over_prompt, over_own], -1).softmax(-1)
        seen = weights[..., width:] @ self.values[layer, :rows, :, :stop]
        seen = seen + self._by_row(self._by_prompt(weights[..., :width]) @ prompt_v, q.shape[2])
        return seen.view(rows, -1, 1, size)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only, in ascending order."""
        kept = len(rows)
        for held in (self.keys, self.values):
            written = held[:, : self._rows, :, : self.length]
            held[:, :kept, :, : self.length] = written.index_select(1, rows)
        self._seat = rows if self._seat is None else self._seat[rows]
        self._rows = kept
        if self._unseen is not None:
            self._unseen = self._unseen[rows]

    def _by_prompt(self, x: Tensor) -> Tensor:
        """Rows [N, J, R, E] to [B, J, G R, E]; seats of rows that have left hold zeros."""
        _, heads, repeats, size = x.shape
        batch = len(self.prompts.lengths)
        if self._seat is not None:
            whole = torch.zeros(batch * self.group_size, heads, repeats, size, dtype=x.dtype)
            x = whole.index_copy_(0, self._seat, x)
        x = x.view(batch, self.group_size, heads, repeats, size).transpose(1, 2)
        return x.reshape(batch, heads, self.group_size * repeats, size)

    def _by_row(self, x: Tensor, repeats: int) -> Tensor:
        """The way back: [B, J, G R, E] to [N, J, R, E]."""
        batch, heads, _, size = x.shape
        x = x.view(batch, heads, self.group_size, repeats, size).transpose(1, 2).reshape(-1, heads, repeats, size)
        return x if self._seat is None else x.index_select(0, self._seat)
