"""Sampling `DualStreamNetwork`: one prefill a prompt, a preallocated KV cache, no Python per sequence, and no idle rows.

The rules are Kimi-Audio's: text first, then audio, independent given the history; audio slots are blank for the first
`audio_delay_steps` steps; text is blank after `text_eos`; an end id in the first audio slot ends the answer. Blanks and
padding are forced, so `sampled` is False there; terminators are sampled. A decoder without an audio branch samples every
token and ends at any of its `text_end_ids`.

More answers than fit at once wait: finished answers leave, and the next query's enter (continuous batching), longest
prompts first, so that neighbours are of like length.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.kv_cache import DecodeCache, KVCache, PromptCache
from paras2s.policy.dual_stream.logprobs import pad_prompts
from paras2s.policy.dual_stream.native import native_decoder
from paras2s.policy.dual_stream.network import DualStreamNetwork
from paras2s.policy.types import (
    AnswersSoFar,
    Generation,
    PromptsRead,
    SampleRequest,
    Sampling,
    SamplingEvent,
    result_of,
    slot_names,
)
from paras2s.types import AUDIO, TEXT, Block

# Answers in the batch at once.
ROWS_AT_ONCE = 256


def pick(logits: Tensor, temperature: float, uniform: Tensor, top_k: int = 0) -> tuple[Tensor, Tensor]:
    """Inverse-CDF draw: logits [N, V] and uniforms [N] give index [N] and its log-prob [N] among the `top_k` (0: all)."""
    scaled = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    if 0 < top_k < scaled.shape[-1]:
        least = scaled.topk(top_k, -1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, float("-inf"))
    logp = torch.log_softmax(scaled, dim=-1)
    cumulative = logp.exp().cumsum(-1)
    index = (cumulative < (uniform.to(logp.dtype)[:, None] * cumulative[:, -1:])).sum(-1).clamp_(max=logits.shape[-1] - 1)
    return index, logp.gather(1, index[:, None])[:, 0]


def uniforms_of(seeds: Sequence[Sequence[int]], steps: int, slots: int) -> Tensor:
    """[N, steps, slots] from one generator a sequence, so that an answer depends on its own seed and not on its neighbours."""
    rows = [np.random.Generator(np.random.Philox(seed)).random((steps, slots)) for group in seeds for seed in group]
    return torch.from_numpy(np.stack(rows))


def finish_work(device: torch.device) -> None:
    """Wait until the device has done what it was given, before a clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Decoder(Protocol):
    """A decoder reads one token of each answer behind its prompt, and draws the next."""

    # Whether it reads a cache whose answers stay in place, so that an answer that ends leaves at no cost.
    in_place: bool

    def cache(self, read: PromptCache, seats: int, group_size: int, capacity: int, width: int) -> DecodeCache:
        """Return an empty cache for prompts and answers like these (see `DecodeCache`)."""

    def step(self, tokens: Tensor, position: Tensor, cache: DecodeCache, with_text: bool) -> tuple[Tensor, Tensor | None]:
        """Read tokens [n, S]; return text states [n, 1, d], or [n, 0, d] if not requested, and audio states [n, d], if any."""

    def draw_text(self, state: Tensor, temperature: float, top_k: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Index in the text's range [n] and its log-prob [n], from states [n, d] and uniforms [n]."""

    def draw_audio(self, state: Tensor, temperature: float, top_k: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Index in each slot's range [n, K] and its log-prob [n, K], from states [n, d] and uniforms [n, K]."""


class ModelDecoder:
    """A decoder that runs the model's own modules, on any device and in any precision."""

    in_place = False

    def __init__(self, model: DualStreamNetwork) -> None:
        self.model = model

    def cache(self, read: PromptCache, seats: int, group_size: int, capacity: int, width: int) -> DecodeCache:
        """See `Decoder.cache`."""
        return DecodeCache(read, seats, group_size, capacity, width)

    def step(self, tokens: Tensor, position: Tensor, cache: DecodeCache, with_text: bool) -> tuple[Tensor, Tensor | None]:
        """See `Decoder.step`."""
        return self.states(tokens, position, cache, with_text)

    def states(self, tokens: Tensor, position: Tensor, cache: KVCache, with_text: bool) -> tuple[Tensor, Tensor | None]:
        """Return the states that `step` gives, from any cache."""
        x = self.model.embed(tokens[:, None, 1:], tokens[:, None, 0], None, None)
        text, audio = self.model.hidden(x, position[:, None], cache, text_steps=int(with_text))
        return text, None if audio is None else audio[:, -1]

    def draw_text(self, state: Tensor, temperature: float, top_k: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """See `Decoder.draw_text`."""
        return pick(self.model.text_logits(state), temperature, uniform, top_k)

    def draw_audio(self, state: Tensor, temperature: float, top_k: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """See `Decoder.draw_audio`."""
        slots = enumerate(self.model.audio_logits(state))
        drawn = [pick(logits, temperature, uniform[:, slot], top_k) for slot, logits in slots]
        index, logp = zip(*drawn, strict=True)
        return torch.stack(index, 1), torch.stack(logp, 1)


@dataclass
class _Rows:
    """The answers in the batch, n of them: which answer each is [n], its steps so far, and the states that predict the next."""

    answer: Tensor
    step: Tensor
    position: Tensor
    text_done: Tensor
    done: Tensor
    text_state: Tensor
    audio_state: Tensor | None

    def select(self, rows: Tensor) -> None:
        self.answer, self.step, self.position = self.answer[rows], self.step[rows], self.position[rows]
        self.text_done, self.done, self.text_state = self.text_done[rows], self.done[rows], self.text_state[rows]
        self.audio_state = None if self.audio_state is None else self.audio_state[rows]

    def join(self, joining: _Rows) -> None:
        for name in ("answer", "step", "position", "text_done", "done"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(joining, name)]))
        if self.text_state.shape[1] < joining.text_state.shape[1]:
            # Texts of the present rows have ended, so their states were not computed and are not read.
            self.text_state = joining.text_state.new_zeros(len(self.text_state), *joining.text_state.shape[1:])
        self.text_state = torch.cat([self.text_state, joining.text_state])
        if self.audio_state is not None and joining.audio_state is not None:
            self.audio_state = torch.cat([self.audio_state, joining.audio_state])


def sample(
    model: DualStreamNetwork, request: SampleRequest, rows_at_once: int = ROWS_AT_ONCE, decoder: Decoder | None = None
) -> list[Generation]:
    """Sample G answers for each of B prompts, `rows_at_once` at a time; `decoder` None: the compiled decoder where it fits."""
    return result_of(sample_in_parts(model, request, None, rows_at_once, decoder))


@torch.inference_mode()
def sample_in_parts(
    model: DualStreamNetwork,
    request: SampleRequest,
    report_every: int | None,
    rows_at_once: int = ROWS_AT_ONCE,
    decoder: Decoder | None = None,
) -> Generator[SamplingEvent, None, list[Generation]]:
    """Sample as `sample` does; report when prompts have been read and, every `report_every` answers, all answers so far."""
    prompts, group_size, sampling = request.prompts, request.group_size, request.sampling
    config, device = model.dual_config, model.lm_head.weight.device
    rows, slots, steps = len(prompts) * group_size, 1 + config.num_codebooks, sampling.max_steps
    uniforms = uniforms_of(request.seeds, steps, slots).to(device)
    recorded: list[tuple[Tensor, ...]] = []
    if decoder is None:
        decoder = native_decoder(model, max(prompt.length for prompt in prompts) + steps) or ModelDecoder(model)
    admission = _Admission(model, request, max(rows_at_once, group_size), decoder)
    active, cache = admission.admit(None)
    yield PromptsRead(admission.seconds)
    reported, audio = 0, False
    while True:
        # Newcomers are at their first step.
        audio = sampling.speak and (audio or not config.audio_delay_steps)
        drawn, sampled, logp = _draw(decoder, config, active, uniforms[active.answer, active.step], sampling, audio)
        drawn, sampled = torch.where(active.done[:, None], config.pad_id, drawn), sampled & ~active.done[:, None]
        ends = _ends(config, drawn, sampled, sampling.speak)
        recorded.append((active.answer, active.step, drawn, sampled, logp, ends))
        active.text_done = active.text_done | (drawn[:, 0] == config.text_eos_id)
        active.done = active.done | ends | (active.step == steps - 1)
        finished, text_ended, at_last, audio = _known_to_host(active, config, steps)
        if finished == len(active.done) and not admission.waiting:
            return _pack(config, _by_answer(config, recorded, (rows, steps, slots)), request.seeds)
        ended = rows - group_size * len(admission.waiting) - (len(active.done) - finished)
        if report_every is not None and ended - reported >= report_every:
            reported = ended
            yield _so_far(config, _by_answer(config, recorded, (rows, steps, slots)), active, admission.waiting, group_size)
        # Answers leave in bulk where the cache is moved, which costs more than a few idle rows. None goes on behind the last
        # step, for which there is no room.
        if finished and (decoder.in_place or 8 * finished >= len(active.done) or at_last):
            remaining = (~active.done).nonzero()[:, 0]
            drawn = drawn[remaining]
            active.select(remaining)
            cache.select(remaining)
        if len(active.done):
            _step(decoder, active, drawn, cache, not text_ended)
        if admission.waiting and admission.room(len(active.done), cache):
            active, cache = admission.admit((active, cache))
            yield PromptsRead(admission.seconds)


def _known_to_host(active: _Rows, config: DualStreamConfig, steps: int) -> tuple[int, bool, bool, bool]:
    """Return how many rows are done, whether all texts ended, one is at its last step, one draws audio: a single copy."""
    last, next_audio = active.step == steps - 1, active.step + 1 >= config.audio_delay_steps
    facts = (active.done.sum(), (active.text_done | active.done).all(), last.any(), next_audio.any())
    finished, text_ended, at_last, audio = torch.stack([fact.long() for fact in facts]).tolist()
    return finished, bool(text_ended), bool(at_last), bool(audio)


@functools.cache
def _on(device: torch.device, ids: tuple[int, ...]) -> Tensor:
    """Return ids on a device, copied there once."""
    return torch.tensor(ids, device=device)


def _step(decoder: Decoder, active: _Rows, tokens: Tensor, cache: DecodeCache, with_text: bool) -> None:
    """Read the tokens [n, S] that were drawn; `active` is then before its next step."""
    active.text_state, active.audio_state = decoder.step(tokens, active.position, cache, with_text)
    cache.advance()
    active.step, active.position = active.step + 1, active.position + 1


class _Admission:
    """Prompts that wait, and how their groups enter the batch."""

    def __init__(self, model: DualStreamNetwork, request: SampleRequest, rows: int, decoder: Decoder) -> None:
        self.model, self.rows, self.decoder = model, rows, decoder
        self.prompts, self.group_size, self.steps = request.prompts, request.group_size, request.sampling.max_steps
        prompts, group_size = self.prompts, self.group_size
        at_once = min(len(prompts), rows // group_size)
        # A seat is held by the longest answer of its group; with twice the seats the others' rows are not left idle.
        self.seats = at_once if at_once == len(prompts) else 2 * at_once
        self.waiting = list(range(len(prompts)))
        if self.seats > at_once:
            self.waiting.sort(key=lambda number: -prompts[number].length)
        self.width = max(prompt.length for prompt in prompts)
        # Of the last admission.
        self.seconds = 0.0

    def room(self, active: int, cache: DecodeCache) -> bool:
        """Return whether a group fits beside `active` rows."""
        return active + self.group_size <= self.rows and bool(cache.free_seats)

    def admit(self, present: tuple[_Rows, DecodeCache] | None) -> tuple[_Rows, DecodeCache]:
        """Read as many waiting prompts as there is room for, each once, and put their answers behind those present."""
        device = self.model.lm_head.weight.device
        finish_work(device)
        started = time.perf_counter()
        admitted = self._admit(present)
        finish_work(device)
        self.seconds = time.perf_counter() - started
        return admitted

    def _admit(self, present: tuple[_Rows, DecodeCache] | None) -> tuple[_Rows, DecodeCache]:
        free = self.seats if present is None else len(present[1].free_seats)
        active = 0 if present is None else len(present[0].done)
        count = min(len(self.waiting), free, (self.rows - active) // self.group_size)
        numbers, self.waiting = self.waiting[:count], self.waiting[count:]
        model, device = self.model, self.model.lm_head.weight.device
        audio, text, features, continuous, lengths = pad_prompts(
            model.dual_config, [self.prompts[number] for number in numbers], device
        )
        read = PromptCache(lengths)
        x = model.embed(audio, text, features, continuous)
        positions = torch.arange(text.shape[1], device=device).expand(text.shape)
        text_state, audio_state = model.hidden(x, positions, read, only=lengths - 1)
        of = torch.arange(count, device=device).repeat_interleave(self.group_size)
        members = torch.arange(self.group_size, device=device)
        answer = (torch.tensor(numbers, device=device)[:, None] * self.group_size + members).flatten()
        new = _Rows(
            answer=answer,
            step=torch.zeros_like(answer),
            position=lengths[of],
            text_done=torch.zeros_like(answer, dtype=torch.bool),
            done=torch.zeros_like(answer, dtype=torch.bool),
            text_state=text_state[of],
            audio_state=None if audio_state is None else audio_state[of, 0],
        )
        if present is None:
            cache = self.decoder.cache(read, self.seats, self.group_size, self.steps, self.width)
            cache.admit(read)
            return new, cache
        rows, cache = present
        cache.admit(read)
        rows.join(new)
        return rows, cache


def _draw(
    decoder: Decoder, config: DualStreamConfig, active: _Rows, uniform: Tensor, sampling: Sampling, audio: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw tokens, mask and log-probs [n, S] of one step from `uniform` [n, S]; `audio` False: no row is behind its delay."""
    tokens = torch.full(uniform.shape, config.pad_id, device=uniform.device)
    sampled = torch.zeros(uniform.shape, dtype=torch.bool, device=uniform.device)
    logp = torch.zeros(uniform.shape, dtype=torch.float64, device=uniform.device)
    tokens[:, 0] = config.blank_id
    if active.text_state.shape[1]:
        state = active.text_state[:, 0]
        index, logp[:, 0] = decoder.draw_text(state, sampling.text_temperature, sampling.text_top_k, uniform[:, 0])
        tokens[:, 0] = torch.where(active.text_done, config.blank_id, index + config.text_range[0])
        sampled[:, 0] = ~active.text_done
    if active.audio_state is None:
        return tokens, sampled, logp
    with_audio = (active.step >= config.audio_delay_steps) & sampling.speak
    if audio:
        state, settings = active.audio_state, (sampling.audio_temperature, sampling.audio_top_k)
        index, logp[:, 1:] = decoder.draw_audio(state, *settings, uniform[:, 1:])
        tokens[:, 1:] = index + _on(index.device, tuple(start for start, _ in config.audio_ranges))
        ended = torch.isin(tokens[:, 1], _on(tokens.device, config.audio_end_ids))
        tokens[:, 2:] = torch.where((ended | ~with_audio)[:, None], config.pad_id, tokens[:, 2:])
        sampled[:, 1] = with_audio
        sampled[:, 2:] = (with_audio & ~ended)[:, None]
    tokens[:, 1] = torch.where(with_audio, tokens[:, 1], config.blank_id)
    return tokens, sampled, logp


def _ends(config: DualStreamConfig, tokens: Tensor, sampled: Tensor, speak: bool) -> Tensor:
    """Which answers end with this step [n]: at an audio end id, or at a text end where there is no audio."""
    if config.num_codebooks and speak:
        return sampled[:, 1] & torch.isin(tokens[:, 1], _on(tokens.device, config.audio_end_ids))
    return sampled[:, 0] & torch.isin(tokens[:, 0], _on(tokens.device, config.text_end_ids))


def _by_answer(
    config: DualStreamConfig, recorded: Sequence[tuple[Tensor, ...]], shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Collect what was drawn step by step: tokens, mask and log-probs [N, T, S] and which answers ended [N]."""
    answer, step, drawn, sampled, logp, ends = (torch.cat(parts) for parts in zip(*recorded, strict=True))
    tokens_of = torch.full(shape, config.pad_id, device=answer.device)
    sampled_of = torch.zeros(shape, dtype=torch.bool, device=answer.device)
    logp_of = torch.zeros(shape, dtype=torch.float64, device=answer.device)
    ended = torch.zeros(shape[0], dtype=torch.bool, device=answer.device)
    tokens_of[answer, step], sampled_of[answer, step] = drawn, sampled
    logp_of[answer, step] = torch.where(sampled, logp, 0.0)
    ended[answer[ends]] = True
    return tokens_of, sampled_of, logp_of, ended


def _so_far(
    config: DualStreamConfig,
    recorded: tuple[Tensor, Tensor, Tensor, Tensor],
    active: _Rows,
    waiting: Sequence[int],
    group_size: int,
) -> AnswersSoFar:
    """Return all answers as far as they have come; those that neither wait nor go on have ended."""
    tokens, sampled, logp, _ = (part.cpu().numpy() for part in recorded)
    ended = np.ones(len(tokens), dtype=bool)
    ended[active.answer[~active.done].cpu().numpy()] = False
    for number in waiting:
        ended[number * group_size : (number + 1) * group_size] = False
    return AnswersSoFar((_block(config, tokens, sampled, logp),), ended)


def _block(config: DualStreamConfig, tokens: np.ndarray, sampled: np.ndarray, logp: np.ndarray) -> Block:
    """Return drawn tokens [n, T, S] as a block."""
    labels = None if config.audio_from_id is None else np.where(tokens >= config.audio_from_id, AUDIO, TEXT)
    return Block(slot_names(config.num_codebooks), tokens, sampled, logp, labels)


def _pack(
    config: DualStreamConfig, recorded: tuple[Tensor, Tensor, Tensor, Tensor], seeds: Sequence[Sequence[int]]
) -> list[Generation]:
    tokens, sampled, logp, ended = (part.cpu().numpy() for part in recorded)
    generations = []
    for number, group in enumerate(seeds):
        rows = slice(number * len(group), (number + 1) * len(group))
        # In a long delay there are steps in which everything is forced, so the last drawn step counts, not how many.
        steps = 1 + int(np.flatnonzero(sampled[rows].any(axis=(0, 2))).max())
        block = _block(config, tokens[rows, :steps], sampled[rows, :steps], logp[rows, :steps])
        finish = tuple("eos" if end else "length" for end in ended[rows])
        generations.append(Generation((block,), finish, tuple(group)))
    return generations
