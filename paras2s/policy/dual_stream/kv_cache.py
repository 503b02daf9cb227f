"""KV caches: a prompt's keys and values, read once for all its answers, and those of the answers.

Three kinds behind one method, `attend`: `PromptCache` while prompts are read, `AnswerCache` while whole answers are
scored behind them, `DecodeCache` while answers grow step by step.
Alphabet: B prompts, G answers a prompt, N rows, H heads, J key heads, P longest prompt, T steps, D head size.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn


class KVCache(Protocol):
    """Attention of one layer; layers are counted through the shared ones, the text branch and the audio branch."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from queries [N, H, L, D] to the cache and to keys and values [N, J, L, D]; return [N, H, L, D]."""


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attend from [N, H, L, D] to [N, J, P, D] with an added mask: a GPU has no kernel for masked grouped heads."""
    if q.is_cuda and (repeats := q.shape[1] // k.shape[1]) > 1:
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    return fn.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


class PromptCache:
    """Keys and values [B, J, P, D] of every layer, with their gradients; prompts are padded on the right."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        self.pairs: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend causally: never from inside a prompt to behind its end. A single query is that of the end."""
        self.pairs[layer] = k, v
        if q.shape[2] == 1 < k.shape[2]:
            mask = self.unseen(q)[:, None, None]
            return _masked(q, k, v, mask)
        return fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    def unseen(self, like: Tensor) -> Tensor:
        """Mask to add to scores over the prompts [B, P]: minus infinity on padding."""
        places = torch.arange(int(self.lengths.max()), device=self.lengths.device)
        attended = torch.zeros(len(self.lengths), len(places), dtype=like.dtype, device=like.device)
        return attended.masked_fill(places >= self.lengths[:, None], float("-inf"))


class AnswerCache:
    """Whole answers, each behind its prompt: row n continues prompt `prompt_of[n]`."""

    def __init__(self, prompts: PromptCache, prompt_of: Tensor, steps: int) -> None:
        self.prompts, self.prompt_of, self.steps = prompts, prompt_of, steps
        self._mask: Tensor | None = None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Over the prompt and, causally, the answer; a branch may be given fewer steps than there are."""
        prompt_k, prompt_v = self.prompts.pairs[layer]
        k = torch.cat([prompt_k.index_select(0, self.prompt_of), k], 2)
        v = torch.cat([prompt_v.index_select(0, self.prompt_of), v], 2)
        steps, prompt = q.shape[2], prompt_k.shape[2]
        mask = self._full_mask(q)[..., :steps, : prompt + steps]
        return _masked(q, k, v, mask)

    def _full_mask(self, like: Tensor) -> Tensor:
        if self._mask is None:
            over_prompt = self.prompts.unseen(like).index_select(0, self.prompt_of)
            square = torch.full((self.steps, self.steps), float("-inf"), dtype=like.dtype, device=like.device)
            over_answer = square.triu(1)
            shape = (len(self.prompt_of), self.steps, -1)
            self._mask = torch.cat([over_prompt[:, None].expand(shape), over_answer.expand(shape)], 2)[:, None]
        return self._mask


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    if like.dtype == torch.float32 and like.device.type == "cpu":
        # numpy leaves it to the system to clear a page when it is first touched, and asks for large pages.
        return torch.from_numpy(np.zeros(shape, dtype=np.float32))
    return like.new_zeros(shape)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Return scaled scores [..., L, P] of queries [..., L, D] and keys [..., P, D], half precision's in float32.

    Rounded to bfloat16, a score of 20 is off by up to 0.06. The learner's attention keeps float32, so the two would part.
    """
    scale = q.shape[-1] ** -0.5
    if q.dtype not in (torch.bfloat16, torch.float16):
        return (q * scale) @ k.transpose(-1, -2)
    if not q.is_cuda:
        return q.float() @ k.float().transpose(-1, -2) * scale
    # As the device's own units do it, without a copy of the keys.
    product = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), out_dtype=torch.float32)
    return product.view(*q.shape[:-1], -1) * scale


class DecodeCache:
    """Answers that grow by one step at a time, beside the prompts they follow, each stored once for its group.

    Everything is preallocated: `seats` prompts of `prompt_width` positions, G answers of `capacity` steps behind each. A
    group is admitted to a free seat and leaves it with its last answer, so that others can enter while answers grow.
    Scores over the prompt are products of a whole group's queries with one prompt's keys, so that a prompt is read once
    a step and not once an answer.

    What an answer has written is moved together when others leave, which `attend` reads faster; `in_place`, for a decoder
    with an attention of its own, it stays at its place.
    """

    def __init__(
        self, like: PromptCache, seats: int, group_size: int, capacity: int, prompt_width: int, in_place: bool = False
    ) -> None:
        key = like.pairs[0][0]
        _, heads, _, size = key.shape
        of_prompts, of_answers = (len(like.pairs), seats, heads), (len(like.pairs), seats * group_size, heads)
        self.prompt_keys, self.prompt_values = (_zeros((*of_prompts, prompt_width, size), key) for _ in range(2))
        self.keys, self.values = (_zeros((*of_answers, capacity, size), key) for _ in range(2))
        self.group_size, self.seats, self.in_place = group_size, seats, in_place
        self.prompt_lengths = torch.zeros(seats, dtype=torch.long, device=key.device)
        # Of the present rows: the place of each in [seats, G], and how many steps it has. `width` and `longest` are the
        # longest prompt's and the longest answer's.
        self.places = torch.zeros(0, dtype=torch.long, device=key.device)
        self.lengths = torch.zeros(0, dtype=torch.long, device=key.device)
        self._own_unseen: Tensor | None = None
        self._settle()

    @property
    def free_seats(self) -> list[int]:
        """Seats without an answer under way."""
        taken = set((self.places // self.group_size).tolist())
        return [seat for seat in range(self.seats) if seat not in taken]

    def admit(self, read: PromptCache) -> None:
        """Give a seat to the groups behind these prompts; their rows follow the rows there are."""
        count, width = len(read.lengths), int(read.lengths.max())
        seats = torch.tensor(self.free_seats[:count], device=self.places.device)
        for layer, (key, value) in read.pairs.items():
            self.prompt_keys[layer, seats, :, :width] = key[:, :, :width]
            self.prompt_values[layer, seats, :, :width] = value[:, :, :width]
        self.prompt_lengths[seats] = read.lengths
        members = torch.arange(self.group_size, device=seats.device)
        self.places = torch.cat([self.places, (seats[:, None] * self.group_size + members).flatten()])
        self.lengths = torch.cat([self.lengths, self.lengths.new_zeros(count * self.group_size)])
        self._settle()

    def advance(self) -> None:
        """Advance by one step, after all layers have read it."""
        self.lengths = self.lengths + 1
        self.longest += 1
        self._own_unseen = None

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these, in ascending order."""
        count = len(rows)
        for held in () if self.in_place else (self.keys, self.values):
            written = held[:, : len(self.places), :, : self.longest]
            held[:, :count, :, : self.longest] = written.index_select(1, rows)
        self.places, self.lengths = self.places[rows], self.lengths[rows]
        self._settle()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend for one step, L = 1; the caller calls `advance` once all layers are through."""
        rows, stop = len(k), self.longest + 1
        if self._uneven and self._own_unseen is None:
            behind = torch.arange(stop, device=self.lengths.device) > self.lengths[:, None]
            self._own_unseen = self.minus_infinity(behind)
        if self._own_unseen is None:
            self.keys[layer, :rows, :, self.longest], self.values[layer, :rows, :, self.longest] = k[:, :, 0], v[:, :, 0]
        else:
            self.write(layer, self._rows, self.lengths, k, v)
        places = None if self._full else self.places
        return self.weigh(layer, q, (self.width, stop), (self._unseen, self._own_unseen), places)

    def write(self, layer: int, rows: Tensor, lengths: Tensor, k: Tensor, v: Tensor) -> None:
        """Put the newest keys and values [N, J, 1, D] behind what each row has."""
        self.keys[layer, rows, :, lengths], self.values[layer, rows, :, lengths] = k[:, :, 0], v[:, :, 0]

    def weigh(
        self, layer: int, q: Tensor, spans: tuple[int, int], unseen: tuple[Tensor | None, Tensor | None], places: Tensor | None
    ) -> Tensor:
        """Attention of queries [N, H, 1, D] over the first positions of prompts and answers; `places` None: all in order."""
        (width, stop), (rows, _, _, size), heads = spans, q.shape, self.keys.shape[2]
        q = q.view(rows, heads, -1, size)
        prompt_k, prompt_v = self.prompt_keys[layer, :, :, :width], self.prompt_values[layer, :, :, :width]
        over_prompt = self._by_row(_scores(self._by_prompt(q, places), prompt_k), q.shape[2], places)
        over_own = _scores(q, self.keys[layer, :rows, :, :stop])
        over_prompt, over_own = (
            scores if mask is None else scores + mask for scores, mask in zip((over_prompt, over_own), unseen, strict=True)
        )
        weights = torch.cat([over_prompt, over_own], -1).softmax(-1).to(q.dtype)
        attended = weights[..., width:] @ self.values[layer, :rows, :, :stop]
        of_prompt = self._by_prompt(weights[..., :width], places) @ prompt_v
        attended = attended + self._by_row(of_prompt, q.shape[2], places)
        return attended.view(rows, -1, 1, size)

    def fixed(self, places: Tensor, lengths: Tensor, width: int, stop: int) -> KVCache:
        """Return the cache as N rows see it, with places and lengths [N] read from these tensors; no shape depends on them."""
        return _FixedRows(self, places, lengths, width, stop)

    def clear(self) -> None:
        """Let all answers leave. What was written stays, but is never read."""
        self.places, self.lengths = self.places[:0], self.lengths[:0]
        self._settle()

    def _settle(self) -> None:
        """Recompute masks and widths, which hold for all layers and steps until rows change."""
        count = len(self.places)
        lengths = self.prompt_lengths[self.places // self.group_size]
        self._rows = torch.arange(count, device=self.places.device)
        # All seats taken in order: queries can be viewed by prompt, and need not be put in place.
        self._full = count == self.seats * self.group_size and bool((self.places == self._rows).all())
        self.width = int(lengths.max()) if count else 0
        self.longest = int(self.lengths.max()) if count else 0
        self._unseen: Tensor | None = None
        self._own_unseen = None
        if count and int(lengths.min()) < self.width:
            behind = torch.arange(self.width, device=lengths.device) >= lengths[:, None]
            self._unseen = self.minus_infinity(behind)
        self._uneven = bool(count) and int(self.lengths.min()) < self.longest

    def minus_infinity(self, where: Tensor) -> Tensor:
        """Return a mask [N, 1, 1, L] to add to scores, minus infinity where `where` [N, L] is True."""
        zeros = torch.zeros(where.shape, dtype=self.keys.dtype, device=where.device)
        return zeros.masked_fill(where, float("-inf"))[:, None, None]

    def _by_prompt(self, x: Tensor, places: Tensor | None) -> Tensor:
        """Bring rows [N, J, R, E] to [seats, J, G R, E]; empty seats hold zeros."""
        _, heads, repeats, size = x.shape
        if places is not None:
            full = torch.zeros(self.seats * self.group_size, heads, repeats, size, dtype=x.dtype, device=x.device)
            x = full.index_copy_(0, places, x)
        x = x.view(self.seats, self.group_size, heads, repeats, size).transpose(1, 2)
        return x.reshape(self.seats, heads, self.group_size * repeats, size)

    def _by_row(self, x: Tensor, repeats: int, places: Tensor | None) -> Tensor:
        """Bring [seats, J, G R, E] back to rows [N, J, R, E]."""
        heads, size = x.shape[1], x.shape[3]
        x = x.view(self.seats, heads, self.group_size, repeats, size).transpose(1, 2).reshape(-1, heads, repeats, size)
        return x if places is None else x.index_select(0, places)


class _FixedRows:
    """See `DecodeCache.fixed`. Masks are computed from the tensors at each step, so they hold when these are refilled."""

    def __init__(self, cache: DecodeCache, places: Tensor, lengths: Tensor, width: int, stop: int) -> None:
        self._cache, self._places, self._lengths, self._spans = cache, places, lengths, (width, stop)
        of_prompts, device = cache.prompt_lengths[places // cache.group_size], lengths.device
        self._rows = torch.arange(len(places), device=device)
        self._unseen = (
            cache.minus_infinity(torch.arange(width, device=device) >= of_prompts[:, None]),
            cache.minus_infinity(torch.arange(stop, device=device) > lengths[:, None]),
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `DecodeCache.attend`."""
        self._cache.write(layer, self._rows, self._lengths, k, v)
        return self._cache.weigh(layer, q, self._spans, self._unseen, self._places)
