"""Answers of transformers' decoders that draw one stream after another, or frames: cache, drawing, packing, scoring.

Rows are padded on the right, where a causal model does not look.
Alphabet: B prompts, G answers a prompt, N answers, L prompt tokens, T steps, S slots, V ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.policy.dual_stream.sampler import pick
from paras2s.policy.types import Generation, Prompt, Sampling, slot_names
from paras2s.types import Block

# What `advance(rows, step, tokens)` does: read what was drawn at `step`, [n, S], and give the next states [n, .].
Advance = Callable[[Tensor, int, Tensor], Tensor]
# Tokens and log-probs [n, S] of one step, from states [n, .] and uniforms [n, S].
Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# Which steps [n, S] end their answers, [n].
Ends = Callable[[Tensor], Tensor]


# -- tensors of rows that are padded on the right ---------------------------------------------------------------------


def run_stack(stack: Any, x: Tensor, start: Tensor | None = None, seen: Tensor | None = None, cache: Any = None) -> Tensor:
    """Return a decoder's states [N, L, .] of inputs that start at `start` [N], or at 0; padding on the right is never read.

    Where positions have three rows, for pictures, sound without pictures has those of text, three times (`get_rope_index`).
    """
    position = torch.arange(x.shape[1], device=x.device) + (0 if start is None else start[:, None])
    position = position.expand(len(x), -1)
    if "mrope_section" in stack.config.rope_parameters:
        position = position.expand(3, -1, -1)
    settings = {"position_ids": position, "past_key_values": cache, "use_cache": cache is not None}
    return stack(inputs_embeds=x, attention_mask=seen, **settings).last_hidden_state


@contextmanager
def layer_input(stack: Any, number: int) -> Iterator[list[Tensor]]:
    """Inside, the list gets what a layer reads: transformers' `hidden_states[number]`, without keeping all of them."""
    captured: list[Tensor] = []
    hook = stack.layers[number].register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
    try:
        yield captured
    finally:
        hook.remove()


def behind(x: Tensor, lengths: Tensor, tail: Tensor) -> Tensor:
    """[N, L + T, H]: `tail` [N, T, H] put right behind each row's own length."""
    wide = nn.functional.pad(x, (0, 0, 0, tail.shape[1]))
    index = lengths[:, None] + torch.arange(tail.shape[1], device=x.device)
    return wide.scatter(1, index[..., None].expand_as(tail), tail)


def stacked(blocks: Sequence[Block], pad: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return tokens and sampled mask [N, T, S] of all answers, padded to the longest block with one id a slot."""
    longest = max(block.tokens.shape[1] for block in blocks)
    tokens = [np.tile(np.array(pad), (len(block.tokens), longest, 1)) for block in blocks]
    sampled = [np.zeros(part.shape, dtype=bool) for part in tokens]
    for block, ids, mask in zip(blocks, tokens, sampled, strict=True):
        steps = block.tokens.shape[1]
        ids[:, :steps], mask[:, :steps] = block.tokens, block.sampled
    return torch.from_numpy(np.concatenate(tokens)).to(device), torch.from_numpy(np.concatenate(sampled)).to(device)


def score(
    head: Callable[[Tensor], Tensor], hidden: Tensor, first: Tensor, tokens: Tensor, sampled: Tensor, temperature: float
) -> Tensor:
    """Return log-probs [N, T] of tokens; step i is predicted at `first` + i. The head runs only where tokens were drawn."""
    row, step = sampled.nonzero(as_tuple=True)
    logits = head(hidden[row, first[row] + step])
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    chosen = torch.log_softmax(scaled, -1).gather(1, tokens[row, step][:, None])[:, 0]
    return chosen.new_zeros(tokens.shape).index_put((row, step), chosen)


@torch.no_grad()
def logits_of(model: Any, heads: Sequence[nn.Module], prompt: Prompt, blocks: Sequence[Block]) -> list[np.ndarray]:
    """Return the logits [T, V] of each slot of one answer (G = 1), as scoring gives them: of heads [T, V] or [T, K, V]."""
    made: list[list[Tensor]] = [[] for _ in heads]
    hooks = [
        head.register_forward_hook(lambda _, __, y, kept=kept: kept.append(y)) for head, kept in zip(heads, made, strict=True)
    ]
    everything = [replace(block, sampled=np.ones_like(block.sampled)) for block in blocks]
    try:
        model([prompt], [everything], Sampling())
    finally:
        for hook in hooks:
            hook.remove()
    slots = [slot for parts in made for rows in [torch.cat(parts)] for slot in (rows.unbind(1) if rows.ndim > 2 else [rows])]
    return [slot.to(torch.promote_types(slot.dtype, torch.float32)).cpu().numpy() for slot in slots]


# -- sampling ---------------------------------------------------------------------------------------------------------


class Reading:
    """A decoder's KV cache: each prompt once, and behind it the answers' tokens, n rows of them.

    Prompts are padded on the right, so that a short one's padding lies between it and its answers; `seen` hides it.
    """

    def __init__(self, stack: Any, x: Tensor, lengths: Tensor, group_size: int, limit: int) -> None:
        from transformers import DynamicCache

        self.stack, self.width, self.count = stack, x.shape[1], 0
        self.cache = DynamicCache(config=stack.config)
        self.states = run_stack(stack, x, cache=self.cache)
        self.cache.batch_repeat_interleave(group_size)
        self.lengths = lengths.repeat_interleave(group_size)
        position = torch.arange(self.width + limit, device=x.device)
        self.seen = (position < self.lengths[:, None]) | (position >= self.width)

    def feed(self, x: Tensor) -> Tensor:
        """Read one more input a row [n, .]; the state that predicts what follows it [n, .]."""
        return self.feed_steps(x[:, None])[:, -1]

    def feed_steps(self, x: Tensor) -> Tensor:
        """Read T more inputs a row [n, T, .]; the states that predict what follows each [n, T, .]."""
        start, self.count = self.lengths + self.count, self.count + x.shape[1]
        return run_stack(self.stack, x, start, self.seen[:, : self.width + self.count], self.cache)

    def select(self, rows: Tensor) -> None:
        """Keep these rows alone, in this order; a row that is named more than once is copied."""
        self.cache.batch_select_indices(rows)
        self.lengths, self.seen = self.lengths[rows], self.seen[rows]


@dataclass(frozen=True)
class Drawn:
    """One stream of N answers: tokens and log-probs [N, T, S], how many steps each has [N], and whether each ended [N]."""

    tokens: Tensor
    logp: Tensor
    counts: Tensor
    ended: Tensor

    @classmethod
    def nothing(cls, like: Drawn, slots: int) -> Drawn:
        """No step of any answer."""
        none = torch.zeros_like(like.counts)
        return cls(none[:, None, None].expand(-1, 1, slots), like.logp[:, :1, :1].expand(-1, 1, slots) * 0, none, none > 0)


def drawn_by(head: Callable[[Tensor], Tensor], temperature: float, top_k: int) -> Draw:
    """Return a function that draws the steps of one slot."""

    def draw(state: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        token, logp = pick(head(state), temperature, uniforms[:, 0], top_k)
        return token[:, None], logp[:, None]

    return draw


def one_of(ids: tuple[int, ...]) -> Ends:
    """Return a function that tells a step whose first token is in `ids`."""
    return lambda tokens: torch.isin(tokens[:, 0], torch.tensor(ids, device=tokens.device))


def roll(reading: Reading, state: Tensor, active: Tensor, uniforms: Tensor, draw: Draw, advance: Advance, ends: Ends) -> Drawn:
    """Draw the steps of answers `active` until each has ended or the limit is reached; `uniforms` [N, T, S] of all answers."""
    tokens = torch.zeros(uniforms.shape, dtype=torch.long, device=state.device)
    logp = torch.zeros(uniforms.shape, dtype=torch.promote_types(state.dtype, torch.float32), device=state.device)
    counts, ended = torch.zeros_like(tokens[:, 0, 0]), torch.zeros_like(tokens[:, 0, 0], dtype=torch.bool)
    limit = uniforms.shape[1]
    for step in range(limit):
        drawn, chosen = draw(state, uniforms[active, step])
        fresh = ~ended[active]
        live, drawn = active[fresh], drawn[fresh]
        tokens[live, step], logp[live, step], counts[live] = drawn, chosen[fresh], step + 1
        ended[live] = ends(drawn)
        done = ended[active]
        if bool(done.all()) or step == limit - 1:
            break
        # Ended answers leave in bulk: moving the cache costs more than a few idle rows.
        if 8 * int(done.sum()) >= len(active):
            remaining = (~done).nonzero()[:, 0]
            reading.select(remaining)
            active = active[remaining]
        state = advance(active, step, tokens[active, step])
    return Drawn(tokens, logp, counts, ended)


def pack(names: tuple[str, ...], drawn: Drawn, rows: slice, pad: Sequence[int], full_end: bool = False) -> Block:
    """Pack a group's answers of a stream to its longest; `full_end`: all slots of the step that ends an answer were drawn."""
    counts, ended = drawn.counts[rows].cpu().numpy(), drawn.ended[rows].cpu().numpy()
    steps = max(int(counts.max()), 1)
    last = np.where(ended & (not full_end), counts - 1, counts)[:, None, None]
    sampled = np.arange(steps)[:, None] < np.where(np.arange(len(names)) == 0, counts[:, None, None], last)
    tokens = np.where(sampled, drawn.tokens[rows, :steps].cpu().numpy(), np.array(pad))
    logp = np.where(sampled, drawn.logp[rows, :steps].cpu().numpy(), 0.0)
    return Block(names, tokens, sampled, logp)


def grouped(recorded: Sequence[np.ndarray], seeds: Sequence[Sequence[int]]) -> list[Generation]:
    """Return each prompt's answers, up to its longest, of tokens, sampled and log-probs [N, T, S] and which ended [N]."""
    generations, stop = list[Generation](), 0
    for group in seeds:
        rows = slice(stop, stop := stop + len(group))
        tokens, sampled, logp, ended = (part[rows] for part in recorded)
        steps = int(np.flatnonzero(sampled.any((0, 2)))[-1]) + 1
        block = Block(slot_names(tokens.shape[2] - 1), tokens[:, :steps], sampled[:, :steps], logp[:, :steps])
        generations.append(Generation((block,), tuple("eos" if end else "length" for end in ended), tuple(group)))
    return generations
