"""Sampling both streams of `DualStreamLM`: one prefill a prompt, a preallocated cache, no Python per sequence.

The rules are Kimi-Audio's: text first, then audio, independent given the history; audio slots are blank for the first
`audio_delay_steps` steps; text is blank after `text_eos`; an end id in the first audio slot ends the answer. Blanks and
padding are forced, so `sampled` is False there; terminators are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paras2s.errors import PolicyError
from paras2s.policy.dual_stream import DualStreamConfig, DualStreamLM
from paras2s.policy.interface import Generation, Prompt, Sampling
from paras2s.policy.memory import PromptMemory, StepMemory
from paras2s.records import Block


def slot_names(config: DualStreamConfig) -> tuple[str, ...]:
    """S = 1 + K names."""
    return ("text", *(f"audio{k}" for k in range(config.num_codebooks)))


def pad_prompts(config: DualStreamConfig, prompts: Sequence[Prompt]) -> tuple[Tensor, ...]:
    """audio_ids [B, L, K], text_ids [B, L], features [B, L, F], continuous [B, L], lengths [B]; padded on the right."""
    longest = max(prompt.length for prompt in prompts)
    audio = np.full((len(prompts), longest, config.num_codebooks), config.pad_id, dtype=np.int64)
    text = np.full((len(prompts), longest), config.pad_id, dtype=np.int64)
    features = np.zeros((len(prompts), longest, max(config.continuous_dim, 1)), dtype=np.float64)
    continuous = np.zeros((len(prompts), longest), dtype=bool)
    for row, prompt in enumerate(prompts):
        place = slice(0, prompt.length)
        audio[row, place], text[row, place] = prompt.audio_ids, prompt.text_ids
        if prompt.features is not None and config.continuous_dim:
            features[row, place], continuous[row, place] = prompt.features, prompt.continuous
    lengths = torch.tensor([prompt.length for prompt in prompts])
    return (
        torch.from_numpy(audio),
        torch.from_numpy(text),
        torch.from_numpy(features),
        torch.from_numpy(continuous),
        lengths,
    )


def pick(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse-CDF draw: logits [N, V] and uniforms [N] give index [N] and its log-prob [N]."""
    logp = torch.log_softmax(logits / temperature, dim=-1)
    cumulative = logp.exp().cumsum(-1)
    index = (cumulative < (uniform[:, None] * cumulative[:, -1:])).sum(-1).clamp_(max=logits.shape[-1] - 1)
    return index, logp.gather(1, index[:, None])[:, 0]


@torch.inference_mode()
def sample(
    model: DualStreamLM, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, seeds: Sequence[Sequence[int]]
) -> list[Generation]:
    """G answers for each of B prompts.

    Raises:
        PolicyError: no prompt, seeds of another shape than [B][G], or a temperature that is not positive.
    """
    if not prompts or len(seeds) != len(prompts) or any(len(row) != group_size for row in seeds):
        raise PolicyError(f"there must be a prompt, and seeds must be [{len(prompts)}][{group_size}]")
    if min(sampling.text_temperature, sampling.audio_temperature) <= 0:
        raise PolicyError("temperatures must be above 0; for a nearly greedy answer use 0.01")
    config, dtype = model.dual_config, model.lm_head.weight.dtype
    rows, slots = len(prompts) * group_size, 1 + config.num_codebooks
    uniforms = _uniforms(seeds, sampling.max_steps, slots).to(dtype)
    text_hidden, audio_hidden, memory, positions = _prefill(model, prompts, group_size, sampling.max_steps)
    all_tokens = torch.full((rows, sampling.max_steps, slots), config.pad_id)
    all_sampled = torch.zeros(rows, sampling.max_steps, slots, dtype=torch.bool)
    all_logp = torch.zeros(rows, sampling.max_steps, slots, dtype=dtype)
    ended_row = torch.zeros(rows, dtype=torch.bool)
    active, done = torch.arange(rows), torch.zeros(rows, dtype=torch.bool)
    text_done = torch.zeros(rows, dtype=torch.bool)
    for step in range(sampling.max_steps):
        tokens, sampled, logp = _draw(model, text_hidden, audio_hidden, step, text_done, uniforms[active, step], sampling)
        tokens, sampled = torch.where(done[:, None], config.pad_id, tokens), sampled & ~done[:, None]
        all_tokens[active, step], all_sampled[active, step] = tokens, sampled
        all_logp[active, step] = torch.where(sampled, logp, 0.0)
        text_done = text_done | (tokens[:, 0] == config.text_eos_id)
        done = done | _ends(config, tokens, sampled)
        ended_row[active] = done
        if done.all() or step == sampling.max_steps - 1:
            break
        # Ended answers leave in bulk: moving the memory costs more than a few idle rows.
        if 8 * int(done.sum()) >= len(active):
            keep = (~done).nonzero()[:, 0]
            memory.select(keep)
            active, text_done, tokens, positions, done = (x[keep] for x in (active, text_done, tokens, positions, done))
        x = model.embed(tokens[:, None, 1:], tokens[:, None, 0], None, None)
        text_state, audio_state = model.hidden(x, positions[:, None], memory, text_steps=int(not text_done.all()))
        memory.length += 1
        text_hidden, audio_hidden = text_state[:, -1:], None if audio_state is None else audio_state[:, -1]
        positions = positions + 1
    return _pack(config, (all_tokens, all_sampled, all_logp, ended_row), group_size, seeds)


def _uniforms(seeds: Sequence[Sequence[int]], steps: int, slots: int) -> Tensor:
    """One generator a sequence, so that an answer depends on its own seed and not on its neighbours."""
    rows = [np.random.Generator(np.random.Philox(seed)).random((steps, slots)) for group in seeds for seed in group]
    return torch.from_numpy(np.stack(rows))


def _prefill(
    model: DualStreamLM, prompts: Sequence[Prompt], group_size: int, max_steps: int
) -> tuple[Tensor, Tensor | None, StepMemory, Tensor]:
    """Read each prompt once: the states of its last position, [N, ...] for all answers, what to remember, positions [N]."""
    audio, text, features, continuous, lengths = pad_prompts(model.dual_config, prompts)
    read = PromptMemory(lengths)
    x = model.embed(audio, text, features, continuous)
    text_state, audio_state = model.hidden(x, torch.arange(text.shape[1]).expand(text.shape), read)
    row = torch.arange(len(prompts)).repeat_interleave(group_size)
    last = lengths[row] - 1
    audio_hidden = None if audio_state is None else audio_state[row, last]
    return text_state[row, last][:, None], audio_hidden, StepMemory(read, group_size, max_steps), lengths[row]


def _draw(
    model: DualStreamLM,
    text_hidden: Tensor,
    audio_hidden: Tensor | None,
    step: int,
    text_done: Tensor,
    uniform: Tensor,
    sampling: Sampling,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, sampled mask and log-probs [N, S] of one step; `uniform` is [N, S]; `text_hidden` is [N, 0, d] behind texts."""
    config = model.dual_config
    rows, slots = uniform.shape
    tokens = torch.full((rows, slots), config.pad_id)
    sampled = torch.zeros(rows, slots, dtype=torch.bool)
    logp = torch.zeros_like(uniform)
    tokens[:, 0] = config.blank_id
    if text_hidden.shape[1]:
        index, logp[:, 0] = pick(model.text_logits(text_hidden[:, 0]), sampling.text_temperature, uniform[:, 0])
        tokens[:, 0] = torch.where(text_done, config.blank_id, index + config.text_range[0])
        sampled[:, 0] = ~text_done
    if audio_hidden is None:
        return tokens, sampled, logp
    if step < config.audio_delay_steps:
        tokens[:, 1] = config.blank_id
        return tokens, sampled, logp
    for slot, logits in enumerate(model.audio_logits(audio_hidden), 1):
        index, logp[:, slot] = pick(logits, sampling.audio_temperature, uniform[:, slot])
        tokens[:, slot] = index + config.audio_ranges[slot - 1][0]
    ended = torch.isin(tokens[:, 1], torch.tensor(config.audio_end_ids))
    tokens[:, 2:] = torch.where(ended[:, None], config.pad_id, tokens[:, 2:])
    sampled[:, 1] = True
    sampled[:, 2:] = ~ended[:, None]
    return tokens, sampled, logp


def _ends(config: DualStreamConfig, tokens: Tensor, sampled: Tensor) -> Tensor:
    """Which answers end with this step [N]: at an audio end id, or at text_eos where there is no audio."""
    if not config.num_codebooks:
        return tokens[:, 0] == config.text_eos_id
    return sampled[:, 1] & torch.isin(tokens[:, 1], torch.tensor(config.audio_end_ids))


def _pack(
    config: DualStreamConfig,
    recorded: tuple[Tensor, Tensor, Tensor, Tensor],
    group_size: int,
    seeds: Sequence[Sequence[int]],
) -> list[Generation]:
    tokens, sampled, logp, ended = (part.numpy() for part in recorded)
    found = []
    for number, group in enumerate(seeds):
        rows = slice(number * group_size, (number + 1) * group_size)
        # In a long delay there are steps in which everything is forced, so the last drawn step counts, not how many.
        steps = 1 + int(np.flatnonzero(sampled[rows].any(axis=(0, 2))).max())
        block = Block(slot_names(config), tokens[rows, :steps], sampled[rows, :steps], logp[rows, :steps])
        finish = tuple("eos" if end else "length" for end in ended[rows])
        found.append(Generation((block,), finish, tuple(group)))
    return found
