"""`Qwen3OmniPolicy`: Qwen3-Omni. The thinker writes a reply, the talker and its code predictor speak it in frames of 80 ms.

Two blocks an answer, each with its own clock: words up to and including `<|im_end|>`, and frames of K codes. The talker gives
a frame's first code, or the end, which is alone in the last step; the code predictor gives the others one after another,
each from the talker's state and the codes before it. `Sampling.max_steps` limits words and frames alike, and the audio's
temperature and top-k hold for all K codes (transformers draws the later ones at 1.0 among 50 with top-p 0.8).

The talker reads the users' turns, not the system's and not earlier answers: words by their embedding, sound by the thinker's
state before layer `accept_hidden_layer`. Of the reply it reads the embedding of each word. So the sound's gradient reaches the
thinker only through those states (`talker_gradient`) and the embeddings of words.

Both decoders are mixtures of experts. A token's experts are chosen from its own state, without a limit on an expert's tokens,
so that neighbours in a batch change nothing but rounding. Rounding may change a choice: docs/policies.md, "Qwen3-Omni".
Adapters go on attention, on the talker's shared expert and on the code predictor; experts are stacked tensors, which peft's
LoRA has no layer for, and the routers stay as they are.

transformers' `generate` (5.23) has two distributions for a reply: in a batch where another one is longer, it speaks
`<|im_end|>` too. Here that is never spoken, as there where a prompt is alone.

Left out: images, video, targets from recorded speech (its encoder was not released), the Thinking model, which has no talker.
Alphabet: B prompts, G answers a prompt, N answers, L prompt tokens, U of them the users', T steps, K codes a frame, M frames,
H the thinker's width, D the talker's, V ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.dual_stream.recomputed import picked_logprobs
from paras2s.policy.dual_stream.sampler import pick
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
from paras2s.policy.streams import Drawn, Reading, behind, layer_input, one_of, roll, run_stack, score, stacked
from paras2s.policy.types import NO_PARAMETERS, PolicySpec, Prompt, SampleRequest, Sampling, SlotSpec
from paras2s.policy.weights import load_tensors, read_config, shard_files
from paras2s.types import Block
from paras2s.utils.io import reading

SPEAKER = "ethan"
# The mel spectrogram's window: a shorter clip has no frame.
MIN_SAMPLES = 480
# How transformers' `generate` decodes: frames at once, and frames before them that are decoded again.
CHUNK_FRAMES, CONTEXT_FRAMES = 300, 25
# The leading part keeps the towers and the vocoder out.
LAYERS = r".*(language_model|talker\.model|code_predictor\.model)\.layers\.\d+"
LORA_TARGETS = LAYERS + r"\.(self_attn\.(q|k|v|o)_proj|(mlp|mlp\.shared_expert)\.(gate|up|down)_proj)"


@dataclass(frozen=True)
class Qwen3Ids:
    """Ids with a meaning. `text_*` are rows of the thinker's embedding, `codec_*` of the talker's.

    `codec_opening`: what comes before the first frame, beside text pads, the text's begin and the first word.
    """

    start: int
    user: int
    text_begin: int
    text_end: int
    text_pad: int
    codec_opening: tuple[int, ...]
    codec_pad: int
    codec_end: int
    codes: int

    @classmethod
    def read(cls, config: Any, speaker: str) -> Qwen3Ids:
        """Read the ids from a model's config.

        Raises:
            PolicyError: no such speaker, or an id lies outside its vocabulary or among the codes.
        """
        talker, words, codes = (
            config.talker_config,
            config.thinker_config.text_config.vocab_size,
            config.code2wav_config.codebook_size,
        )
        speakers = {name.lower(): int(number) for name, number in (talker.speaker_id or {}).items()}
        if speaker.lower() not in speakers:
            raise PolicyError(f"no speaker {speaker!r}; there are {', '.join(sorted(speakers)) or 'none'}")
        text = (config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id)
        thinking = (talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id)
        opening = (*thinking, speakers[speaker.lower()], talker.codec_pad_id, talker.codec_bos_id)
        if max(text) >= words:
            raise PolicyError(f"ids {text} must be below {words}; the config's parts do not fit together")
        rows = talker.text_config.vocab_size
        if min(*opening, talker.codec_eos_token_id) < codes or max(*opening, talker.codec_eos_token_id) >= rows:
            raise PolicyError(f"codec control ids {(*opening, talker.codec_eos_token_id)} must lie from {codes} to {rows - 1}")
        return cls(config.im_start_token_id, config.user_token_id, *text, codec_opening=opening, codec_pad=talker.codec_pad_id,
                   codec_end=talker.codec_eos_token_id, codes=codes)  # fmt: skip


def users_part(ids: np.ndarray, start: int, user: int) -> np.ndarray:
    """Return positions [U] of the users' turns among a prompt's ids [L]: each from its `<|im_start|>` to the next."""
    places = np.arange(len(ids))
    begun = np.maximum.accumulate(np.where(ids == start, places, 0))
    return np.flatnonzero(ids[np.minimum(begun + 1, len(ids) - 1)] == user)


class Qwen3Network(OmniNetwork):
    """Thinker, talker with code predictor and code2wav under transformers' names."""

    def __init__(self, released: Any, ids: Qwen3Ids, talker_gradient: bool, end: int) -> None:
        talker = released.talker
        may = (*range(ids.codes), ids.codec_end)
        super().__init__(released.thinker, talker, end, talker_gradient, talker.config.text_config.vocab_size, may)
        self.code2wav: Any = released.code2wav
        self.ids, self.codebooks = ids, int(talker.config.num_code_groups)
        self.tapped_layer = int(talker.config.accept_hidden_layer)

    # -- what the talker reads ----------------------------------------------------------------------------------------

    def first_codes(self, tokens: Tensor) -> Tensor:
        """Return the talker's embedding of first codes and control ids [...]: [..., D]."""
        return self.talker.model.codec_embedding(tokens)

    def frame(self, codes: Tensor) -> Tensor:
        """Return a frame as the talker reads it back, [..., K] to [..., D]: the sum of its codes' embeddings."""
        tables = self.talker.code_predictor.model.codec_embedding
        return self.first_codes(codes[..., 0]) + sum(table(codes[..., n]) for n, table in enumerate(tables, start=1))

    def spoken_words(self, tokens: Tensor) -> Tensor:
        """Return words as the talker reads them, [...] to [..., D]."""
        return self.talker.text_projection(self.given(self.words(tokens)))

    def opening(self, prompts: Sequence[Prompt], x: Tensor, tapped: Tensor, is_audio: Tensor) -> tuple[Tensor, Tensor]:
        """Talker inputs before the first word [N, U + 8, D] and their lengths [N], of the thinker's input and states [N, L, H].

        The users' turns, the answer's three first tokens, then text pads and the text's begin beside the codec's opening.
        """
        parts = [torch.from_numpy(users_part(prompt.text_ids, self.ids.start, self.ids.user)) for prompt in prompts]
        counts = torch.tensor([len(places) for places in parts], device=self.device)
        index = nn.utils.rnn.pad_sequence(parts, batch_first=True).to(self.device)
        wide = index[..., None].expand(-1, -1, x.shape[2])
        words = self.talker.text_projection(self.given(x).gather(1, wide))
        sound = self.talker.hidden_projection(self.given(tapped).gather(1, wide))
        users = torch.where(is_audio.gather(1, index)[..., None], sound, words)
        turn = torch.from_numpy(np.stack([prompt.text_ids[-3:] for prompt in prompts])).to(self.device)
        # All of the codec's opening but its begin, which goes with the first word.
        beside = torch.tensor(self.ids.codec_opening[:-1], device=self.device)
        text = torch.tensor([self.ids.text_pad] * (len(beside) - 1) + [self.ids.text_begin], device=self.device)
        marks = (self.spoken_words(text) + self.first_codes(beside)).expand(len(prompts), -1, -1)
        tail = torch.cat([self.spoken_words(turn), marks], 1)
        return behind(users, counts, tail), counts + tail.shape[1]

    # -- teacher forcing ----------------------------------------------------------------------------------------------

    def forward(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs of words [N, T, 1] and of codes [N, T, K], 0 where not sampled.

        A prompt is read again for each of its answers: without a cache, layers may be checkpointed and sharded.
        """
        # transformers checkpoints in training mode alone; nothing of it drops out.
        self.train(self.gradient_checkpointing)
        texts, sounds = [blocks[0] for blocks in answers], [blocks[1] for blocks in answers]
        owner = [number for number, block in enumerate(texts) for _ in range(len(block.tokens))]
        x, is_audio, lengths = (part[owner] for part in self.read(prompts))
        tokens, sampled = (part[..., 0] for part in stacked(texts, [self.end], self.device))
        stack = self.thinker.model.language_model
        with layer_input(stack, self.tapped_layer) as tapped:
            hidden = run_stack(stack, behind(x, lengths, self.words(tokens[:, :-1])))
        text = score(self.thinker.lm_head, hidden, lengths - 1, tokens, sampled, sampling.text_temperature)
        counts = np.concatenate([replies_of(block, self.end) for block in texts])
        before, first = self.opening([prompts[number] for number in owner], x, tapped[0][:, : x.shape[1]], is_audio)
        frames, sampled = stacked(sounds, self.pads, self.device)
        said = self.reply(tokens, torch.from_numpy(counts).to(self.device), frames.shape[1])
        begin = self.first_codes(torch.tensor(self.ids.codec_opening[-1], device=self.device)).expand(len(said), 1, -1)
        codec = torch.cat([begin, self.frame(frames[:, :-1])], 1)
        hidden = run_stack(self.talker.model, behind(before, first, said + codec))
        leading = score(self.codec_logits, hidden, first, frames[..., 0], sampled[..., 0], sampling.audio_temperature)
        return text[..., None], torch.cat([leading[..., None], self.later(hidden, first, frames, sampled, sampling)], -1)

    def reply(self, tokens: Tensor, counts: Tensor, steps: int) -> Tensor:
        """Return words as the talker reads them, one a step [N, `steps`, D]: those of [N, T], the text's end, then its pad."""
        step = torch.arange(steps, device=self.device)
        wide = nn.functional.pad(tokens, (0, max(steps - tokens.shape[1], 0)))[:, :steps]
        wide = torch.where(
            step < counts[:, None], wide, torch.where(step == counts[:, None], self.ids.text_end, self.ids.text_pad)
        )
        return self.spoken_words(wide)

    def later(self, hidden: Tensor, first: Tensor, frames: Tensor, sampled: Tensor, sampling: Sampling) -> Tensor:
        """Return log-probs [N, T, K - 1] of each frame's later codes, by one pass of the code predictor over all frames."""
        drawn = sampled[..., 1:].any(-1)
        # The predictor always runs, for nothing if need be: where its weights are sharded, every rank gathers them.
        drawn[0, 0] |= ~drawn.any()
        row, step = drawn.nonzero(as_tuple=True)
        state, codes = hidden[row, first[row] + step], frames[row, step]
        predictor = self.talker.code_predictor
        # Ids that are no codes occur in an end's step, which is scored for nothing.
        codes = torch.cat([codes[:, :1], codes[:, 1:].clamp(max=self.ids.codes - 1)], 1)
        tables = predictor.model.codec_embedding
        known = [state, self.first_codes(codes[:, 0]), *(tables[n - 1](codes[:, n]) for n in range(1, self.codebooks - 1))]
        states = predictor.model(inputs_embeds=torch.stack(known, 1), use_cache=False).last_hidden_state
        logp = [
            picked_logprobs(head(states[:, n]), codes[:, n], sampling.audio_temperature)
            for n, head in enumerate(predictor.lm_head, start=1)
        ]
        joined = torch.stack(logp, 1)
        placed = joined.new_zeros(sampled[..., 1:].shape).index_put((row, step), joined)
        return torch.where(sampled[..., 1:], placed, 0.0)

    # -- sampling -----------------------------------------------------------------------------------------------------

    @property
    def pads(self) -> tuple[int, ...]:
        """Ids [K] behind an answer's end."""
        return (self.ids.codec_pad, *[0] * (self.codebooks - 1))

    @torch.inference_mode()
    def sample(self, request: SampleRequest, uniforms: Tensor) -> tuple[Drawn, Drawn]:
        """Sample words and frames of N answers from one prefill a prompt; `uniforms` [N, T, 1 + K]."""
        prompts, group_size, sampling = request.prompts, request.group_size, request.sampling
        x, is_audio, lengths = self.read(prompts)
        stack = self.thinker.model.language_model
        with layer_input(stack, self.tapped_layer) as tapped:
            reading = Reading(stack, x, lengths, group_size, sampling.max_steps)
        text = self.draw_words(reading, uniforms[..., 0], sampling)
        count = text.counts - 1
        speaking = (count > 0).nonzero()[:, 0] if sampling.speak else count[:0]
        if not len(speaking):
            return text, Drawn.nothing(text, self.codebooks)
        said = self.reply(text.tokens[..., 0], count, sampling.max_steps)
        before, first = self.opening(prompts, x, tapped[0], is_audio)
        reading = Reading(self.talker.model, before, first, group_size, sampling.max_steps)
        reading.select(speaking)

        def next_frame(rows: Tensor, step: int, tokens: Tensor) -> Tensor:
            # A frame is read together with the next word; the first word goes with the codec's begin.
            return reading.feed(said[rows, step + 1] + self.frame(tokens))

        begin = self.first_codes(torch.tensor(self.ids.codec_opening[-1], device=self.device))
        state = reading.feed(said[speaking, 0] + begin)
        draw = self._frame_drawer(sampling)
        return text, roll(reading, state, speaking, uniforms[..., 1:], draw, next_frame, one_of((self.ids.codec_end,)))

    def _frame_drawer(self, sampling: Sampling) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Draw frames [n, K] from the talker's states [n, D]; what follows an end is drawn for nothing."""
        from transformers import DynamicCache

        predictor, settings = self.talker.code_predictor, (sampling.audio_temperature, sampling.audio_top_k)

        def draw(state: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
            code, logp = pick(self.codec_logits(state), settings[0], uniforms[:, 0], settings[1])
            codes, logps = [code], [logp]
            cache = DynamicCache(config=predictor.config)
            x = torch.stack([state, self.first_codes(code)], 1)
            for n, (head, table) in enumerate(zip(predictor.lm_head, predictor.model.codec_embedding, strict=True), start=1):
                states = predictor.model(inputs_embeds=x, past_key_values=cache, use_cache=True).last_hidden_state
                code, logp = pick(head(states[:, -1]), settings[0], uniforms[:, n], settings[1])
                codes.append(code)
                logps.append(logp)
                x = table(code)[:, None]
            return torch.stack(codes, 1), torch.stack(logps, 1)

        return draw


class Qwen3OmniPolicy(OmniPolicy):
    """Thinker, talker, code predictor. Reads `Qwen/Qwen3-Omni-30B-A3B-Instruct` and tiny instances of its classes."""

    NAME = "Qwen3-Omni"
    ARCHITECTURE, VOCODER = "Qwen3OmniMoeForConditionalGeneration", "code2wav"
    SYSTEM = None

    model: Qwen3Network

    def __init__(self, released: Any, tokenizer: Any, speaker: str = SPEAKER, talker_gradient: bool = False) -> None:
        if not released.has_talker:
            raise PolicyError("this model has no talker (enable_audio_output is false), so it cannot speak")
        self.config = released.config
        thinker, talker = self.config.thinker_config, self.config.talker_config
        names = [getattr(tokenizer, name, None) for name in ("audio_bos_token", "audio_token", "audio_eos_token")]
        if not all(names):
            raise PolicyError("the tokenizer names no audio tokens; it is not Qwen3-Omni's")
        begin, audio, end = (str(name) for name in names)
        placed = {begin: thinker.audio_start_token_id, audio: thinker.audio_token_id}
        super().__init__(tokenizer, (begin, audio, end), placed)
        _check_layout(self.config, self.special[END], self._words("assistant\n"), self._words("user\n"))
        self.ids = Qwen3Ids.read(self.config, speaker)
        if released.thinker.lm_head.weight.dtype == torch.float64:
            # Grouped multiplication of experts, transformers' default, has no float64.
            released.set_experts_implementation("eager")
        self.model = Qwen3Network(released, self.ids, talker_gradient, self.special[END])
        wave, text = self.config.code2wav_config, thinker.text_config
        rate_hz = OUTPUT_RATE_HZ / float(np.prod([*wave.upsample_rates, *wave.upsampling_ratios]))
        # Between the codes and the end lie ids that are never drawn; `OmniNetwork.forbidden` has each of them.
        leading = SlotSpec("audio0", "audio", 0, self.ids.codec_end + 1)
        later = (SlotSpec(f"audio{n}", "audio", 0, self.ids.codes) for n in range(1, self.model.codebooks))
        self.spec = PolicySpec(
            slots=(SlotSpec("text", "text", 0, text.vocab_size), leading, *later),
            step_rate_hz=rate_hz, input_rate_hz=INPUT_RATE_HZ, output_rate_hz=OUTPUT_RATE_HZ, lora_targets=LORA_TARGETS,
            adaptor_parameters=NO_PARAMETERS, sharded=LAYERS,
            context_steps=min(text.max_position_embeddings, talker.text_config.max_position_embeddings),
            code_format=f"qwen3-omni-{self.model.codebooks}x{self.ids.codes}@{rate_hz:g}",
        )  # fmt: skip
        self._freeze()

    @property
    def final_ids(self) -> dict[str, tuple[int, ...]]:
        """The talker's."""
        return {"audio0": (self.model.ids.codec_end,)}

    @property
    def audio_pad(self) -> tuple[int, ...]:
        """See `Qwen3Network.pads`."""
        return self.model.pads

    def audio_places(self, samples: int) -> int:
        """13 for each 100 mel frames, and the tail's thrice halved (`_get_feat_extract_output_lengths` of transformers)."""
        if samples < MIN_SAMPLES:
            return 0
        chunk = 2 * self.config.thinker_config.audio_config.n_window
        full, tail = divmod(samples // HOP, chunk)
        for _ in range(3):
            tail = (tail + 1) // 2
        return 13 * full + tail

    @torch.inference_mode()
    def _audio_features(self, clips: Sequence[np.ndarray]) -> np.ndarray:
        """Clip by clip: padded to a neighbour's length, a clip's last frames would see other things behind them."""
        tower = self.model.thinker.model.audio_tower.eval()
        features = []
        for clip in clips:
            made = self.mel(clip, sampling_rate=INPUT_RATE_HZ, padding="longest", truncation=False, return_tensors="pt")
            mel = made["input_features"].to(self.device, tower.conv2d1.weight.dtype)
            mask = torch.ones(mel.shape[::2], dtype=torch.long, device=self.device)
            features.append(self.model.thinker.model.get_audio_features(mel, mask).last_hidden_state)
        encoded = torch.cat(features)
        # numpy knows no bfloat16.
        return np.asarray(encoded.to(torch.promote_types(encoded.dtype, torch.float32)).cpu().numpy())

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Codec codes [T, K] of one answer's frames."""
        tokens, sampled = blocks[1].tokens[answer], blocks[1].sampled[answer]
        return tokens[sampled[:, 0] & (tokens[:, 0] < self.ids.codes)]

    @torch.inference_mode()
    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Waveform by code2wav in float32, in pieces as the makers do; it draws nothing from `seed`."""
        codes = self.decode_codes(blocks, answer)
        if not len(codes):
            return self.silence()
        held = torch.from_numpy(codes.T.copy()).to(self.device)[None]
        wave = self.model.code2wav.eval().chunked_decode(held, CHUNK_FRAMES, CONTEXT_FRAMES)
        return Clip(wave.reshape(-1).float().cpu().numpy(), OUTPUT_RATE_HZ)

    def released_tensors(self) -> dict[str, Tensor]:
        """See `OmniPolicy.released_tensors`; stacked experts [E, ...] are matrices that share their memory."""
        tensors: dict[str, Tensor] = {}
        for name, value in self.model.state_dict().items():
            stem, _, last = stored_name(name).rpartition(".")
            if last == "gate_up_proj":
                for number, (gate, up) in enumerate(part.chunk(2) for part in value):
                    tensors[f"{stem}.{number}.gate_proj.weight"], tensors[f"{stem}.{number}.up_proj.weight"] = gate, up
            elif stem.endswith(".experts"):
                tensors |= {f"{stem}.{number}.{last}.weight": part for number, part in enumerate(value)}
            else:
                tensors[f"{stem}.{last}"] = value
        return tensors

    def reload(self, folder: Path) -> None:
        """Read weights alone; what is computed from the config is passed over where it was stored."""
        ours = {stored_name(name): None for name, _ in self.model.named_buffers()}
        load_tensors(self.released_tensors(), shard_files(folder), str(folder), lambda name: ours.get(name, name))

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None, speaker: str = SPEAKER,
        talker_gradient: bool = False,
    ) -> Qwen3OmniPolicy:  # fmt: skip
        """Read a checkpoint, released or written by `save`.

        Raises:
            PolicyError: config, tokenizer or tensors do not fit, or a model without a talker. DataError: no `config.json`.
        """
        from transformers import AutoTokenizer, Qwen3OmniMoeConfig

        described = read_config(folder / "config.json", ("thinker_config",))
        if not described.get("enable_audio_output", True) or "talker_config" not in described:
            raise PolicyError(f"{folder}: has no talker and cannot speak; take the Instruct model")
        described = read_config(
            folder / "config.json", ("talker_config", "code2wav_config", "im_start_token_id", "user_token_id")
        )
        with reading(folder, "not a complete Qwen3-Omni", kind=PolicyError):
            config = Qwen3OmniMoeConfig.from_dict(described)
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        policy = cls(cls.empty_model(config, dtype or thinker_dtype(folder)), tokenizer, speaker, talker_gradient)
        policy.restore(folder, device)
        return policy


def _check_layout(config: Any, end: int, answer: list[int], question: list[int]) -> None:
    """Refuse parts that do not fit together.

    Raises:
        PolicyError: by name.
    """
    talker, wave, layers = config.talker_config, config.code2wav_config, config.thinker_config.text_config.num_hidden_layers
    if (
        config.im_end_token_id != end
        or answer != [config.assistant_token_id, *answer[1:2]]
        or question[0] != config.user_token_id
    ):
        raise PolicyError(
            f"{END}, 'assistant' and 'user' are other ids to the tokenizer ({end}, {answer}, {question}) than to the config"
        )
    predictor = talker.code_predictor_config
    groups = {talker.num_code_groups, predictor.num_code_groups, wave.num_quantizers}
    if len(groups) > 1 or predictor.vocab_size != wave.codebook_size:
        raise PolicyError(f"talker, code predictor and code2wav differ in codes: {sorted(groups)} a frame, "
                          f"{predictor.vocab_size} and {wave.codebook_size} of each")  # fmt: skip
    if not 0 < talker.accept_hidden_layer < layers:
        raise PolicyError(f"talker_config.accept_hidden_layer is {talker.accept_hidden_layer}; the thinker has {layers} layers")
