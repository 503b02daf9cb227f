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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.omni import (
    END,
    HOP,
    INPUT_RATE_HZ,
    OUTPUT_RATE_HZ,
    OmniNetwork,
    OmniPolicy,
    replies_of,
    stored_name,
    thinker_dtype,
)
from paras2s.policy.streams import Drawn, Reading, behind, drawn_by, one_of, roll, run_stack, score, stacked
from paras2s.policy.types import NO_PARAMETERS, PolicySpec, Prompt, SampleRequest, Sampling, SlotSpec
from paras2s.policy.weights import load_tensors, read_config, shard_files
from paras2s.types import Block
from paras2s.utils.io import reading

AUDIO_MARKS = ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
# The makers': with another one the released model speaks less well.
SYSTEM = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and visual "
    "inputs, as well as generating text and speech."
)
SPEAKER, SPEAKERS_FILE = "Chelsie", "spk_dict.pt"
# The leading part keeps the towers out: a suffix alone would hit them, and train them in silence.
LAYERS = r".*(language_model|talker\.model)\.layers\.\d+"
LORA_TARGETS = LAYERS + r"\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"


def audio_tokens(samples: int) -> int:
    """Return the placeholders of a clip at 16 kHz: 25 a second (transformers' own arithmetic, on mel frames of 10 ms)."""
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
        """Read the ids from a model's config; `text_begin` is the speaker's.

        Raises:
            PolicyError: an id lies outside its vocabulary, or a codec control id is a code.
        """
        talker, words = config.talker_config, config.thinker_config.text_config.vocab_size
        text = (text_begin, talker.tts_text_end_token_id, talker.tts_text_pad_token_id)
        if max(end, *text) >= words:
            raise PolicyError(f"ids {(end, *text)} must be below {words}; config, tokenizer and speaker do not fit together")
        # Either of them ends the sound, as released; token2wav has one embedding more than there are codes.
        ends = (talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id)
        begin, codes = talker.tts_codec_start_token_id, config.token2wav_config.dit_config.num_embeds - 1
        if min(begin, *ends) < codes or max(begin, *ends) >= talker.vocab_size:
            raise PolicyError(f"codec control ids {(begin, *ends)} must lie from {codes} to {talker.vocab_size - 1}")
        return cls(end, *text, codec_begin=begin, codec_pad=ends[0], codec_ends=ends, codes=codes)


class Qwen25Network(OmniNetwork):
    """Thinker, talker and token2wav under transformers' names; the talker reads the thinker's states."""

    def __init__(self, released: Any, ids: OmniIds, talker_gradient: bool) -> None:
        may = (*range(ids.codes), *ids.codec_ends)
        super().__init__(released.thinker, released.talker, ids.end, talker_gradient, released.talker.config.vocab_size, may)
        self.token2wav: Any = released.token2wav
        self.ids = ids

    def codec(self, tokens: Tensor) -> Tensor:
        """Return the talker's embedding of ids [...]: [..., H]."""
        return self.talker.model.embed_tokens(tokens)

    def conditions(self, hidden: Tensor, x: Tensor, is_audio: Tensor) -> Tensor:
        """Talker inputs from the thinker [N, L, H]: states plus input, without the embeddings of the question's audio."""
        length = is_audio.shape[1]
        states = hidden + torch.cat([x[:, :length].masked_fill(is_audio[..., None], 0.0), x[:, length:]], 1)
        return self.given(states)

    def marks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the talker's begin, end and pad of text, [H] each; the begin with the codec's pad, as always."""
        ids = torch.tensor([self.ids.text_begin, self.ids.text_end, self.ids.text_pad], device=self.device)
        begin, end, pad = self.given(self.words(ids))
        return begin + self.codec(torch.tensor(self.ids.codec_pad, device=self.device)), end, pad

    def forward(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs [N, T, 1] of words and of codes, 0 where not sampled; one pass of the thinker and one of the talker.

        A prompt is read again for each of its answers: without a cache, layers may be checkpointed and sharded.
        """
        # transformers checkpoints in training mode alone; nothing of it drops out.
        self.train(self.gradient_checkpointing)
        texts, sounds = [blocks[0] for blocks in answers], [blocks[1] for blocks in answers]
        owner = torch.repeat_interleave(torch.tensor([len(block.tokens) for block in texts])).to(self.device)
        x, is_audio, lengths = (part[owner] for part in self.read(prompts))
        tokens, sampled = (part[..., 0] for part in stacked(texts, [self.end], self.device))
        x = behind(x, lengths, self.words(tokens[:, :-1]))
        hidden = run_stack(self.thinker.model.language_model, x)
        text = score(self.thinker.lm_head, hidden, lengths - 1, tokens, sampled, sampling.text_temperature)
        states = self.conditions(hidden, x, is_audio)
        counts = np.concatenate([replies_of(block, self.end) for block in texts])
        tokens, sampled = (part[..., 0] for part in stacked(sounds, [self.ids.codec_pad], self.device))
        begin, end, pad = self.marks()
        step, count = torch.arange(tokens.shape[1], device=self.device), torch.from_numpy(counts).to(self.device)[:, None, None]
        index = (lengths[:, None] + step).clamp(max=states.shape[1] - 1)
        reply = states.gather(1, index[..., None].expand(-1, -1, states.shape[2]))
        reply = torch.where(step[:, None] < count, reply, torch.where(step[:, None] == count, end, pad))
        before = torch.cat([torch.full_like(tokens[:, :1], self.ids.codec_begin), tokens[:, :-1]], 1)
        tail = torch.cat([begin.expand(len(reply), 1, -1), reply + self.codec(before)], 1)
        x = self.talker.thinker_to_talker_proj(behind(states[:, : is_audio.shape[1]], lengths, tail))
        hidden = run_stack(self.talker.model, x)
        audio = score(self.codec_logits, hidden, lengths + 1, tokens, sampled, sampling.audio_temperature)
        return text[..., None], audio[..., None]

    @torch.inference_mode()
    def sample(self, request: SampleRequest, uniforms: Tensor) -> tuple[Drawn, Drawn]:
        """Sample words and codes of N answers from one prefill a prompt; `uniforms` [N, T, 2]."""
        prompts, group_size, sampling = request.prompts, request.group_size, request.sampling
        x, is_audio, lengths = self.read(prompts)
        reading = Reading(self.thinker.model.language_model, x, lengths, group_size, sampling.max_steps)
        read: list[tuple[Tensor, Tensor]] = []
        text = self.draw_words(reading, uniforms[..., 0], sampling, lambda rows, spoken: read.append((rows, spoken)))
        reply = x.new_zeros(len(uniforms), max(len(read), 1), x.shape[-1])
        for step, (rows, spoken) in enumerate(read):
            reply[rows, step] = spoken
        count = text.counts - 1
        speaking = (count > 0).nonzero()[:, 0] if sampling.speak else count[:0]
        if not len(speaking):
            return text, Drawn.nothing(text, 1)
        begin, end, pad = self.marks()
        x = behind(self.conditions(reading.states, x, is_audio), lengths, begin.expand(len(prompts), 1, -1))
        project = self.talker.thinker_to_talker_proj
        reading = Reading(self.talker.model, project(x), lengths + 1, group_size, sampling.max_steps)
        reading.select(speaking)

        def next_code(rows: Tensor, step: int, tokens: Tensor) -> Tensor:
            # A code is read together with the next word; the first word goes with the codec's begin, at step -1.
            after = torch.where((count[rows] == step + 1)[:, None], end, pad)
            word = torch.where((count[rows] > step + 1)[:, None], reply[rows, min(step + 1, reply.shape[1] - 1)], after)
            return reading.feed(project(word + self.codec(tokens[:, 0])))

        state = next_code(speaking, -1, torch.full_like(speaking, self.ids.codec_begin)[:, None])
        draw = drawn_by(self.codec_logits, sampling.audio_temperature, sampling.audio_top_k)
        return text, roll(reading, state, speaking, uniforms[..., 1:], draw, next_code, one_of(self.ids.codec_ends))


class QwenOmniPolicy(OmniPolicy):
    """Thinker, then talker. One code path for `Qwen/Qwen2.5-Omni-7B`, `-3B` and for tiny instances of the same classes."""

    NAME = "Qwen2.5-Omni"
    ARCHITECTURE, VOCODER = "Qwen2_5OmniForConditionalGeneration", "token2wav"
    SYSTEM = SYSTEM

    model: Qwen25Network

    def __init__(
        self, released: Any, tokenizer: Any, speakers: dict[str, Any], speaker: str = SPEAKER, talker_gradient: bool = False
    ) -> None:
        if speaker not in speakers:
            raise PolicyError(f"no speaker {speaker!r}; there are {', '.join(sorted(speakers))}")
        if not released.has_talker:
            raise PolicyError("this model has no talker (enable_audio_output is false), so it cannot speak")
        self.config, self.voice = released.config, speakers[speaker]
        thinker = self.config.thinker_config
        placed = (thinker.audio_start_token_id, thinker.audio_token_id, thinker.audio_end_token_id)
        super().__init__(tokenizer, AUDIO_MARKS, dict(zip(AUDIO_MARKS, placed, strict=True)))
        written = io.BytesIO()
        torch.save(speakers, written)
        self.companions[SPEAKERS_FILE] = written.getvalue()
        self.ids = OmniIds.read(self.config, self.special[END], int(self.voice["bos_token"]))
        self.model = Qwen25Network(released, self.ids, talker_gradient)
        self.spec = self._spec()
        self._freeze()

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

    @property
    def final_ids(self) -> dict[str, tuple[int, ...]]:
        """The talker's."""
        return {"audio0": self.ids.codec_ends}

    @property
    def audio_pad(self) -> tuple[int, ...]:
        """The codec's pad."""
        return (self.ids.codec_pad,)

    def audio_places(self, samples: int) -> int:
        """See `audio_tokens`."""
        return max(audio_tokens(samples), 0)

    @torch.inference_mode()
    def _audio_features(self, clips: Sequence[np.ndarray]) -> np.ndarray:
        """Return the audio tower's output for all clips in order [n, H].

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

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Codec codes [T, 1] of one answer."""
        tokens, sampled = blocks[1].tokens[answer], blocks[1].sampled[answer]
        return tokens[(sampled & (tokens < self.ids.codes))[:, 0]]

    @torch.inference_mode()
    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Waveform by token2wav in float32 and without its dropout, in the voice of the policy's speaker."""
        codes = self.decode_codes(blocks, answer)
        if not len(codes):
            return self.silence()
        speaker, mel = (self.voice[name].to(self.device, torch.float32) for name in ("cond", "ref_mel"))
        token2wav = self.model.token2wav.eval()
        # Seeding seeds every device, so every device's state is kept.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            wave = token2wav(torch.from_numpy(codes.T).to(self.device), conditioning=speaker, reference_mel=mel)
        return Clip(wave.reshape(-1).float().cpu().numpy(), OUTPUT_RATE_HZ)

    def released_tensors(self) -> dict[str, Tensor]:
        """See `OmniPolicy.released_tensors`."""
        return {stored_name(name): value for name, value in self.model.state_dict().items()}

    def reload(self, folder: Path) -> None:
        """Read weights alone; what is computed from the config (rotary frequencies, filters) is passed over where stored."""
        ours: dict[str, str | None] = {stored_name(name): None for name, _ in self.model.named_buffers()}
        ours |= {stored_name(name): name for name in self.model.state_dict()}
        load_tensors(self.model, shard_files(folder), str(folder), lambda name: ours.get(name, name))

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None, speaker: str = SPEAKER,
        talker_gradient: bool = False,
    ) -> QwenOmniPolicy:  # fmt: skip
        """Read a checkpoint, released or written by `save`.

        Raises:
            PolicyError: config, tokenizer, speakers or tensors do not fit. DataError: no `config.json`.
        """
        from transformers import AutoTokenizer, Qwen2_5OmniConfig

        described = read_config(folder / "config.json", ("thinker_config", "talker_config", "token2wav_config"))
        with reading(folder, "not a complete Qwen2.5-Omni", kind=PolicyError):
            config = Qwen2_5OmniConfig.from_dict(described)
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            speakers = torch.load(folder / SPEAKERS_FILE, weights_only=True, map_location="cpu")
        policy = cls(cls.empty_model(config, dtype or thinker_dtype(folder)), tokenizer, speakers, speaker, talker_gradient)
        policy.restore(folder, device)
        return policy
