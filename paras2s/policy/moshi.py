"""`MoshiPolicy`: Kyutai's Moshi (moshiko, moshika, PersonaPlex) as transformers ships it, with its codec Mimi.

A step is one frame of 80 ms. The backbone reads, for the frame before, one text token, K codes of Moshi's audio and K codes
of the user's, and gives the frame's text token; the depth decoder then gives the K codes one after the other, each
from the text token and the codes before it in the frame. Codebook 0 belongs to the frame, 1..K-1 to the one before: the
acoustic delay. Tokens are stored as the model's own ids at its own, delayed, step; `decode_codes` undoes the delay.

- Forced: codes 1..K-1 of an answer's first frame, which belong to the prompt's last frame, and that is silence.
- While the user speaks, Moshi's own stream holds text pads and the codes of silence, and the other way round; each clip is
  encoded alone, and silence is one constant frame: what Mimi makes of zeros once it has settled. A prompt ends with two silent
  frames, so that the ids of its last step are silence alone. That is where sampling and scoring take it from.
- Moshi is full duplex and has no end: an answer runs to `max_steps` ("length"). A checkpoint that was taught one names it
  (`MoshiText.end_id`), and the frame whose text it is, is the last ("eos"); its codes are sampled too, since they finish the
  frame before. Text ids of the release (kyutai-labs/moshi, `LMModel`): 3 pads, 0 closes a padding before a word.
- A demonstration's words come one token a frame from its start, then pads: without timings of the words, they run ahead.
- LoRA goes on the backbone alone. The depth decoder holds a weight a codebook, [K, out, in], in modules of its own that
  peft has no adapter for; its log-probs still reach the backbone's adapters. Without LoRA it learns as everything else.
- Mimi is no part of `model`: it never learns, and it runs in float32.
- Prompt and answer together stay below the window of the attention (3000 frames), so that no cache ever forgets.

Not done: a prompt is read again for each of its answers in scoring; the user's stream during an answer is always silence.
Alphabet: B prompts, G answers a prompt, N answers in all, L prompt steps, T steps, S slots, K codebooks, M frames, V codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.audio.clip import Clip, encode_exactly, read_clip
from paras2s.errors import PolicyError, one_line
from paras2s.policy.base import Policy
from paras2s.policy.dual_stream.logprobs import in_parts
from paras2s.policy.dual_stream.recomputed import picked_logprobs
from paras2s.policy.dual_stream.sampler import pick, uniforms_of
from paras2s.policy.speech_tokenizers.mimi import decode_mimi, encode_mimi
from paras2s.policy.streams import grouped, logits_of
from paras2s.policy.types import (
    NO_PARAMETERS,
    Generation,
    PolicySpec,
    Prompt,
    SampleRequest,
    Sampling,
    SlotSpec,
    Turn,
    slot_names,
)
from paras2s.policy.weights import load_released, load_tensors, read_config, shard_files
from paras2s.types import Block
from paras2s.utils.io import read_json, write_bytes, write_json, write_text

ARCHITECTURE = "Moshi"
LORA_TARGETS = r"decoder\.model\.layers\.\d+\.(self_attn\.(q|k|v|o)_proj\.linear|mlp\.fc[12])"
SHARDED = r"(decoder\.model|depth_decoder)\.layers\.\d+"
# Silence between a question and its answer, and at the end of every prompt.
PAUSE_FRAMES = 2
# Frames of zeros until Mimi's codes count as those of silence.
SETTLE_FRAMES = 25
# Around PersonaPlex's prompt: frames of silence behind its voice and behind its role, and a tone in the user's stream.
PERSONA_PAUSE_FRAMES, PERSONA_TONE_HZ = 6, 440
VOICE = "voice.wav"
# Answers under way at a time, as far as their groups allow: a frame of the 7B model takes 0.5 MB of cache an answer.
ROWS_AT_ONCE = 64

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "ffn_dim")
CONFIG_KEYS = (
    *_SIZES, "num_codebooks", "audio_vocab_size", "rms_norm_eps", "hidden_act", "max_position_embeddings", "sliding_window",
    "audio_encoder_config", "depth_decoder_config",
)  # fmt: skip


@dataclass(frozen=True)
class MoshiText:
    """Text ids that are no words: the padding, what closes a padding before a word, and the end (None: there is none)."""

    pad_id: int = 3
    end_of_pad_id: int = 0
    end_id: int | None = None


class MoshiNet(nn.Module):
    """Backbone and depth decoder of a `MoshiForConditionalGeneration`, under its parameter names; takes its modules over."""

    def __init__(self, released: Any) -> None:
        super().__init__()
        self.config = released.config
        self.codebooks, self.codes = int(self.config.num_codebooks), int(self.config.audio_vocab_size)
        self.embed_tokens: Any = released.embed_tokens
        self.decoder: Any = released.decoder
        self.depth_decoder: Any = released.depth_decoder
        if self.depth_decoder.config.num_codebooks != self.codebooks:
            raise PolicyError(
                f"the depth decoder has {self.depth_decoder.config.num_codebooks} codebooks, the model {self.codebooks}"
            )
        for name, module in list(self.depth_decoder.named_modules()):
            if type(module).__name__ == "MoshiFlexibleLinear":
                parent, _, child = name.rpartition(".")
                setattr(self.depth_decoder.get_submodule(parent), child, _PerCodebook(module.weight))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.decoder.lm_head.weight.device

    def forward(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling) -> tuple[Tensor]:
        """Return log-probs [N, T, S] of the answers' tokens, 0 where not sampled: the backbone over all steps, then all frames.

        Answers follow their prompts and are padded on the right, so that causality alone hides the padding.
        """
        blocks = [block for (block,) in answers]
        tokens, sampled = (torch.from_numpy(part).to(self.device) for part in self._stacked(blocks))
        text, audio, starts = self._streams(prompts, blocks, tokens.shape[1])
        step = starts[:, None] - 1 + torch.arange(tokens.shape[1], device=self.device)
        states = self.read(text, audio)[torch.arange(len(step), device=self.device)[:, None], step]

        spoken = sampled[..., 0]
        words = in_parts(
            lambda states, targets: picked_logprobs(self.decoder.lm_head(states), targets, sampling.text_temperature),
            self.config.vocab_size,
            states[spoken],
            tokens[..., 0][spoken],
        )
        text_logp = words.new_zeros(spoken.shape).masked_scatter(spoken, words)

        framed = sampled[..., 1:].any(-1)
        # The depth decoder always runs, for nothing if need be: where its weights are sharded, every rank gathers them.
        framed[0, 0] |= ~framed.any()
        logits = self.frames(states[framed], tokens[framed][:, :-1])
        # Forced ids may lie behind the codes; what they would score is thrown away.
        targets = tokens[framed][:, 1:].clamp(max=self.codes - 1)
        sound = picked_logprobs(logits.flatten(0, 1), targets.flatten(), sampling.audio_temperature)
        places = framed[..., None].expand(-1, -1, self.codebooks)
        audio_logp = sound.new_zeros(places.shape).masked_scatter(places, sound)
        return (torch.where(sampled, torch.cat([text_logp[..., None], audio_logp], -1), 0.0),)

    def read(
        self, text: Tensor, audio: Tensor, positions: Tensor | None = None, seen: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        """Backbone states [N, W, d] after steps of text [N, W] and audio [N, W, 2K], Moshi's own codes first.

        With a cache: `positions` [N, W], None for 0, 1, ...; `seen` [N, all steps so far] is False at padding.
        """
        x = sum(table(audio[..., number]) for number, table in enumerate(self.embed_tokens))
        output = self.decoder.model(
            inputs_embeds=x + self.decoder.model.embed_tokens(text),
            attention_mask=seen,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return output.last_hidden_state

    def frames(self, states: Tensor, given: Tensor) -> Tensor:
        """Return logits [M, K, V] from states [M, d] and given [M, K]; without the mask eager attention would look ahead."""
        return self.depth_decoder(
            input_ids=given, last_hidden_state=states[:, None], attention_mask=torch.ones_like(given), use_cache=False
        ).logits

    def next_code(self, states: Tensor, given: Tensor, cache: Any) -> Tensor:
        """Return logits [N, V] of a frame's next code; given [N] is the token before it, `cache` holds those before that."""
        return self.depth_decoder(
            input_ids=given[:, None], last_hidden_state=states[:, None], past_key_values=cache, use_cache=True
        ).logits[:, 0]

    def padded(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
        """Text [B, L], audio [B, L, 2K], lengths [B]; padded on the right."""
        return self._streams(prompts, None, 1)

    def _stacked(self, blocks: Sequence[Block]) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and sampled [N, T, S] of all answers, padded to the longest."""
        steps = max(block.tokens.shape[1] for block in blocks)
        short = [((0, 0), (0, steps - block.tokens.shape[1]), (0, 0)) for block in blocks]
        tokens = [np.pad(block.tokens, pad) for block, pad in zip(blocks, short, strict=True)]
        sampled = [np.pad(block.sampled, pad) for block, pad in zip(blocks, short, strict=True)]
        return np.concatenate(tokens), np.concatenate(sampled)

    def _streams(self, prompts: Sequence[Prompt], blocks: Sequence[Block] | None, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Input streams: text [N, W], audio [N, W, 2K], and lengths of the prompts [N]; an answer's last step is never read."""
        groups = [1] * len(prompts) if blocks is None else [len(block.tokens) for block in blocks]
        width = max(prompt.length for prompt in prompts) + steps - 1
        text = np.full((sum(groups), width), self.config.vocab_size, dtype=np.int64)
        audio = np.full((sum(groups), width, 2 * self.codebooks), self.codes, dtype=np.int64)
        for number, (prompt, end) in enumerate(zip(prompts, np.cumsum(groups), strict=True)):
            rows, length = slice(end - groups[number], end), prompt.length
            text[rows, :length], audio[rows, :length] = prompt.text_ids, prompt.audio_ids
            if blocks is not None:
                fed = blocks[number].tokens[:, :-1]
                answer = slice(length, length + fed.shape[1])
                text[rows, answer], audio[rows, answer, : self.codebooks] = fed[..., 0], fed[..., 1:]
                audio[rows, answer, self.codebooks :] = prompt.audio_ids[-1, self.codebooks :]
        lengths = np.repeat([prompt.length for prompt in prompts], groups)
        return tuple(torch.from_numpy(part).to(self.device) for part in (text, audio, lengths))  # type: ignore[return-value]


class _PerCodebook(nn.Module):
    """A weight a codebook, [K, out, in]. Stands for transformers' module, which copies the weights once for every frame."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor, layer_idx: Tensor | None = None) -> Tensor:
        """X [M, k or 1, in] to [M, k, out]; `layer_idx` [k] says which codebooks, in order; None: all."""
        all_codebooks = layer_idx is None or len(layer_idx) == len(self.weight)
        weight = self.weight if all_codebooks else self.weight[layer_idx]
        return torch.einsum("mki,koi->mko", x.expand(-1, len(weight), -1), weight)


@torch.inference_mode()
def sample(model: MoshiNet, text_ids: MoshiText, request: SampleRequest) -> list[Generation]:
    """Sample G answers for each of B prompts. Each prompt is read once, and its cache replicated; finished answers leave."""
    from transformers import DynamicCache

    prompts, group_size, sampling = request.prompts, request.group_size, request.sampling
    device, count, slots = model.device, sampling.max_steps, 1 + model.codebooks
    uniforms = uniforms_of(request.seeds, count, slots).to(device)
    text, audio, lengths = model.padded(prompts)
    # Given a config, a cache would cut itself to the sliding window, and the mask would not.
    cache = DynamicCache()
    states = model.read(text, audio, cache=cache)[torch.arange(len(prompts), device=device), lengths - 1]
    cache.batch_repeat_interleave(group_size)
    silence, states, lengths = (
        part.repeat_interleave(group_size, 0)
        for part in (audio[torch.arange(len(prompts), device=device), lengths - 1], states, lengths)
    )
    seen = torch.arange(text.shape[1], device=device) < lengths[:, None]
    rows = len(states)
    tokens_of = torch.full((rows, count, slots), model.codes, device=device)
    tokens_of[..., 0] = text_ids.pad_id
    sampled_of = torch.zeros(rows, count, slots, dtype=torch.bool, device=device)
    logp_of = torch.zeros(rows, count, slots, dtype=torch.float64, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    active = torch.arange(rows, device=device)
    for step in range(count):
        forced = silence[active, 1 : model.codebooks] if step == 0 else None
        drawn, sampled, logp = _draw(model, states, forced, uniforms[active, step], sampling)
        tokens_of[active, step], sampled_of[active, step], logp_of[active, step] = drawn, sampled, logp
        if text_ids.end_id is not None:
            ended[active] = drawn[:, 0] == text_ids.end_id
            stay = (~ended[active]).nonzero()[:, 0]
            if not len(stay):
                break
            if len(stay) < len(active):
                active, drawn = active[stay], drawn[stay]
                cache.batch_select_indices(stay)
        if step < count - 1:
            seen = torch.cat([seen, seen.new_ones(rows, 1)], 1)
            both = torch.cat([drawn[:, 1:], silence[active, model.codebooks :]], 1)
            position = (lengths[active] + step)[:, None]
            states = model.read(drawn[:, :1], both[:, None], position, seen[active], cache)[:, 0]
    return grouped([part.cpu().numpy() for part in (tokens_of, sampled_of, logp_of, ended)], request.seeds)


def _draw(
    model: MoshiNet, states: Tensor, forced: Tensor | None, uniform: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw tokens, sampled mask and log-probs [n, S] of one frame; `forced` [n, K-1] are its later codes where known."""
    from transformers import DynamicCache

    logits = model.decoder.lm_head(states)
    token, logp = pick(logits, sampling.text_temperature, uniform[:, 0], sampling.text_top_k)
    tokens, logps = [token], [logp]
    cache = DynamicCache()
    for number in range(1 if forced is not None else model.codebooks):
        logits = model.next_code(states, token, cache)
        token, logp = pick(logits, sampling.audio_temperature, uniform[:, 1 + number], sampling.audio_top_k)
        tokens.append(token)
        logps.append(logp)
    own = torch.ones(uniform.shape, dtype=torch.bool, device=uniform.device)
    if forced is not None:
        own[:, len(tokens) :] = False
        tokens += list(forced.T)
        logps += [torch.zeros_like(logp)] * forced.shape[1]
    return torch.stack(tokens, 1), own, torch.stack(logps, 1).double()


class MoshiPolicy(Policy):
    """Moshi, Mimi and a tokenizer behind the policy interface."""

    model: MoshiNet

    def __init__(self, released: Any, tokenizer: Any, text_ids: MoshiText | None = None, persona: Turn | None = None) -> None:
        """Take over the modules of a `MoshiForConditionalGeneration`; `tokenizer` is a `tokenizers.Tokenizer`.

        `persona` is PersonaPlex's prompt, before every dialogue: a role in words, and a clip of its voice.
        """
        self.persona = persona
        config = released.config
        self.model, self.tokenizer, self.text_ids = MoshiNet(released).eval(), tokenizer, text_ids or MoshiText()
        self.mimi: Any = released.audio_encoder.float().requires_grad_(False).eval()
        self._generation_config = released.generation_config
        if tokenizer.get_vocab_size() > config.vocab_size:
            raise PolicyError(f"the tokenizer has {tokenizer.get_vocab_size()} pieces, the model {config.vocab_size}")
        rate_hz, codec_hz = int(self.mimi.config.sampling_rate), float(self.mimi.config.frame_rate)
        self._frame_samples = round(rate_hz / codec_hz)
        names = slot_names(self.model.codebooks)
        self.spec = PolicySpec(
            slots=(
                SlotSpec(names[0], "text", 0, config.vocab_size),
                *(SlotSpec(name, "audio", 0, self.model.codes) for name in names[1:]),
            ),
            step_rate_hz=codec_hz,
            input_rate_hz=rate_hz,
            output_rate_hz=rate_hz,
            lora_targets=LORA_TARGETS,
            # The user's code tables read the same codec as Moshi's own; they are no adaptor with a learning rate of its own.
            adaptor_parameters=NO_PARAMETERS,
            sharded=SHARDED,
            context_steps=min(config.max_position_embeddings, config.sliding_window),
            code_format=f"mimi-{self.model.codebooks}@{codec_hz:g}",
        )

    # -- prompts and targets ------------------------------------------------------------------------------------------

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Encode a dialogue as both audio streams, in the model's delayed layout; the transcript of a user's clip is not read.

        Raises:
            PolicyError: a system's turn, a turn without a clip, or more than the context holds.
        """
        own: list[np.ndarray] = []
        user: list[np.ndarray] = []
        words: list[np.ndarray] = []
        if self.persona is not None:
            for stream, part in zip((own, user, words), self._introduced(self.persona), strict=True):
                stream.append(part)
        for turn in turns:
            if turn.role == "system" or turn.clip is None:
                raise PolicyError(f"Moshi reads speech alone: leave out the {turn.role}'s turn {turn.text!r}, or speak it")
            codes = self._codes_of(turn.clip)
            active, silent = (own, user) if turn.role == "assistant" else (user, own)
            active.append(codes)
            silent.append(self._quiet(len(codes)))
            words.append(self._monologue(turn.text if turn.role == "assistant" else "", len(codes)))
        if not turns:
            raise PolicyError("a prompt needs a turn")
        pause = self._quiet(PAUSE_FRAMES)
        sides = [_delayed(np.concatenate([*side, pause]), self.model.codes) for side in (own, user)]
        start = np.array([self.model.config.vocab_size])
        text = np.concatenate([start, *words, self._monologue("", PAUSE_FRAMES)])
        limit = self.spec.context_steps
        if limit is not None and len(text) >= limit:
            raise PolicyError(f"the dialogue has {len(text)} frames, Moshi's context {limit}; leave out the oldest turns")
        audio = np.concatenate(sides, 1)
        return Prompt(audio, text, None, np.zeros(len(text), dtype=bool), 0, (0,) * audio.shape[1])

    def encode_target(self, clip: Clip, text: str) -> tuple[Block, ...]:
        """Encode a demonstration: its frames, one of silence, any end. Raises PolicyError: it has more words than frames."""
        codes = np.concatenate([self._codes_of(clip), self._quiet(1)])
        end = self.text_ids.pad_id if self.text_ids.end_id is None else self.text_ids.end_id
        tokens = np.zeros((1, len(codes), 1 + self.model.codebooks), dtype=np.int64)
        tokens[0, :, 0] = [*self._monologue(text, len(codes) - 1), end]
        tokens[0, :, 1] = codes[:, 0]
        tokens[0, 0, 2:], tokens[0, 1:, 2:] = self.silence[1:], codes[:-1, 1:]
        sampled = np.ones(tokens.shape, dtype=bool)
        sampled[0, 0, 2:] = False
        return (Block(slot_names(self.model.codebooks), tokens, sampled, np.zeros(tokens.shape)),)

    def _introduced(self, persona: Turn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return Moshi's codes, the user's and the words of PersonaPlex's prompt: the voice, a pause, the role, a pause."""
        own = [] if persona.clip is None else [self._codes_of(persona.clip)]
        ids = self.tokenizer.encode(f"<system> {persona.text} <system>", add_special_tokens=False).ids if persona.text else []
        codes = np.concatenate([*own, self._quiet(len(ids) + 2 * PERSONA_PAUSE_FRAMES)])
        words = self._monologue("", len(codes))
        words[len(words) - len(ids) - PERSONA_PAUSE_FRAMES : len(words) - PERSONA_PAUSE_FRAMES] = ids
        return codes, np.tile(self._settled(PERSONA_TONE_HZ), (len(codes), 1)), words

    @cached_property
    def silence(self) -> np.ndarray:
        """Codes [K] of a frame of silence."""
        return self._settled(0)

    def _settled(self, tone_hz: float) -> np.ndarray:
        """Return the codes [K] of a frame of a tone of half scale that has lasted for a while; 0 is silence."""
        time_s = np.arange(SETTLE_FRAMES * self._frame_samples) / self.spec.input_rate_hz
        wave = 0.5 * np.sin(2 * np.pi * tone_hz * time_s)
        return self._codes_of(Clip(wave.astype(np.float32), self.spec.input_rate_hz))[-1]

    def _quiet(self, frames: int) -> np.ndarray:
        return np.tile(self.silence, (frames, 1))

    def _codes_of(self, clip: Clip) -> np.ndarray:
        return encode_mimi(self.mimi, clip, self.model.codebooks)

    def _monologue(self, text: str, frames: int) -> np.ndarray:
        """Text ids [frames]: the words from the start, then pads."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids if text else []
        if len(ids) > frames:
            raise PolicyError(f"the words ({len(ids)} pieces) are longer than their speech ({frames} frames): {text!r}")
        return np.array([*ids, *[self.text_ids.pad_id] * (frames - len(ids))], dtype=np.int64)

    # -- answers ------------------------------------------------------------------------------------------------------

    def generate(self, request: SampleRequest) -> list[Generation]:
        """See `Policy.generate`. Raises PolicyError: text alone is asked for, or more steps than the context holds."""
        sampling = request.sampling
        if not sampling.speak:
            raise PolicyError("Moshi cannot answer in text alone: its text is that of its speech")
        longest = max(prompt.length for prompt in request.prompts)
        limit = self.spec.context_steps
        if limit is not None and longest + sampling.max_steps > limit:
            raise PolicyError(f"{longest} frames of prompt and {sampling.max_steps} of answer: Moshi's context holds {limit}")
        self.model.eval()
        return [generation for part in request.parts(ROWS_AT_ONCE) for generation in sample(self.model, self.text_ids, part)]

    def answer_logits(self, prompt: Prompt, blocks: Sequence[Block]) -> list[np.ndarray]:
        """See `streams.logits_of`."""
        heads = (self.model.decoder.lm_head, self.model.depth_decoder.lm_heads)
        return logits_of(self.model.eval(), heads, prompt, blocks)

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Return codes [T, K] of the whole frames of one answer; the last one's later codes would have come a step later."""
        (block,) = blocks
        tokens = block.tokens[answer, block.sampled[answer].any(1), 1:]
        return np.concatenate([tokens[:-1, :1], tokens[1:, 1:]], 1)

    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Mimi's waveform; it draws nothing from `seed`."""
        return decode_mimi(self.mimi, self.decode_codes(blocks, answer))

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """Decode the words of the text stream."""
        (block,) = blocks
        ids = block.tokens[answer, block.sampled[answer, :, 0], 0]
        silent = (self.text_ids.pad_id, self.text_ids.end_of_pad_id, self.text_ids.end_id)
        return str(self.tokenizer.decode([int(number) for number in ids if number not in silent])).strip()

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the released layout with tokenizer and `policy.json`, for transformers too. Raises PolicyError: adapters."""
        from transformers import MoshiForConditionalGeneration

        self.refuse_adapters()
        # transformers renames Mimi's tensors on their way to the file, so it has to write them.
        with torch.device("meta"):
            full: Any = MoshiForConditionalGeneration(self.model.config)
        full.generation_config = self._generation_config
        for name, module in (*self.model.named_children(), ("audio_encoder", self.mimi)):
            setattr(full, name, module)
        (folder / "policy.json").unlink(missing_ok=True)
        full.save_pretrained(folder)
        write_text(folder / "tokenizer.json", self.tokenizer.to_str())
        # Last, since a folder that has it counts as whole.
        described: dict[str, Any] = {"architecture": ARCHITECTURE, "text": asdict(self.text_ids)}
        if self.persona is not None:
            described["persona"] = {"role": self.persona.text}
            if self.persona.clip is not None:
                write_bytes(folder / VOICE, encode_exactly(self.persona.clip))
        write_json(folder / "policy.json", described)

    def reload(self, folder: Path) -> None:
        """Backbone and depth decoder; Mimi never changes."""
        load_tensors(
            self.model, shard_files(folder), str(folder), lambda name: None if name.startswith("audio_encoder.") else name
        )

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> MoshiPolicy:
        """Read what `save` wrote, or a release (such as kmhf/hf-moshiko). Raises PolicyError: names what does not fit."""
        from tokenizers import Tokenizer
        from transformers import MoshiForConditionalGeneration

        text_ids, persona = _described(folder / "policy.json")
        read_config(folder / "config.json", CONFIG_KEYS)
        if not (folder / "tokenizer.json").is_file():
            raise PolicyError(
                f"{folder}: no tokenizer.json; copy it from a release in transformers' format, or convert Kyutai's "
                "SentencePiece model with transformers' MoshiConverter"
            )
        released = load_released(MoshiForConditionalGeneration, folder, dtype)
        policy = cls(released, Tokenizer.from_file(str(folder / "tokenizer.json")), text_ids, persona)
        policy.model.to(device)
        policy.mimi.to(device)
        return policy


def _described(path: Path) -> tuple[MoshiText, Turn | None]:
    """Return the text ids of a checkpoint, or the release's, and PersonaPlex's prompt, if there is one."""
    if not path.is_file():
        return MoshiText(), None
    described = read_json(path)
    architecture = described.get("architecture") if isinstance(described, dict) else None
    if architecture != ARCHITECTURE:
        raise PolicyError(f"{path.parent}: holds a {architecture!r}, not a {ARCHITECTURE}; choose another")
    try:
        text_ids, persona = MoshiText(**described["text"]), described.get("persona")
        role = None if persona is None else str(persona["role"])
    except (KeyError, TypeError) as error:
        raise PolicyError(f"{path}: 'text' or 'persona' does not fit ({one_line(error)})") from error
    voice = path.parent / VOICE
    return text_ids, None if role is None else Turn("system", role, read_clip(voice) if voice.is_file() else None)


def _delayed(codes: np.ndarray, initial_id: int) -> np.ndarray:
    """Return codes [F, K] in the model's layout [1 + F, K]: a step of initial ids, then later codebooks a step late."""
    laid = np.full((1 + len(codes), codes.shape[1]), initial_id, dtype=np.int64)
    laid[1:, 0], laid[2:, 1:] = codes[:, 0], codes[:-1, 1:]
    return laid
