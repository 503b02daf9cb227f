"""`CsmPolicy`: Sesame's CSM, a conversational speech model. It speaks words that it is given, after what was said before.

It does not decide what to say: there is no text stream, and nothing but the sound is sampled and learned. In a run the words
come from `replies.jsonl` in the checkpoint's folder, a line a question: {"question": its transcript, "reply": the words}. So an
alignment of CSM is one of how a reply is said, and warm-up learns demonstrations whose words are its replies.

A step is a frame of 80 ms with K codes of Mimi: the backbone gives the first, the depth decoder the others one after another,
each from the backbone's state and the codes before it. A frame whose codes, the last aside, are all `codebook_eos_token_id`
(0, which is a code as well) ends an answer; all its codes are drawn. Ids behind Mimi's codes have no probability.

A dialogue is laid out as CSM's chat template does: the turn's speaker in brackets and its words between begin and end of text,
then its frames and one of ends. The user is speaker 1, the assistant 0; there is no system. Prompt and answer together stay
within the backbone's positions (2,048: text and 163 s of sound).

Mimi is no part of `model`: it never learns, and it runs in float32. The codes' embedding is one table for both decoders.
Left out: the loss on a part of the frames alone (compute amortisation) of its makers' training.
Alphabet: B prompts, G answers a prompt, N answers, L prompt positions, T steps, K codes a frame, M frames, V ids, D the width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError, one_line
from paras2s.policy.base import Policy
from paras2s.policy.dual_stream.recomputed import picked_logprobs
from paras2s.policy.dual_stream.sampler import pick, uniforms_of
from paras2s.policy.speech_tokenizers.mimi import decode_mimi, encode_mimi
from paras2s.policy.streams import Drawn, Reading, behind, logits_of, pack, roll, run_stack, score, stacked
from paras2s.policy.types import (
    NO_PARAMETERS,
    ClipStore,
    Generation,
    PolicySpec,
    Prompt,
    SampleRequest,
    Sampling,
    SlotSpec,
    Turn,
    turns_of,
)
from paras2s.policy.weights import check_state, load_released, load_tensors, read_config, shapes_of, shard_files, stored_shapes
from paras2s.types import Block, Query
from paras2s.utils.io import read_rows, reading, write_jsonl

LAYERS = r".*(backbone_model|depth_decoder\.model)\.layers\.\d+"
LORA_TARGETS = LAYERS + r"\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
CONFIG_KEYS = (
    "num_codebooks", "vocab_size", "text_vocab_size", "hidden_size", "num_hidden_layers", "codebook_eos_token_id",
    "codebook_pad_token_id", "depth_decoder_config", "codec_config", "max_position_embeddings",
)  # fmt: skip
REPLIES = "replies.jsonl"
MARKS = ("<|begin_of_text|>", "<|end_of_text|>")
SPEAKERS = {"user": 1, "assistant": 0}
# A parameter that is another one's memory, and its name in a checkpoint.
TIED = ("backbone_model.embed_tokens.embed_audio_tokens.weight", "depth_decoder.model.embed_tokens.weight")
# Answers under way at once.
ROWS_AT_ONCE = 64


class CsmNetwork(nn.Module):
    """Backbone and depth decoder of a `CsmForConditionalGeneration`, under its parameter names; takes its modules over."""

    forbidden: Tensor

    def __init__(self, released: Any) -> None:
        super().__init__()
        self.config = released.config
        self.codebooks, self.codes = int(self.config.num_codebooks), int(self.config.codec_config.codebook_size)
        self.embed_text_tokens: Any = released.embed_text_tokens
        self.backbone_model: Any = released.backbone_model
        self.depth_decoder: Any = released.depth_decoder
        self.lm_head: Any = released.lm_head
        self.gradient_checkpointing = False
        self.register_buffer("forbidden", torch.arange(int(self.config.vocab_size)) >= self.codes, persistent=False)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.forbidden.device

    @property
    def pads(self) -> tuple[int, ...]:
        """Ids [K] behind an answer's end."""
        return (int(self.config.codebook_pad_token_id),) * self.codebooks

    def ends(self, frames: Tensor) -> Tensor:
        """Which frames [..., K] end an answer; transformers does not look at the last code."""
        return (frames[..., :-1] == self.config.codebook_eos_token_id).all(-1)

    def allowed(self, logits: Tensor) -> Tensor:
        """Return logits [..., V] in which what is no code has no probability."""
        return logits.masked_fill(self.forbidden, float("-inf"))

    def read(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """Return the backbone's input [B, L, D], padded on the right, and lengths [B]: words, and frames of sound."""
        lengths = torch.tensor([prompt.length for prompt in prompts], device=self.device)
        rows = [np.column_stack([prompt.text_ids, prompt.continuous, prompt.audio_ids]) for prompt in prompts]
        held = nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True).to(self.device)
        sound = held[..., 1].bool()[..., None]
        return torch.where(
            sound, self.backbone_model.embed_tokens(held[..., 2:]), self.embed_text_tokens(held[..., 0])
        ), lengths

    def forward(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling) -> tuple[Tensor]:
        """Return log-probs [N, T, K] of the answers' codes, 0 where not sampled; a prompt is read again for each answer."""
        # transformers checkpoints in training mode alone; nothing of it drops out.
        self.train(self.gradient_checkpointing)
        blocks, temperature = [block for (block,) in answers], sampling.audio_temperature
        owner = [number for number, block in enumerate(blocks) for _ in range(len(block.tokens))]
        x, lengths = (part[owner] for part in self.read(prompts))
        tokens, sampled = stacked(blocks, self.pads, self.device)
        first = lengths - 1
        hidden = run_stack(self.backbone_model, behind(x, lengths, self.backbone_model.embed_tokens(tokens[:, :-1])))

        def head(states: Tensor) -> Tensor:
            return self.allowed(self.lm_head(states))

        leading = score(head, hidden, first, tokens[..., 0], sampled[..., 0], temperature)
        framed = sampled[..., 1:].any(-1)
        # The depth decoder always runs, for nothing if need be: where its weights are sharded, every rank gathers them.
        framed[0, 0] |= ~framed.any()
        row, step = framed.nonzero(as_tuple=True)
        frames = tokens[row, step].clamp(max=self.codes - 1)
        given = nn.functional.pad(frames[:, :-1], (1, 0))
        state = hidden[row, first[row] + step]
        # Without a mask transformers takes as many frames as there are codes for the positions of packed sequences, and fails.
        output = self.depth_decoder(
            input_ids=given, backbone_last_hidden_state=state, attention_mask=torch.ones_like(given), use_cache=False
        )
        logits = self.allowed(output.logits)
        logp = picked_logprobs(logits.flatten(0, 1), frames[:, 1:].flatten(), temperature).view(len(row), -1)
        later = logp.new_zeros(sampled[..., 1:].shape).index_put((row, step), logp)
        return (torch.cat([leading[..., None], torch.where(sampled[..., 1:], later, 0.0)], -1),)

    @torch.inference_mode()
    def sample(self, request: SampleRequest, uniforms: Tensor) -> Drawn:
        """Sample frames of N answers from one prefill a prompt; `uniforms` [N, T, K]."""
        from transformers import DynamicCache

        group_size, sampling = request.group_size, request.sampling
        x, lengths = self.read(request.prompts)
        everyone = torch.arange(len(uniforms), device=self.device)
        reading = Reading(self.backbone_model, x, lengths, group_size, sampling.max_steps)
        settings = (sampling.audio_temperature, sampling.audio_top_k)

        def draw(state: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
            code, logp = pick(self.allowed(self.lm_head(state)), settings[0], uniforms[:, 0], settings[1])
            codes, logps = [code], [logp]
            cache = DynamicCache(config=self.depth_decoder.config)
            given: dict[str, Tensor] = {
                "input_ids": torch.stack([torch.zeros_like(code), code], 1), "backbone_last_hidden_state": state,
            }  # fmt: skip
            for number in range(1, self.codebooks):
                output = self.depth_decoder(**given, past_key_values=cache, use_cache=True, logits_to_keep=1)
                code, logp = pick(self.allowed(output.logits[:, -1]), settings[0], uniforms[:, number], settings[1])
                codes.append(code)
                logps.append(logp)
                given = {"input_ids": code[:, None]}
            return torch.stack(codes, 1), torch.stack(logps, 1)

        def next_frame(rows: Tensor, step: int, tokens: Tensor) -> Tensor:
            return reading.feed(self.backbone_model.embed_tokens(tokens[:, None])[:, 0])

        state = reading.states[everyone // group_size, reading.lengths - 1]
        return roll(reading, state, everyone, uniforms, draw, next_frame, self.ends)


class CsmPolicy(Policy):
    """CSM, Mimi and a tokenizer behind the policy interface."""

    model: CsmNetwork

    def __init__(self, released: Any, tokenizer: Any, replies: dict[str, str] | None = None) -> None:
        """Take over the modules of a `CsmForConditionalGeneration`; `replies`: the words to a question's transcript."""
        config = released.config
        self.model, self.tokenizer, self.replies = CsmNetwork(released).eval(), tokenizer, replies or {}
        self.mimi: Any = released.codec_model.float().requires_grad_(False).eval()
        self._generation_configs = released.generation_config, released.depth_decoder.generation_config
        check_config(config, tokenizer)
        self.marks = [tokenizer.convert_tokens_to_ids(mark) for mark in MARKS]
        self.audio_ids = (int(config.audio_token_id), int(config.audio_eos_token_id))
        rate_hz, codec_hz = int(self.mimi.config.sampling_rate), float(self.mimi.config.frame_rate)
        self.spec = PolicySpec(
            slots=tuple(SlotSpec(f"audio{n}", "audio", 0, self.model.codes) for n in range(self.model.codebooks)),
            step_rate_hz=codec_hz, input_rate_hz=rate_hz, output_rate_hz=rate_hz, lora_targets=LORA_TARGETS,
            adaptor_parameters=NO_PARAMETERS, sharded=LAYERS, context_steps=int(config.max_position_embeddings),
            code_format=f"mimi-{self.model.codebooks}@{codec_hz:g}",
        )  # fmt: skip

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations for the gradient, by transformers' own means."""
        for part in (self.model.backbone_model, self.model.depth_decoder):
            part.gradient_checkpointing_enable({"use_reentrant": False})
            # A frozen embedding's output would become a leaf, into which the depth decoder writes the backbone's state.
            part.disable_input_require_grads()
        self.model.gradient_checkpointing = True

    # -- prompts and targets ------------------------------------------------------------------------------------------

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Encode the dialogue, words and sound, then the words to be said: the last turn, the assistant's without a clip.

        Raises:
            PolicyError: a turn lacks words or its clip, or is the system's; or the context does not hold it.
        """
        if not turns or turns[-1].role != "assistant" or turns[-1].clip is not None:
            raise PolicyError(
                "CSM speaks words that it is given: end the dialogue with the assistant's turn, its words and no clip"
            )
        text: list[int] = []
        audio: list[np.ndarray] = []
        nothing = np.zeros((1, self.model.codebooks), dtype=np.int64)
        for number, turn in enumerate(turns):
            last = number == len(turns) - 1
            if turn.role == "system" or not turn.text or (turn.clip is None and not last):
                raise PolicyError(
                    f"CSM reads words and sound of user and assistant: complete the {turn.role}'s turn {turn.text!r}"
                )
            words = self.tokenizer(f"[{SPEAKERS[turn.role]}]{turn.text}", add_special_tokens=False, split_special_tokens=True)
            ids = [self.marks[0], *words["input_ids"], self.marks[1]]
            text += ids
            audio.append(np.repeat(nothing, len(ids), 0))
            if turn.clip is not None:
                frames = encode_mimi(self.mimi, turn.clip, self.model.codebooks)
                text += [self.audio_ids[0]] * len(frames) + [self.audio_ids[1]]
                audio += [frames, nothing + self.model.config.codebook_eos_token_id]
        ids_of = np.array(text, dtype=np.int64)
        if len(ids_of) >= (self.spec.context_steps or 0):
            raise PolicyError(
                f"the dialogue has {len(ids_of)} positions, CSM's context {self.spec.context_steps}; leave out turns"
            )
        sound = np.isin(ids_of, self.audio_ids)
        return Prompt(np.concatenate(audio), ids_of, None, sound, 0, (0,) * self.model.codebooks)

    def encode_queries(self, clips: ClipStore, queries: Sequence[Query]) -> list[Prompt]:
        """Encode spoken questions to prompts with the words of `replies.jsonl`. Raises PolicyError: a question has none."""
        _check_replies(self.replies, queries)
        return [
            self.encode_prompt([*turns_of(clips, query), Turn("assistant", self.replies[query.transcript])])
            for query in queries
        ]

    def encode_target(self, clip: Clip, text: str) -> tuple[Block, ...]:
        """Encode a demonstration's frames and its end; its words belong to the prompt."""
        codes = encode_mimi(self.mimi, clip, self.model.codebooks)
        end = np.full((1, self.model.codebooks), self.model.config.codebook_eos_token_id)
        tokens = np.concatenate([codes, end])[None].astype(np.int64)
        return (Block(self._slots(), tokens, np.ones(tokens.shape, dtype=bool), np.zeros(tokens.shape)),)

    def _slots(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.spec.slots)

    # -- answers ------------------------------------------------------------------------------------------------------

    def generate(self, request: SampleRequest) -> list[Generation]:
        """See `Policy.generate`. Raises PolicyError: text alone is asked for, or more steps than the context holds."""
        sampling = request.sampling
        if not sampling.speak:
            raise PolicyError("CSM cannot answer in text alone: it is given its words")
        longest, limit = max(prompt.length for prompt in request.prompts), self.spec.context_steps or 0
        if longest + sampling.max_steps > limit:
            raise PolicyError(f"{longest} positions of prompt and {sampling.max_steps} of answer: CSM's context holds {limit}")
        self.model.eval()
        generations = list[Generation]()
        for part in request.parts(ROWS_AT_ONCE):
            uniforms = uniforms_of(part.seeds, sampling.max_steps, self.model.codebooks).to(self.model.device)
            drawn = self.model.sample(part, uniforms)
            for number, group in enumerate(part.seeds):
                rows = slice(number * len(group), (number + 1) * len(group))
                block = pack(self._slots(), drawn, rows, self.model.pads, full_end=True)
                finish = tuple("eos" if end else "length" for end in drawn.ended[rows].tolist())
                generations.append(Generation((block,), finish, tuple(group)))
        return generations

    def answer_logits(self, prompt: Prompt, blocks: Sequence[Block]) -> list[np.ndarray]:
        """See `streams.logits_of`; ids that are no codes have logits too."""
        return logits_of(self.model, (self.model.lm_head, self.model.depth_decoder.codebooks_head), prompt, blocks)

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Return codes [T, K] of one answer, up to the frame that ends it."""
        (block,) = blocks
        codes = block.tokens[answer, block.sampled[answer].any(1)]
        ends = np.flatnonzero((codes[:, :-1] == self.model.config.codebook_eos_token_id).all(1))
        return codes[: ends[0]] if len(ends) else codes

    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Mimi's waveform; it draws nothing from `seed`."""
        return decode_mimi(self.mimi, self.decode_codes(blocks, answer))

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """Return no text: the words were given, and are no part of what was sampled."""
        return ""

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write a folder that transformers loads too; `config.json` comes last. Raises PolicyError: there are adapters."""
        from transformers import CsmForConditionalGeneration

        self.refuse_adapters()
        # transformers renames Mimi's tensors on their way to the file, so it has to write them.
        with torch.device("meta"):
            full: Any = CsmForConditionalGeneration(self.model.config)
        for name, module in (*self.model.named_children(), ("codec_model", self.mimi)):
            setattr(full, name, module)
        full.generation_config, full.depth_decoder.generation_config = self._generation_configs
        config = folder / "config.json"
        config.unlink(missing_ok=True)
        full.save_pretrained(folder)
        described = config.read_bytes()
        config.unlink()
        self.tokenizer.save_pretrained(str(folder))
        write_jsonl(folder / REPLIES, [{"question": question, "reply": words} for question, words in self.replies.items()])
        config.write_bytes(described)

    def reload(self, folder: Path) -> None:
        """Backbone and depth decoder; Mimi never changes."""
        state, own_name = stored_state(self.model)
        load_tensors(state, shard_files(folder), str(folder), own_name)

    @classmethod
    def check_folder(cls, folder: Path) -> None:
        """Compare a checkpoint's config, tokenizer and weights with each other, from the headers of the weights; Mimi's tensors
        have other names there, and are not compared.

        Raises:
            PolicyError: they do not fit each other; they are named.
        """
        from transformers import CsmConfig, CsmForConditionalGeneration

        read_config(folder / "config.json", CONFIG_KEYS)
        read_replies(folder / REPLIES)
        config = CsmConfig.from_pretrained(str(folder))
        check_config(config, read_tokenizer(folder))
        with torch.device("meta"):
            state, own_name = stored_state(CsmNetwork(CsmForConditionalGeneration(config)))
        check_state(shapes_of(state), stored_shapes(shard_files(folder), own_name), str(folder))

    @classmethod
    def check_queries(cls, folder: Path, queries: Sequence[Query]) -> None:
        """Check that there are words for every question. Raises PolicyError: there are none for a question."""
        _check_replies(read_replies(folder / REPLIES), queries)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> CsmPolicy:
        """Read what `save` wrote, or a release (sesame/csm-1b) with any `replies.jsonl`. Raises PolicyError: names the part."""
        from transformers import CsmForConditionalGeneration

        read_config(folder / "config.json", CONFIG_KEYS)
        tokenizer = read_tokenizer(folder)
        policy = cls(load_released(CsmForConditionalGeneration, folder, dtype), tokenizer, read_replies(folder / REPLIES))
        policy.model.to(device)
        policy.mimi.to(device)
        return policy


def read_tokenizer(folder: Path) -> Any:
    """Read the checkpoint's tokenizer. Raises PolicyError: there is none."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").is_file():
        # transformers would make an empty one of what is left.
        raise PolicyError(f"{folder}: has no tokenizer.json; copy the checkpoint again")
    with reading(folder, "has no tokenizer of CSM", kind=PolicyError):
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def check_config(config: Any, tokenizer: Any) -> None:
    """Compare the parts of a `CsmConfig` with each other and the tokenizer. Raises PolicyError: of different models."""
    marks = [tokenizer.convert_tokens_to_ids(mark) for mark in MARKS]
    audio_ids = int(config.audio_token_id), int(config.audio_eos_token_id)
    if None in marks or max(len(tokenizer), *audio_ids) > config.text_vocab_size:
        raise PolicyError(f"the tokenizer ({len(tokenizer)} pieces) is not CSM's: the model has {config.text_vocab_size} words")
    codebooks = (config.num_codebooks, config.depth_decoder_config.num_codebooks)
    if len(set(codebooks)) > 1 or config.codec_config.num_quantizers < codebooks[0]:
        raise PolicyError(
            f"backbone, depth decoder and codec have {codebooks} and {config.codec_config.num_quantizers} codebooks"
        )


def stored_state(model: CsmNetwork) -> tuple[dict[str, Tensor], Callable[[str], str | None]]:
    """Return the tensors a checkpoint fills, and their names from stored ones: None is Mimi's; a table may have two."""
    state, kept = model.state_dict(), dict[str, str]()
    if model.config.tie_codebooks_embeddings:
        del state[TIED[0]]
        kept = {TIED[0]: TIED[1]}
    return state, lambda name: None if name.startswith("codec_model.") else kept.get(name, name)


def _check_replies(replies: Mapping[str, str], queries: Sequence[Query]) -> None:
    if missing := sorted({query.transcript for query in queries} - replies.keys()):
        raise PolicyError(
            f"CSM speaks given words: {REPLIES} beside its weights has none for {len(missing)} of the questions, "
            f'such as {missing[0]!r}; add lines {{"question": ..., "reply": ...}}'
        )


def read_replies(path: Path) -> dict[str, str]:
    """Read the words to each question; {} without a file. Raises PolicyError: a line is another thing."""
    if not path.is_file():
        return {}
    try:
        return {str(line["question"]): str(line["reply"]) for _, line in read_rows(path)}
    except (KeyError, TypeError) as error:
        raise PolicyError(f'{path}: lines must be {{"question": ..., "reply": ...}} ({one_line(error)})') from error
