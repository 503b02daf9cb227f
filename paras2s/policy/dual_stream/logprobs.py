"""Teacher-forced log-probs of `DualStreamNetwork`, which the learner differentiates and the sampler must agree with.

Alphabet: B prompts, N answers in all, T steps, S slots, n scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

from paras2s.errors import PolicyError
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.kv_cache import AnswerCache, PromptCache
from paras2s.policy.dual_stream.network import DualStreamNetwork
from paras2s.policy.dual_stream.recomputed import picked_logprobs
from paras2s.policy.types import Prompt, Sampling
from paras2s.types import Block

# Answers scored at once: enough for fast products, few enough that neighbours of like length waste little padding.
ROWS_AT_ONCE = 32
# Logits that may exist at once. More are made in parts, and made again for the gradient, so that no B x T x V is ever there.
LOGITS_AT_ONCE = 2**25


def pad_prompts(config: DualStreamConfig, prompts: Sequence[Prompt], device: torch.device) -> tuple[Tensor, ...]:
    """Return ids [B, L, K] and [B, L], features [B, L, F], continuous [B, L], lengths [B]. Raises PolicyError: a wrong id."""
    longest = max(prompt.length for prompt in prompts)
    audio = np.full((len(prompts), longest, config.num_codebooks), config.pad_id, dtype=np.int64)
    text = np.full((len(prompts), longest), config.pad_id, dtype=np.int64)
    # In the prompts' own precision, the widest of them: several thousand numbers a step are many.
    held = [prompt.features.dtype for prompt in prompts if prompt.features is not None]
    dtype = np.result_type(*held) if held else np.dtype(np.float32)
    features = np.zeros((len(prompts), longest, max(config.continuous_dim, 1)), dtype=dtype)
    continuous = np.zeros((len(prompts), longest), dtype=bool)
    for row, prompt in enumerate(prompts):
        positions = slice(0, prompt.length)
        audio[row, positions], text[row, positions] = prompt.audio_ids, prompt.text_ids
        if prompt.features is not None and config.continuous_dim:
            features[row, positions], continuous[row, positions] = prompt.features, prompt.continuous
    _check_ids(config, "a prompt", audio, text)
    lengths = torch.tensor([prompt.length for prompt in prompts])
    padded = [torch.from_numpy(part) for part in (audio, text, features, continuous)]
    return tuple(part.to(device) for part in (*padded, lengths))


def _check_ids(config: DualStreamConfig, where: str, *ids: np.ndarray) -> None:
    for array in ids:
        # An index error of the embedding would say neither which id nor whose.
        if array.size and not 0 <= array.min() <= array.max() < config.vocab_size:
            wrong = int(array.max() if array.min() >= 0 else array.min())
            raise PolicyError(f"{where} holds id {wrong}, and the vocabulary ends at {config.vocab_size - 1}")


def in_parts(score: Callable[..., Tensor], width: int, *rows: Tensor) -> Tensor:
    """Score rows [n, ...] that make `width` logits each; [n, ...] at once, or in parts where they are too many."""
    at_once = max(1, LOGITS_AT_ONCE // width)
    if len(rows[0]) <= at_once:
        return score(*rows)
    parts = zip(*(torch.split(row, at_once) for row in rows), strict=True)
    return torch.cat([checkpoint(score, *part, use_reentrant=False, preserve_rng_state=False) for part in parts])


def teacher_forced(model: DualStreamNetwork, prompts: Sequence[Prompt], blocks: Sequence[Block], sampling: Sampling) -> Tensor:
    """Differentiable log-probs [N, T, S] of the blocks' tokens, 0 where `sampled` is False.

    A prompt is read once for all its answers; answers go through by length, and the text branch no further than the
    longest text; heads run only where something was sampled.
    """
    config, device = model.dual_config, model.lm_head.weight.device
    steps = max(block.tokens.shape[1] for block in blocks)
    tokens, sampled = _stack_blocks(config, blocks, steps)
    counts, tokens, sampled = _fed_steps(sampled), tokens.to(device), sampled.to(device)
    audio, text, features, continuous, lengths = pad_prompts(config, prompts, device)
    read = PromptCache(lengths)
    x = model.embed(audio, text, features, continuous)
    ends = model.hidden(x, torch.arange(text.shape[1], device=device).expand(text.shape), read, only=lengths - 1)
    prompt_of = torch.repeat_interleave(torch.tensor([block.tokens.shape[0] for block in blocks])).to(device)
    logp = torch.zeros(tokens.shape, dtype=_wide(x.dtype), device=device)
    for rows in torch.split(counts.argsort(descending=True), ROWS_AT_ONCE):
        # One step at least, so that every pass reads every layer (see `Policy`).
        count, rows = max(1, int(counts[rows].max())), rows.to(device)
        part = _score_rows(model, read, ends, prompt_of[rows], tokens[rows], sampled[rows], count, sampling)
        logp = logp.index_copy(0, rows, part)
    return logp


def _score_rows(
    model: DualStreamNetwork,
    read: PromptCache,
    ends: Sequence[Tensor | None],
    prompt_of: Tensor,
    tokens: Tensor,
    sampled: Tensor,
    count: int,
    sampling: Sampling,
) -> Tensor:
    """Return the log-probs [n, T, S] of answers behind their prompts; `ends` [B, 1, d] are the states that predict step 0.

    Step i sits `i` behind its prompt and is predicted one before; the last sampled one is predicted but never fed.
    """
    config = model.dual_config
    fed = tokens[:, :count]
    positions = read.lengths[prompt_of][:, None] + torch.arange(count, device=tokens.device)
    text_count = max(1, int(_fed_steps(sampled[..., :1]).max()))
    cache = AnswerCache(read, prompt_of, count)
    x = model.embed(fed[..., 1:], fed[..., 0], None, None)
    states = model.hidden(x, positions, cache, text_steps=text_count)
    text_state, audio_state = (
        None if end is None or state is None else torch.cat([end[prompt_of], state], 1)[:, : tokens.shape[1]]
        for end, state in zip(ends, states, strict=True)
    )
    assert text_state is not None
    logp = torch.zeros(tokens.shape, dtype=_wide(x.dtype), device=tokens.device)
    drawn = sampled[..., 0]

    def text_score(states: Tensor, targets: Tensor) -> Tensor:
        return picked_logprobs(model.text_logits(states), targets, sampling.text_temperature)

    start, stop = config.text_range
    scored = in_parts(text_score, stop - start, text_state[drawn[:, : text_count + 1]], tokens[..., 0][drawn] - start)
    of_text = torch.zeros_like(sampled)
    of_text[..., 0] = drawn
    logp = logp.masked_scatter(of_text, scored)
    if audio_state is None:
        return logp
    drawn = sampled[..., 1]
    starts = torch.tensor([start for start, _ in config.audio_ranges], device=tokens.device)

    def audio_score(states: Tensor, targets: Tensor, inside: Tensor) -> Tensor:
        """[n, K]; 0 beside an end, which samples the first audio slot only."""
        scores = torch.zeros(targets.shape, dtype=_wide(states.dtype), device=states.device)
        for slot, logits in enumerate(model.audio_logits(states)):
            rows = inside[:, slot]
            picked = picked_logprobs(logits[rows], targets[rows, slot], sampling.audio_temperature)
            scores[:, slot] = scores[:, slot].masked_scatter(rows, picked)
        return scores

    width = sum(stop - start for start, stop in config.audio_ranges)
    # Ids beside an end are padding, outside their codebook; they are not scored.
    scores = in_parts(
        audio_score, width, audio_state[drawn[:, : count + 1]], tokens[..., 1:][drawn] - starts, sampled[..., 1:][drawn]
    )
    filled = torch.zeros_like(logp[..., 1:]).masked_scatter(drawn[..., None], scores)
    return torch.cat([logp[..., :1], filled], -1)


@torch.no_grad()
def answer_logits(model: DualStreamNetwork, prompt: Prompt, block: Block) -> list[Tensor]:
    """Return the logits [T, n] of each slot of an answer (G = 1), read in one pass: no cache, which checks those that cache."""
    config, device = model.dual_config, model.lm_head.weight.device
    steps = block.tokens.shape[1]
    _check_ids(config, "an answer", block.tokens)
    audio, text, features, continuous, _ = pad_prompts(config, [prompt], device)
    fed = torch.from_numpy(block.tokens[:, : steps - 1]).to(device)
    audio, text = torch.cat([audio, fed[..., 1:]], 1), torch.cat([text, fed[..., 0]], 1)
    behind = (0, steps - 1)
    features, continuous = fn.pad(features, (0, 0, *behind)), fn.pad(continuous, behind)
    x = model.embed(audio, text, features, continuous)
    text_state, audio_state = model.hidden(x, torch.arange(x.shape[1], device=device)[None])
    logits = [model.text_logits(text_state[0, prompt.length - 1 :])]
    return logits if audio_state is None else logits + model.audio_logits(audio_state[0, prompt.length - 1 :])


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _fed_steps(sampled: Tensor) -> Tensor:
    """Number of steps read of each answer [N]: all before the last sampled one."""
    steps = torch.arange(sampled.shape[1], device=sampled.device)
    return (sampled.any(2) * steps).amax(1)


def _stack_blocks(config: DualStreamConfig, blocks: Sequence[Block], steps: int) -> tuple[Tensor, Tensor]:
    """Stack all answers of all blocks: tokens [N, T, S] and sampled [N, T, S], padded to `steps`."""
    tokens, sampled = [], []
    for block in blocks:
        _check_ids(config, "an answer", block.tokens)
        short = ((0, 0), (0, steps - block.tokens.shape[1]), (0, 0))
        tokens.append(np.pad(block.tokens, short, constant_values=config.pad_id))
        sampled.append(np.pad(block.sampled, short))
    return torch.from_numpy(np.concatenate(tokens)), torch.from_numpy(np.concatenate(sampled))
