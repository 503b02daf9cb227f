"""`QwenOmniPolicy`: Qwen2.5-Omni. The thinker writes a reply, then the talker speaks it from the thinker's states.

Two blocks an answer, each with its own clock: words up to and including `<|im_end|>`, and codes at 50 Hz up to and including
their end. `Sampling.max_steps` limits each of them; words are far fewer than codes, so in effect it limits the sound. An
answer of one token has no words and no audio.

Sampling is a loop of its own: transformers' `generate` (5.23) adds the codec's pad and begin embeddings to the talker's input
only where a batch is padded, so that a prompt has two distributions. Here they are always added, and rows are padded on the
right, where a causal model does not look. Ids that are neither code nor end have no probability, in sampling and in scoring.
No repetition penalty and no top-p, which would change the policy that is trained.

Left out: images, video, targets from recorded speech (its encoder was never released), several speakers in a batch.
Alphabet: B prompts, G answers a prompt, N answers, L prompt tokens, T steps, H the thinker's width, V ids.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError, one_line
from paras2s.policy.base import Policy
from paras2s.policy.dual_stream.sampler import check_request, pick, uniforms_of
from paras2s.policy.types import NO_PARAMETERS, Generation, PolicySpec, Prompt, Sampling, SlotSpec, Turn
from paras2s.policy.weights import load_tensors, read_config, shard_files, write_tensors
from paras2s.types import Block
from paras2s.utils.io import write_bytes, write_json

INPUT_RATE_HZ, OUTPUT_RATE_HZ = 16_000, 24_000
# Samples a mel frame, and the longest clip (released `preprocessor_config.json`).
HOP, MAX_CLIP_S = 160, 300.0
AUDIO_BOS, AUDIO, AUDIO_EOS = "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"
START, END = "<|im_start|>", "<|im_end|>"
# The makers': with another one the released model speaks less well.
SYSTEM = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and visual "
    "inputs, as well as generating text and speech."
)
SPEAKER, SPEAKERS_FILE = "Chelsie", "spk_dict.pt"
# Read and written as they are, so that a checkpoint of ours is one for everybody else.
COMPANIONS = ("generation_config.json", "preprocessor_config.json", "chat_template.json", "chat_template.jinja")
# The leading part keeps the towers out: a suffix alone would hit them, and train them in silence.
LAYERS = r".*(language_model|talker\.model)\.layers\.\d+"
LORA_TARGETS = LAYERS + r"\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
# Answers under way at once.
ROWS_AT_ONCE = 64


def audio_tokens(samples: int) -> int:
    """Placeholders of a clip at 16 kHz: 25 a second (transformers' own arithmetic, on mel frames of 10 ms)."""
    frames = -(-samples // HOP)
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


@dataclass(frozen=True)
class OmniIds:
    """Ids with a meaning. `end` ends a reply; `text_*` are rows of the thinker's embedding, `codec_*` of the talker's."""

    end: int
    text_begin: int
    text_end: int
    text_pad: int
    codec_begin: int
    codec_pad: int
    codec_ends: tuple[int, int]
    codes: int

    @classmethod
    def read(cls, config: Any, end: int, text_begin: int) -> OmniIds:
        """From a model's config; `text_begin` is the speaker's.

        Raises:
            PolicyError: an id lies outside its vocabulary, or a codec control id is a code.
        """
        talker, words = config.talker_config, config.thinker_config.text_config.vocab_size
        text = (text_begin, talker.tts_text_end_token_id, talker.tts_text_pad_token_id)
        if max(end, *text) >= words:
            raise PolicyError(f"ids {(end, *text)} must lie below {words}; config, tokenizer and speaker do not fit together")
        # Either of them ends the sound, as released; token2wav has one embedding more than there are codes.
        ends = (talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id)
        begin, codes = talker.tts_codec_start_token_id, config.token2wav_config.dit_config.num_embeds - 1
        if min(begin, *ends) < codes or max(begin, *ends) >= talker.vocab_size:
            raise PolicyError(f"codec control ids {(begin, *ends)} must lie from {codes} to {talker.vocab_size - 1}")
        return cls(end, *text, codec_begin=begin, codec_pad=ends[0], codec_ends=ends, codes=codes)


def replies_of(block: Block, end: int) -> np.ndarray:
    """Number of words spoken of each answer [G]: all but the last token, which the thinker never read.

    A reply ends with its first `end` (which also pads), or with its block. The `sampled` mask is not read: a learner that
    masks words out does not change what the sound was conditioned on.
    """
    ends = block.tokens[:, :, 0] == end
    return np.where(ends.any(1), ends.argmax(1), ends.shape[1] - 1)


class OmniNetwork(nn.Module):
    """Thinker, talker and token2wav under transformers' names; forward is the teacher-forced pass.

    `talker_gradient`: whether the sound's gradient reaches the thinker through its states. Off by default: an answer has
    hundreds of codes and tens of words, so a bad voice would be mended by changing the words. The sound is
    then differentiated as if those states were given, which is not the whole gradient of the joint probability.
    """

    forbidden: Tensor

    def __init__(self, released: Any, ids: OmniIds, talker_gradient: bool) -> None:
        super().__init__()
        self.thinker: Any = released.thinker
        self.talker: Any = released.talker
        self.token2wav: Any = released.token2wav
        self.ids, self.talker_gradient, self.gradient_checkpointing = ids, talker_gradient, False
        forbidden = torch.arange(self.talker.config.vocab_size) >= ids.codes
        forbidden[list(ids.codec_ends)] = False
        self.register_buffer("forbidden", forbidden, persistent=False)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.forbidden.device

    def words(self, tokens: Tensor) -> Tensor:
        """The thinker's embedding of ids [...]: [..., H]."""
        return self.thinker.model.language_model.embed_tokens(tokens)

    def codec(self, tokens: Tensor) -> Tensor:
        """The talker's embedding of ids [...]: [..., H]."""
        return self.talker.model.embed_tokens(tokens)

    def codec_logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] in which what is neither code nor end has no probability."""
        return self.talker.codec_head(hidden).masked_fill(self.forbidden, float("-inf"))

    def read(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
        """The thinker's input [B, L, H], where it is sound [B, L], and lengths [B]; padded on the right."""
        lengths = torch.tensor([prompt.length for prompt in prompts], device=self.device)
        rows = [torch.tensor(np.stack([prompt.text_ids, prompt.continuous], 1)) for prompt in prompts]
        tokens, sound = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device).unbind(-1)
        x, is_audio = self.words(tokens), sound.bool()
        # A mask and a concatenation have one order, so clips need not be told apart.
        parts = [prompt.features[prompt.continuous] for prompt in prompts if prompt.features is not None]
        if parts:
            x = x.masked_scatter(is_audio[..., None], torch.from_numpy(np.concatenate(parts)).to(x))
        return x, is_audio, lengths

    def conditions(self, hidden: Tensor, x: Tensor, is_audio: Tensor) -> Tensor:
        """Talker inputs from the thinker [N, L, H]: states plus input, without the embeddings of the question's audio."""
        length = is_audio.shape[1]
        states = hidden + torch.cat([x[:, :length].masked_fill(is_audio[..., None], 0.0), x[:, length:]], 1)
        return states if self.talker_gradient else states.detach()

    def marks(self) -> tuple[Tensor, Tensor, Tensor]:
        """The talker's begin, end and pad of text, [H] each; the begin with the codec's pad, which it always goes with."""
        ids = torch.tensor([self.ids.text_begin, self.ids.text_end, self.ids.text_pad], device=self.device)
        begin, end, pad = self.words(ids) if self.talker_gradient else self.words(ids).detach()
        return begin + self.codec(torch.tensor(self.ids.codec_pad, device=self.device)), end, pad

    def forward(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """Log-probs [N, T, 1] of words and of codes, 0 where not sampled; one pass of the thinker and one of the talker.

        A prompt is read again for each of its answers: without a cache, layers may be checkpointed and sharded.
        """
        # transformers checkpoints in training mode alone; nothing of it drops out.
        self.train(self.gradient_checkpointing)
        texts, sounds = [blocks[0] for blocks in answers], [blocks[1] for blocks in answers]
        owner = torch.repeat_interleave(torch.tensor([len(block.tokens) for block in texts])).to(self.device)
        x, is_audio, lengths = (part[owner] for part in self.read(prompts))
        tokens, sampled = _stack(texts, self.ids.end, self.device)
        x = _behind(x, lengths, self.words(tokens[:, :-1]))
        hidden = _run(self.thinker.model.language_model, x)
        text = _score(self.thinker.lm_head, hidden, lengths - 1, tokens, sampled, sampling.text_temperature)
        states = self.conditions(hidden, x, is_audio)
        counts = np.concatenate([replies_of(block, self.ids.end) for block in texts])
        tokens, sampled = _stack(sounds, self.ids.codec_pad, self.device)
        begin, end, pad = self.marks()
        step, count = torch.arange(tokens.shape[1], device=self.device), torch.from_numpy(counts).to(self.device)[:, None, None]
        place = (lengths[:, None] + step).clamp(max=states.shape[1] - 1)
        reply = states.gather(1, place[..., None].expand(-1, -1, states.shape[2]))
        reply = torch.where(step[:, None] < count, reply, torch.where(step[:, None] == count, end, pad))
        before = torch.cat([torch.full_like(tokens[:, :1], self.ids.codec_begin), tokens[:, :-1]], 1)
        tail = torch.cat([begin.expand(len(reply), 1, -1), reply + self.codec(before)], 1)
        x = self.talker.thinker_to_talker_proj(_behind(states[:, : is_audio.shape[1]], lengths, tail))
        hidden = _run(self.talker.model, x)
        audio = _score(self.codec_logits, hidden, lengths + 1, tokens, sampled, sampling.audio_temperature)
        return text, audio

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, uniforms: Tensor) -> tuple[_Drawn, _Drawn]:
        """Words and codes of N answers from one prefill a prompt; `uniforms` [N, T, 2]."""
        x, is_audio, lengths = self.read(prompts)
        everyone = torch.arange(len(uniforms), device=self.device)
        reading = _Reading(self.thinker.model.language_model, x, lengths, group_size, sampling.max_steps)
        state = reading.states[everyone // group_size, reading.lengths - 1]
        read: list[tuple[Tensor, Tensor]] = []

        def next_word(rows: Tensor, step: int, tokens: Tensor) -> Tensor:
            embedded = self.words(tokens)
            fed = reading.feed(embedded)
            read.append((rows, fed + embedded))
            return fed

        how = (sampling.text_temperature, sampling.text_top_k)
        text = _roll(reading, state, everyone, uniforms[..., 0], self.thinker.lm_head, how, next_word, (self.ids.end,))
        reply = x.new_zeros(len(uniforms), max(len(read), 1), x.shape[-1])
        for step, (rows, spoken) in enumerate(read):
            reply[rows, step] = spoken
        count = text.counts - 1
        speaking = (count > 0).nonzero()[:, 0] if sampling.speak else everyone[:0]
        if not len(speaking):
            none = torch.zeros_like(count)
            return text, _Drawn(none[:, None], none[:, None].to(text.logp), none, none > 0)
        begin, end, pad = self.marks()
        x = _behind(self.conditions(reading.states, x, is_audio), lengths, begin.expand(len(prompts), 1, -1))
        project = self.talker.thinker_to_talker_proj
        reading = _Reading(self.talker.model, project(x), lengths + 1, group_size, sampling.max_steps)
        reading.select(speaking)

        def next_code(rows: Tensor, step: int, tokens: Tensor) -> Tensor:
            # A code is read together with the next word; the first word goes with the codec's begin, at step -1.
            behind = torch.where((count[rows] == step + 1)[:, None], end, pad)
            word = torch.where((count[rows] > step + 1)[:, None], reply[rows, min(step + 1, reply.shape[1] - 1)], behind)
            return reading.feed(project(word + self.codec(tokens)))

        state = next_code(speaking, -1, torch.full_like(speaking, self.ids.codec_begin))
        how, ends = (sampling.audio_temperature, sampling.audio_top_k), self.ids.codec_ends
        return text, _roll(reading, state, speaking, uniforms[..., 1], self.codec_logits, how, next_code, ends)


def _run(stack: Any, x: Tensor, start: Tensor | None = None, seen: Tensor | None = None, cache: Any = None) -> Tensor:
    """A decoder's states [N, L, .] of inputs that start at `start` [N], or at 0; padding on the right is never looked at.

    Sound without pictures has the positions of text, three equal rows (`get_rope_index`), so it is not called; a test compares.
    """
    position = torch.arange(x.shape[1], device=x.device) + (0 if start is None else start[:, None])
    how = {"position_ids": position.expand(3, len(x), -1), "past_key_values": cache, "use_cache": cache is not None}
    return stack(inputs_embeds=x, attention_mask=seen, **how).last_hidden_state


def _behind(x: Tensor, lengths: Tensor, tail: Tensor) -> Tensor:
    """[N, L + T, H]: `tail` [N, T, H] put right behind each row's own length."""
    wide = nn.functional.pad(x, (0, 0, 0, tail.shape[1]))
    place = lengths[:, None] + torch.arange(tail.shape[1], device=x.device)
    return wide.scatter(1, place[..., None].expand_as(tail), tail)


def _score(
    head: Callable[[Tensor], Tensor], hidden: Tensor, first: Tensor, tokens: Tensor, sampled: Tensor, temperature: float
) -> Tensor:
    """Log-probs [N, T, 1] of tokens [N, T]; step i is predicted at `first` + i. The head runs only where tokens were drawn."""
    row, step = sampled.nonzero(as_tuple=True)
    logits = head(hidden[row, first[row] + step])
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    chosen = torch.log_softmax(scaled, -1).gather(1, tokens[row, step][:, None])[:, 0]
    return chosen.new_zeros(tokens.shape).index_put((row, step), chosen)[..., None]


def _stack(blocks: Sequence[Block], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and sampled mask [N, T] of all answers, padded to the longest block."""
    widths = [block.tokens.shape[1] for block in blocks]
    short = [((0, 0), (0, max(widths) - width)) for width in widths]
    tokens = [np.pad(block.tokens[..., 0], gap, constant_values=pad) for block, gap in zip(blocks, short, strict=True)]
    sampled = [np.pad(block.sampled[..., 0], gap) for block, gap in zip(blocks, short, strict=True)]
    return torch.from_numpy(np.concatenate(tokens)).to(device), torch.from_numpy(np.concatenate(sampled)).to(device)


class _Reading:
    """A decoder's KV cache: each prompt once, and behind it the answers' tokens, n rows of them.

    Prompts are padded on the right, so that a short one's padding lies between it and its answers; `seen` hides it.
    """

    def __init__(self, stack: Any, x: Tensor, lengths: Tensor, group_size: int, limit: int) -> None:
        from transformers import DynamicCache

        self.stack, self.width, self.count = stack, x.shape[1], 0
        self.cache = DynamicCache(config=stack.config)
        self.states = _run(stack, x, cache=self.cache)
        self.cache.batch_repeat_interleave(group_size)
        self.lengths = lengths.repeat_interleave(group_size)
        place = torch.arange(self.width + limit, device=x.device)
        self.seen = (place < self.lengths[:, None]) | (place >= self.width)

    def feed(self, x: Tensor) -> Tensor:
        """Read one more input a row [n, .]; the state that predicts what follows it [n, .]."""
        self.count += 1
        seen = self.seen[:, : self.width + self.count]
        return _run(self.stack, x[:, None], self.lengths + self.count - 1, seen, self.cache)[:, -1]

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self.cache.batch_select_indices(rows)
        self.lengths, self.seen = self.lengths[rows], self.seen[rows]


@dataclass(frozen=True)
class _Drawn:
    """One stream of N answers: tokens and log-probs [N, T], how many were drawn of each [N], and whether each ended [N]."""

    tokens: Tensor
    logp: Tensor
    counts: Tensor
    ended: Tensor


def _roll(
    reading: _Reading, state: Tensor, active: Tensor, uniforms: Tensor, head: Callable[[Tensor], Tensor],
    how: tuple[float, int], advance: Callable[[Tensor, int, Tensor], Tensor], ends: tuple[int, ...],
) -> _Drawn:  # fmt: skip
    """Draw the tokens of answers `active` until each has ended or the limit is reached; `uniforms` [N, T].

    `how` is temperature and top k; `advance(rows, step, tokens)` reads what was drawn at `step` and gives the next state.
    """
    rows, limit = uniforms.shape
    tokens = torch.zeros(rows, limit, dtype=torch.long, device=state.device)
    logp = torch.zeros(rows, limit, dtype=torch.promote_types(state.dtype, torch.float32), device=state.device)
    counts, ended = torch.zeros_like(tokens[:, 0]), torch.zeros_like(tokens[:, 0], dtype=torch.bool)
    for step in range(limit):
        drawn, chosen = pick(head(state), how[0], uniforms[active, step], how[1])
        fresh = ~ended[active]
        live, drawn = active[fresh], drawn[fresh]
        tokens[live, step], logp[live, step], counts[live] = drawn, chosen[fresh], step + 1
        ended[live] = torch.isin(drawn, torch.tensor(ends, device=drawn.device))
        done = ended[active]
        if bool(done.all()) or step == limit - 1:
            break
        # Ended answers leave in bulk: moving the cache costs more than a few idle rows.
        if 8 * int(done.sum()) >= len(active):
            remaining = (~done).nonzero()[:, 0]
            reading.select(remaining)
            active = active[remaining]
        state = advance(active, step, tokens[active, step])
    return _Drawn(tokens, logp, counts, ended)


def _pack(name: str, drawn: _Drawn, rows: slice, pad: int) -> Block:
    """A group's answers of one stream, as long as its longest and at least one step."""
    counts = drawn.counts[rows].cpu().numpy()
    steps = max(int(counts.max()), 1)
    sampled = np.arange(steps) < counts[:, None]
    tokens = np.where(sampled, drawn.tokens[rows, :steps].cpu().numpy(), pad)
    logp = np.where(sampled, drawn.logp[rows, :steps].cpu().numpy(), 0.0)
    return Block((name,), tokens[..., None], sampled[..., None], logp[..., None])


class QwenOmniPolicy(Policy):
    """Thinker, then talker. One code path for `Qwen/Qwen2.5-Omni-7B`, `-3B` and for tiny instances of the same classes."""

    model: OmniNetwork

    def __init__(
        self, released: Any, tokenizer: Any, speakers: dict[str, Any], speaker: str = SPEAKER, talker_gradient: bool = False
    ) -> None:
        from transformers import WhisperFeatureExtractor

        if speaker not in speakers:
            raise PolicyError(f"no speaker {speaker!r}; there are {', '.join(sorted(speakers))}")
        if not released.has_talker:
            raise PolicyError("this model has no talker (enable_audio_output is false), so it cannot speak")
        self.config, self.tokenizer, self.speakers = released.config, tokenizer, speakers
        self.voice = speakers[speaker]
        self.special = {name: tokenizer.convert_tokens_to_ids(name) for name in (START, END, AUDIO_BOS, AUDIO, AUDIO_EOS)}
        thinker = self.config.thinker_config
        placed = {AUDIO_BOS: thinker.audio_start_token_id, AUDIO: thinker.audio_token_id, AUDIO_EOS: thinker.audio_end_token_id}
        for name, number in self.special.items():
            if number is None or tokenizer.convert_ids_to_tokens(number) != name:
                raise PolicyError(f"the tokenizer has no {name}; it is not Qwen2.5-Omni's")
            if placed.get(name, number) != number:
                raise PolicyError(f"{name} is {number} to the tokenizer and {placed[name]} to the config")
        self.ids = OmniIds.read(self.config, self.special[END], int(self.voice["bos_token"]))
        self.model = OmniNetwork(released, self.ids, talker_gradient)
        self.companions: dict[str, bytes] = {}
        self.mel: Any = WhisperFeatureExtractor(feature_size=128, n_fft=400, hop_length=HOP, chunk_length=int(MAX_CLIP_S))  # type: ignore[no-untyped-call]
        self.spec = self._spec()
        self._freeze_towers()

    def _spec(self) -> PolicySpec:
        config, wave = self.config, self.config.token2wav_config
        rate_hz = OUTPUT_RATE_HZ / (wave.dit_config.repeats * math.prod(wave.bigvgan_config.upsample_rates))
        text = config.thinker_config.text_config
        # Between the codes and the ends lie ids that are never drawn; `OmniNetwork.forbidden` has each of them.
        slots = (SlotSpec("text", "text", 0, text.vocab_size), SlotSpec("audio0", "audio", 0, max(self.ids.codec_ends) + 1))
        return PolicySpec(
            slots=slots, step_rate_hz=rate_hz, input_rate_hz=INPUT_RATE_HZ, output_rate_hz=OUTPUT_RATE_HZ,
            lora_targets=LORA_TARGETS, adaptor_parameters=NO_PARAMETERS, sharded=LAYERS,
            context_steps=min(text.max_position_embeddings, config.talker_config.max_position_embeddings),
            code_format=f"qwen2.5-omni-{self.ids.codes}@{rate_hz:g}",
        )  # fmt: skip

    def _freeze_towers(self) -> None:
        """The towers run when a prompt is encoded and never again, so they get no gradient; token2wav is a decoder."""
        for part in (self.model.thinker.model.audio_tower, self.model.thinker.model.visual, self.model.token2wav):
            part.requires_grad_(False)

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations for the gradient, by transformers' own means."""
        for part in (self.model.thinker, self.model.talker):
            part.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.gradient_checkpointing = True

    def take_off_adapters(self) -> dict[str, Any]:
        """Leave the layers beneath the adapters alone in the model; the towers stay frozen."""
        found = super().take_off_adapters()
        self._freeze_towers()
        return found

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """The chat template's text, each clip as the audio tower's output; without a system turn, the makers'.

        The transcript of a user's clip is not read. Of an assistant's turn the words are read and not the sound, as
        the model remembers its own. What looks like a special token in somebody's words stays words.

        Raises:
            PolicyError: a turn without content, an assistant's clip without words, or a clip too short or too long.
        """
        if not turns or turns[0].role != "system":
            turns = [Turn("system", SYSTEM), *turns]
        ids: list[int] = []
        clips: list[np.ndarray] = []
        for turn in turns:
            ids.append(self.special[START])
            if turn.role == "user" and turn.clip is not None:
                samples = turn.clip.at(INPUT_RATE_HZ).samples
                places, duration_s = audio_tokens(len(samples)), turn.clip.duration_s
                if places < 1 or duration_s > MAX_CLIP_S:
                    raise PolicyError(f"a clip of {duration_s:.3f} s; Qwen2.5-Omni takes 0.03 s to {MAX_CLIP_S:.0f} s")
                clips.append(samples)
                sound = [self.special[AUDIO]] * places
                ids += [*self._words("user\n"), self.special[AUDIO_BOS], *sound, self.special[AUDIO_EOS]]
            elif turn.text:
                ids += self._words(f"{turn.role}\n{turn.text}")
            else:
                raise PolicyError(f"the {turn.role}'s turn holds no words" + (", only sound" if turn.clip is not None else ""))
            ids += [self.special[END], *self._words("\n")]
        ids += [self.special[START], *self._words("assistant\n")]
        text = np.array(ids, dtype=np.int64)
        continuous = text == self.special[AUDIO]
        features = None
        if clips:
            vectors = self._audio_features(clips)
            features = np.zeros((len(text), vectors.shape[1]), dtype=vectors.dtype)
            features[continuous] = vectors
        return Prompt(np.zeros((len(text), 0), dtype=np.int64), text, features, continuous)

    def _words(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    @torch.inference_mode()
    def _audio_features(self, clips: Sequence[np.ndarray]) -> np.ndarray:
        """The audio tower's output for all clips in order [n, H].

        Mel features are what the processor gives when it pads to 300 s, in less time: zeros behind each clip keep its last
        frames from mirroring its end.
        """
        frames = [-(-len(clip) // HOP) for clip in clips]
        size = (max(frames) + 3) * HOP
        padded = [np.pad(clip, (0, size - len(clip))) for clip in clips]
        made = self.mel(padded, sampling_rate=INPUT_RATE_HZ, padding="longest", truncation=False, return_tensors="pt")
        mask = torch.tensor([[1] * count + [0] * (max(frames) - count) for count in frames], device=self.device)
        tower = self.model.thinker.model.audio_tower.eval()
        mel = made["input_features"][..., : max(frames)].to(self.device, tower.conv1.weight.dtype)
        encoded = self.model.thinker.model.get_audio_features(mel, mask).last_hidden_state
        # numpy knows no bfloat16.
        return np.asarray(encoded.to(torch.promote_types(encoded.dtype, torch.float32)).cpu().numpy())

    def generate(
        self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[Generation]:
        """Words, then sound; "eos" if both came to an end, and for an answer without sound if its words did."""
        check_request(prompts, group_size, sampling, seeds)
        self.model.eval()
        at_once, found = max(1, ROWS_AT_ONCE // group_size), list[Generation]()
        for start in range(0, len(prompts), at_once):
            part = slice(start, start + at_once)
            uniforms = uniforms_of(seeds[part], sampling.max_steps, 2).to(self.device)
            text, audio = self.model.sample(prompts[part], group_size, sampling, uniforms)
            complete = text.ended & (audio.ended | (audio.counts == 0))
            for number, group in enumerate(seeds[part]):
                rows = slice(number * group_size, (number + 1) * group_size)
                blocks = (_pack("text", text, rows, self.ids.end), _pack("audio0", audio, rows, self.ids.codec_pad))
                finish = tuple("eos" if end else "length" for end in complete[rows].tolist())
                found.append(Generation(blocks, finish, tuple(group)))
        return found

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Codec codes [T, 1] of one answer."""
        tokens, sampled = blocks[1].tokens[answer], blocks[1].sampled[answer]
        return tokens[(sampled & (tokens < self.ids.codes))[:, 0]]

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """The reply, without its end."""
        ids = takewhile(lambda number: number != self.ids.end, blocks[0].tokens[answer, :, 0].tolist())
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    @torch.inference_mode()
    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Waveform by token2wav in float32 and without its dropout, in the voice of the policy's speaker."""
        codes = self.decode_codes(blocks, answer)
        if not len(codes):
            return Clip(np.zeros(0, dtype=np.float32), OUTPUT_RATE_HZ)
        speaker, mel = (self.voice[name].to(self.device, torch.float32) for name in ("cond", "ref_mel"))
        token2wav = self.model.token2wav.eval()
        # Seeding seeds every device, so every device's state is kept.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            wave = token2wav(torch.from_numpy(codes.T).to(self.device), conditioning=speaker, reference_mel=mel)
        return Clip(wave.reshape(-1).float().cpu().numpy(), OUTPUT_RATE_HZ)

    def save(self, folder: Path) -> None:
        """The released layout: `thinker.*`, `talker.*`, `token2wav.*`, tokenizer and speakers; `config.json` comes last."""
        self.refuse_adapters()
        write_tensors(folder, {stored_name(name): value for name, value in self.model.state_dict().items()})
        self.tokenizer.save_pretrained(str(folder))
        speakers = io.BytesIO()
        torch.save(self.speakers, speakers)
        write_bytes(folder / SPEAKERS_FILE, speakers.getvalue())
        for name, content in self.companions.items():
            write_bytes(folder / name, content)
        dtype = str(self.model.thinker.lm_head.weight.dtype).removeprefix("torch.")
        described = {**self.config.to_dict(), "architectures": ["Qwen2_5OmniForConditionalGeneration"], "dtype": dtype}
        write_json(folder / "config.json", described)

    def reload(self, folder: Path) -> None:
        """Weights alone; what is computed from the config (rotary frequencies, filters) is passed over where it was stored."""
        ours: dict[str, str | None] = {stored_name(name): None for name, _ in self.model.named_buffers()}
        ours |= {stored_name(name): name for name in self.model.state_dict()}
        load_tensors(self.model, shard_files(folder), str(folder), lambda name: ours.get(name, name))

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None, speaker: str = SPEAKER,
        talker_gradient: bool = False,
    ) -> QwenOmniPolicy:  # fmt: skip
        """Read a released checkpoint, or one that `save` wrote.

        Raises:
            PolicyError: config, tokenizer, speakers or tensors do not fit. DataError: no `config.json`.
        """
        from transformers import AutoTokenizer, Qwen2_5OmniConfig

        described = read_config(folder / "config.json", ("thinker_config", "talker_config", "token2wav_config"))
        try:
            config = Qwen2_5OmniConfig.from_dict(described)
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            speakers = torch.load(folder / SPEAKERS_FILE, weights_only=True, map_location="cpu")
        except Exception as error:
            # transformers, tokenizers and pickle raise what they like.
            raise PolicyError(f"{folder}: not a complete Qwen2.5-Omni ({one_line(error)[:300]})") from error
        policy = cls(_empty(config, dtype or stored_dtype(folder)), tokenizer, speakers, speaker, talker_gradient)
        policy.reload(folder)
        policy.companions = {name: (folder / name).read_bytes() for name in COMPANIONS if (folder / name).is_file()}
        policy.model.to(device)
        return policy


def stored_name(name: str) -> str:
    """A parameter's name in a checkpoint: as released, which is what transformers writes and not how it names its modules."""
    name = re.sub(r"^thinker\.model\.(audio_tower|visual)\.", r"thinker.\1.", name)
    return name.replace("thinker.model.language_model.", "thinker.model.", 1)


def stored_dtype(folder: Path) -> torch.dtype:
    """The precision of a checkpoint's thinker."""
    from safetensors import safe_open

    for path in shard_files(folder):
        with safe_open(path, "pt") as held:
            if "thinker.model.norm.weight" in held.keys():  # noqa: SIM118 - a safetensors file is no mapping
                return held.get_tensor("thinker.model.norm.weight").dtype
    raise PolicyError(f"{folder}: thinker.model.norm.weight is missing; this is no Qwen2.5-Omni")


def _empty(config: Any, dtype: torch.dtype) -> Any:
    """The model before its weights are filled in: `dtype`, but token2wav and what is computed from the config in float32.

    `Module.to(dtype)` would also round the rotary frequencies, and a model made in bfloat16 has token2wav's filters in it.
    """
    from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniToken2WavModel
    from transformers.initialization import no_init_weights
    from transformers.modeling_utils import local_torch_dtype

    with no_init_weights():
        with local_torch_dtype(dtype):
            released: Any = Qwen2_5OmniForConditionalGeneration(config)
        released.token2wav = Qwen2_5OmniToken2WavModel(config.token2wav_config)
    return released.eval()
