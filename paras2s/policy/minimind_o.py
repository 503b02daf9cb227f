"""`MiniMindPolicy`: MiniMind-O (jingyaogong/minimind-o), 0.1 B parameters: a thinker of 8 layers and a talker of 4.

A step is a frame of 80 ms: a word from the thinker, and K codes of Mimi from the talker, all drawn independently given what was
before. The talker reads the thinker's state after `bridge_layer`, and the codes of the step before; the thinker reads words
alone. Its layers are Qwen3's, so transformers' class runs them under the released names.

- Codebook k starts k + 1 steps late. Before its start it holds a pad, which is forced.
- After the end of the words comes a line break, then pads, forced. The makers' `generate` feeds id 201 there unless it is told
  another; in their training it is the line break, which is what we feed.
- A code of 2048 and above stops its codebook, and the sound with it. What a codebook draws behind its stop is read and
  learned, as in the makers' loop. An answer ends when its words and all codebooks have ended.
- A question is the frozen SenseVoice-Small's output, one position every 60 ms, through `audio_proj`, which learns. The model
  was trained to hear the last turn alone: of earlier ones it reads the words.
- Mimi is no part of `model`: it never learns, and it runs in float32.

Left out: pictures, reference voices, thinking aloud, the mixture of experts, the repetition penalty on codes.
Alphabet: B prompts, G answers a prompt, N answers, L prompt positions, T steps, S slots, K codebooks, D the width.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.components import find_component, write_pointers
from paras2s.policy.csm import read_tokenizer
from paras2s.policy.dual_stream.network import RMSNorm
from paras2s.policy.dual_stream.sampler import pick, uniforms_of
from paras2s.policy.speech_tokenizers.mimi import decode_mimi, encode_mimi
from paras2s.policy.speech_tokenizers.sense_voice import SenseVoice
from paras2s.policy.streams import Reading, behind, grouped, layer_input, run_stack, score, stacked
from paras2s.policy.types import Generation, PolicySpec, Prompt, SampleRequest, Sampling, SlotSpec, Turn, slot_names
from paras2s.policy.weights import (
    check_fixed,
    check_state,
    load_released,
    open_tensors,
    read_config,
    shapes_of,
    shard_files,
    stored_dtype,
    write_tensors,
)
from paras2s.types import Block
from paras2s.utils.io import reading, write_bytes

LAYERS = r"(model|talker)\.layers\.\d+"
LORA_TARGETS = LAYERS + r"\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
CONFIG_KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "rope_theta", "max_position_embeddings", "eos_token_id", "num_talker_hidden_layers", "talker_hidden_size",
    "bridge_layer", "audio_ids", "audio_hidden_size", "audio_vocab_size", "audio_pad_token", "audio_stop_token",
)  # fmt: skip
FIXED = {
    "use_moe": False, "dropout": 0.0, "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "inference_rope_scaling": False,
}  # fmt: skip
MARKS = {"start": "<|im_start|>", "end": "<|im_end|>", "pad": "<|endoftext|>", "sound": "<|audio_pad|>", "think": "<think>",
         "thought": "</think>"}  # fmt: skip
# Of the makers' `TalkerHead` and `TalkerEmbedding`; no config holds them.
CODEBOOKS, RANK = 8, 256
# Frozen components: folders in the checkpoint, or beside it.
ENCODER, CODEC = COMPONENTS = ("SenseVoiceSmall", "mimi")
RELEASED = "pytorch_model.bin"
# The head is the embedding. What pictures and voices need is read and written, and not used.
TIED, KEPT = "lm_head.weight", ("vision_proj.", "talker.spk_proj.")
ROWS_AT_ONCE = 256


class CodeTables(nn.Module):
    """Embedding of the K codes of a step: a common table, and a narrow one a codebook."""

    def __init__(self, ids: int, width: int) -> None:
        super().__init__()
        self.base = nn.Embedding(ids, width)
        self.adapters = nn.ModuleList(
            nn.Sequential(nn.Embedding(ids, RANK), nn.GELU(), nn.Linear(RANK, width, bias=False)) for _ in range(CODEBOOKS)
        )

    def forward(self, codes: Tensor) -> Tensor:
        """[..., K] to their mean [..., D]."""
        tables = [self.base(codes[..., k]) + adapter(codes[..., k]) for k, adapter in enumerate(self.adapters)]
        return torch.stack(tables).mean(0)


class CodeHeads(nn.Module):
    """Logits of a step's codes: a common head, and a narrow one a codebook."""

    def __init__(self, width: int, ids: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, ids, bias=False)
        self.adapters = nn.ModuleList(
            nn.Sequential(nn.Linear(width, RANK, bias=False), nn.GELU(), nn.Linear(RANK, ids, bias=False))
            for _ in range(CODEBOOKS)
        )

    def forward(self, states: Tensor, codebook: int) -> Tensor:
        """[..., D] to the logits of one codebook [..., V]."""
        return self.base(states) + self.adapters[codebook](states)


def _decoder(released: dict[str, Any], **sizes: Any) -> Any:
    from transformers import Qwen3Config, Qwen3Model

    rope = {"rope_type": "default", "rope_theta": float(released["rope_theta"])}
    positions = int(released["max_position_embeddings"])
    return Qwen3Model(Qwen3Config(rope_parameters=rope, max_position_embeddings=positions, rms_norm_eps=1e-6, **sizes))


def _projection(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, out), RMSNorm(out, 1e-6))


class MiniMindNetwork(nn.Module):
    """Thinker (`model`), talker and the projection of speech, under the released names."""

    def __init__(self, released: dict[str, Any]) -> None:
        super().__init__()
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                 "head_dim", "vocab_size")  # fmt: skip
        self.model = _decoder(released, **{name: int(released[name]) for name in names})
        width, spoken = int(released["hidden_size"]), int(released["talker_hidden_size"])
        # Of the talker the makers' config holds width and depth; the rest are defaults of their `MiniMindConfig`.
        self.talker = _decoder(
            released, hidden_size=spoken, intermediate_size=math.ceil(spoken * math.pi / 64) * 64, num_attention_heads=8,
            num_key_value_heads=4, head_dim=spoken // 8, vocab_size=1,
            num_hidden_layers=int(released["num_talker_hidden_layers"]),
        )  # fmt: skip
        codes = int(released["audio_vocab_size"])
        self.talker.embed_tokens = CodeTables(codes, spoken)
        self.talker.lm_head = CodeHeads(spoken, codes)
        self.talker.codec_proj, self.talker.embed_proj = _projection(spoken, spoken), _projection(width, spoken)
        self.talker.text_scale = nn.Parameter(torch.tensor(3.0))
        self.talker.audio_scale = nn.Parameter(torch.tensor(1.0))
        size = int(released["audio_hidden_size"])
        self.audio_proj = nn.ModuleDict(
            {"mlp": nn.Sequential(nn.LayerNorm(size), nn.Linear(size, width), nn.GELU(), nn.Linear(width, width))}
        )
        self.tapped_layer = int(released["bridge_layer"]) + 1
        self.pads = (0, *[int(released["audio_pad_token"])] * CODEBOOKS)
        self.gradient_checkpointing = False

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.embed_tokens.weight.device

    def words(self, states: Tensor) -> Tensor:
        """Return logits [..., V] of words."""
        return nn.functional.linear(states, self.model.embed_tokens.weight)

    def bridged(self, tapped: Tensor, codes: Tensor) -> Tensor:
        """Return the talker's input [..., D] from the thinker's states [..., D] and the codes [..., K] of the same steps."""
        words = self.talker.embed_proj(tapped) * self.talker.text_scale
        return words + self.talker.codec_proj(self.talker.embed_tokens(codes)) * self.talker.audio_scale

    def read(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the thinker's input [B, L, D], codes [B, L, K] and lengths [B]; padded on the right."""
        lengths = torch.tensor([prompt.length for prompt in prompts], device=self.device)
        rows = [np.column_stack([prompt.text_ids, prompt.continuous, prompt.audio_ids]) for prompt in prompts]
        held = nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True).to(self.device)
        x, is_sound = self.model.embed_tokens(held[..., 0]), held[..., 1].bool()
        parts = [prompt.features[prompt.continuous] for prompt in prompts if prompt.features is not None]
        if parts:
            # A mask and a concatenation have one order, so clips need not be told apart.
            sound = self.audio_proj["mlp"](torch.from_numpy(np.concatenate(parts)).to(x))
            x = x.masked_scatter(is_sound[..., None], sound)
        return x, held[..., 2:], lengths

    def states(self, prompts: Sequence[Prompt], owner: Sequence[int], fed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return states of thinker and talker [N, W, D] over prompts and fed steps [N, T, S], and [N] where step 0 is."""
        x, codes, lengths = (part[list(owner)] for part in self.read(prompts))
        x = behind(x, lengths, self.model.embed_tokens(fed[..., 0]))
        codes = behind(codes, lengths, fed[..., 1:])
        with layer_input(self.model, self.tapped_layer) as tapped:
            thought = run_stack(self.model, x)
        return thought, run_stack(self.talker, self.bridged(tapped[0], codes)), lengths - 1

    def forward(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling) -> tuple[Tensor]:
        """Return log-probs [N, T, S] of the answers' tokens, 0 where not sampled; a prompt is read again for each answer."""
        # transformers checkpoints in training mode alone; nothing of it drops out.
        self.train(self.gradient_checkpointing)
        blocks = [block for (block,) in answers]
        owner = [number for number, block in enumerate(blocks) for _ in range(len(block.tokens))]
        tokens, sampled = stacked(blocks, self.pads, self.device)
        thought, spoken, first = self.states(prompts, owner, tokens[:, :-1])
        logp = [score(self.words, thought, first, tokens[..., 0], sampled[..., 0], sampling.text_temperature)]
        for k in range(CODEBOOKS):
            head, slot = partial(self.talker.lm_head, codebook=k), (..., 1 + k)
            logp.append(score(head, spoken, first, tokens[slot], sampled[slot], sampling.audio_temperature))
        return (torch.stack(logp, -1),)


@torch.inference_mode()
def sample(model: MiniMindNetwork, ends: tuple[int, int, int], request: SampleRequest) -> list[Generation]:
    """Sample G answers a prompt, each prompt read once; `ends`: the end of words, the line break, the first id that stops."""
    group_size, sampling, device = request.group_size, request.sampling, model.device
    count, slots = sampling.max_steps, 1 + CODEBOOKS
    uniforms = uniforms_of(request.seeds, count, slots).to(device)
    x, codes, lengths = model.read(request.prompts)
    with layer_input(model.model, model.tapped_layer) as tapped:
        thinker = Reading(model.model, x, lengths, group_size, count)
    talker = Reading(model.talker, model.bridged(tapped[0], codes), lengths, group_size, count)
    rows = torch.arange(len(uniforms), device=device)
    thought, spoken = (part.states[rows // group_size, thinker.lengths - 1] for part in (thinker, talker))
    pads = torch.tensor(model.pads, device=device)
    tokens_of = pads.repeat(len(rows), count, 1)
    sampled_of = torch.zeros(tokens_of.shape, dtype=torch.bool, device=device)
    logp_of = torch.zeros(tokens_of.shape, dtype=torch.float64, device=device)
    over = torch.zeros(len(rows), slots, dtype=torch.bool, device=device)
    # Without sound all codebooks have ended before they begin.
    over[:, 1:] = not sampling.speak
    for step in range(count):
        drawn, logp = pads.repeat(len(rows), 1), logp_of[rows, step]
        own = torch.zeros_like(over[rows])
        own[:, 0] = ~over[rows, 0]
        own[:, 1 : 1 + step] = sampling.speak
        ids, logp[:, 0] = pick(model.words(thought), sampling.text_temperature, uniforms[rows, step, 0], sampling.text_top_k)
        behind_end = torch.where(tokens_of[rows, step - 1, 0] == ends[0], ends[1], model.pads[0])
        drawn[:, 0] = torch.where(own[:, 0], ids, behind_end)
        for k in range(min(step, CODEBOOKS) if sampling.speak else 0):
            logits, uniform = model.talker.lm_head(spoken, k), uniforms[rows, step, 1 + k]
            drawn[:, 1 + k], logp[:, 1 + k] = pick(logits, sampling.audio_temperature, uniform, sampling.audio_top_k)
        tokens_of[rows, step], sampled_of[rows, step], logp_of[rows, step] = drawn, own, torch.where(own, logp, 0.0)
        over[rows] |= own & torch.cat([drawn[:, :1] == ends[0], drawn[:, 1:] >= ends[2]], 1)
        stay = (~over[rows].all(1)).nonzero()[:, 0]
        if not len(stay) or step == count - 1:
            break
        if len(stay) < len(rows):
            rows, drawn = rows[stay], drawn[stay]
            thinker.select(stay)
            talker.select(stay)
        with layer_input(model.model, model.tapped_layer) as tapped:
            thought = thinker.feed(model.model.embed_tokens(drawn[:, 0]))
        spoken = talker.feed(model.bridged(tapped[0][:, 0], drawn[:, 1:]))
    return grouped([part.cpu().numpy() for part in (tokens_of, sampled_of, logp_of, over.all(1))], request.seeds)


class MiniMindPolicy(Policy):
    """MiniMind-O, SenseVoice-Small and Mimi behind the policy interface."""

    model: MiniMindNetwork

    def __init__(self, model: MiniMindNetwork, released: dict[str, Any], tokenizer: Any, mimi: Any, folder: Path) -> None:
        """`released`: the checkpoint's config; `folder`: where the frozen components and the files to copy are."""
        self.model, self.released, self.tokenizer, self.folder = model.eval(), released, tokenizer, folder
        self.mimi: Any = mimi.float().requires_grad_(False).eval()
        self.kept: dict[str, Tensor] = {}
        self.marks = special_ids(released, tokenizer)
        self.codes = int(self.mimi.config.codebook_size)
        rate_hz, codec_hz = int(self.mimi.config.sampling_rate), float(self.mimi.config.frame_rate)
        names, ids = slot_names(CODEBOOKS), int(released["audio_vocab_size"])
        if not self.codes <= int(released["audio_stop_token"]) < ids:
            raise PolicyError(f"Mimi has {self.codes} codes, and the model's {ids} ids have their stop elsewhere")
        self.spec = PolicySpec(
            slots=(
                SlotSpec(names[0], "text", 0, int(released["vocab_size"])),
                *(SlotSpec(name, "audio", 0, ids) for name in names[1:]),
            ),
            step_rate_hz=codec_hz, input_rate_hz=16_000, output_rate_hz=rate_hz, lora_targets=LORA_TARGETS,
            adaptor_parameters=r"audio_proj\..*", sharded=LAYERS, context_steps=int(released["max_position_embeddings"]),
            code_format=f"mimi-{CODEBOOKS}@{codec_hz:g}",
        )  # fmt: skip

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations for the gradient, by transformers' own means."""
        for part in (self.model.model, self.model.talker):
            part.gradient_checkpointing_enable({"use_reentrant": False})
            part.disable_input_require_grads()
        self.model.gradient_checkpointing = True

    # -- prompts and targets ------------------------------------------------------------------------------------------

    @cached_property
    def audio_encoder(self) -> SenseVoice:
        """Speech to vectors; any object with `features(clip)` may be set in its place, such as a table of vectors."""
        return SenseVoice.load(find_component(self.folder, ENCODER), self.device)

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Encode a dialogue in the chat template's layout, without thinking: its last turn's sound, the words of the others.

        What looks like a special token in a speaker's words stays words.

        Raises:
            PolicyError: the last turn is not the user's, or a turn has nothing that the model reads.
        """
        if not turns or turns[-1].role != "user":
            raise PolicyError("MiniMind-O answers a user: end the dialogue with the user's turn")
        ids: list[int] = []
        vectors = None if turns[-1].clip is None else self.audio_encoder.features(turns[-1].clip)
        for turn in turns[:-1] if vectors is not None else turns:
            if not turn.text:
                raise PolicyError(f"MiniMind-O hears the last turn alone: give the words of the {turn.role}'s turn before it")
            ids += self._turn(turn.role, self._words(f"{turn.role}\n{turn.text}"), turn.text)
        if vectors is not None:
            ids += self._turn("user", [*self._words("user\n"), *[self.marks["sound"]] * len(vectors)], "")
        ids += [self.marks["start"], *self._words("assistant\n"), *self._thinking("")]
        text = np.array(ids, dtype=np.int64)
        if len(text) >= (self.spec.context_steps or 0):
            raise PolicyError(f"the dialogue has {len(text)} positions, MiniMind-O's context {self.spec.context_steps}")
        continuous, features = text == self.marks["sound"], None
        if vectors is not None:
            features = np.zeros((len(text), vectors.shape[1]), dtype=vectors.dtype)
            features[continuous] = vectors
        audio = np.full((len(text), CODEBOOKS), self.model.pads[1], dtype=np.int64)
        return Prompt(audio, text, features, continuous, 0, (0,) * CODEBOOKS)

    def _turn(self, role: str, said: list[int], text: str) -> list[int]:
        content = [*self._words("assistant\n"), *self._thinking(text)] if role == "assistant" else said
        return [self.marks["start"], *content, self.marks["end"], *self._words("\n")]

    def _thinking(self, text: str) -> list[int]:
        """Return no thoughts, and the words behind them."""
        return [self.marks["think"], *self._words("\n\n"), self.marks["thought"], *self._words(f"\n\n{text}")]

    def _words(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def encode_target(self, clip: Clip, text: str) -> tuple[Block, ...]:
        """Lay out a demonstration as the makers' training does: each codebook's codes and its stop, pads around them."""
        codes, words = encode_mimi(self.mimi, clip, CODEBOOKS), [*self._words(text), self.marks["end"]]
        steps = max(len(codes) + 1 + CODEBOOKS, len(words))
        tokens = np.tile(np.array(self.model.pads, dtype=np.int64), (1, steps, 1))
        sampled = np.zeros(tokens.shape, dtype=bool)
        tokens[0, : len(words) + 1, 0] = [*words, self.marks["break"]][:steps]
        sampled[0, : len(words), 0] = True
        for k in range(CODEBOOKS):
            spoken = slice(k + 1, k + 2 + len(codes))
            tokens[0, spoken, 1 + k] = [*codes[:, k], int(self.released["audio_stop_token"])]
            sampled[0, spoken, 1 + k] = True
        return (Block(slot_names(CODEBOOKS), tokens, sampled, np.zeros(tokens.shape)),)

    # -- answers ------------------------------------------------------------------------------------------------------

    def generate(self, request: SampleRequest) -> list[Generation]:
        """See `Policy.generate`. Raises PolicyError: more steps than the context holds."""
        longest, steps = max(prompt.length for prompt in request.prompts), request.sampling.max_steps
        if longest + steps > (limit := self.spec.context_steps or 0):
            raise PolicyError(f"{longest} positions of prompt and {steps} of answer: MiniMind-O's context holds {limit}")
        self.model.eval()
        ends = (self.marks["end"], self.marks["break"], self.codes)
        return [generation for part in request.parts(ROWS_AT_ONCE) for generation in sample(self.model, ends, part)]

    @torch.no_grad()
    def answer_logits(self, prompt: Prompt, blocks: Sequence[Block]) -> list[np.ndarray]:
        """See `Policy.answer_logits`; without a cache."""
        fed = torch.from_numpy(blocks[0].tokens[:1, :-1]).to(self.device)
        thought, spoken, first = self.model.states([prompt], [0], fed)
        heads: list[Callable[[Tensor], Tensor]] = [partial(self.model.talker.lm_head, codebook=k) for k in range(CODEBOOKS)]
        logits = [self.model.words(thought[0, first[0] :]), *(head(spoken[0, first[0] :]) for head in heads)]
        return [part.to(torch.promote_types(part.dtype, torch.float32)).cpu().numpy() for part in logits]

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Return codes [T, K] of the frames that are whole, up to the first stop of any codebook."""
        (block,) = blocks
        streams = []
        for k in range(CODEBOOKS):
            drawn = block.tokens[answer, block.sampled[answer, :, 1 + k], 1 + k]
            stops = np.flatnonzero(drawn >= self.codes)
            streams.append(drawn[: stops[0]] if len(stops) else drawn)
        frames = min(len(stream) for stream in streams)
        return np.stack([stream[:frames] for stream in streams], 1)

    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Mimi's waveform; it draws nothing from `seed`."""
        return decode_mimi(self.mimi, self.decode_codes(blocks, answer))

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """Decode the words, without their end."""
        (block,) = blocks
        ids = block.tokens[answer, block.sampled[answer, :, 0], 0].tolist()
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write a checkpoint that the makers' class loads too; components are pointed at. Raises PolicyError: adapters."""
        self.refuse_adapters()
        write_tensors(folder, {**self.model.state_dict(), **self.kept})
        if folder.resolve() != self.folder.resolve():
            for file in self.folder.iterdir():
                # Tokenizer, settings, and the makers' code, which their loader runs.
                if file.suffix in (".json", ".jinja", ".py") and file.name not in ("config.json", "answers.json"):
                    shutil.copy(file, folder / file.name)
        (folder / RELEASED).unlink(missing_ok=True)
        write_pointers(folder, self.folder, COMPONENTS)
        # Last, since a folder that has it counts as complete.
        write_bytes(folder / "config.json", (self.folder / "config.json").read_bytes())

    def reload(self, folder: Path) -> None:
        """Thinker, talker and projection; audio encoder and codec never change."""
        self.kept = fill(self.model, folder)

    @classmethod
    def check_folder(cls, folder: Path) -> None:
        """Compare a checkpoint's config, tokenizer and weights. Raises PolicyError: names what does not fit or is missing."""
        released = read_released(folder)
        special_ids(released, read_tokenizer(folder))
        find_component(folder, CODEC)
        with torch.device("meta"):
            network = MiniMindNetwork(released)
        split(network, stored_tensors(folder), folder)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> MiniMindPolicy:
        """Read a release for transformers (jingyaogong/minimind-3o), or what `save` wrote. Raises PolicyError: names it."""
        from transformers import MimiModel
        from transformers.initialization import no_init_weights
        from transformers.modeling_utils import local_torch_dtype

        released, tokenizer = read_released(folder), read_tokenizer(folder)
        stored = next(iter(stored_tensors(folder).values())).dtype if (folder / RELEASED).is_file() else None
        # Rotary frequencies stay in float32 this way, which a cast of the whole model would round.
        with no_init_weights(), local_torch_dtype(dtype or stored or stored_dtype(shard_files(folder))):
            model = MiniMindNetwork(released)
        mimi = load_released(MimiModel, find_component(folder, CODEC), torch.float32)
        policy = cls(model, released, tokenizer, mimi, folder)
        policy.reload(folder)
        policy.model.to(device)
        policy.mimi.to(device)
        return policy


def read_released(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's config. Raises PolicyError: it lacks keys, or it is of a model that is not built."""
    released: dict[str, Any] = read_config(folder / "config.json", CONFIG_KEYS)
    check_fixed(released, FIXED, str(folder / "config.json"))
    if not 0 <= int(released["bridge_layer"]) < int(released["num_hidden_layers"]) - 1:
        raise PolicyError(f"{folder / 'config.json'}: bridge_layer {released['bridge_layer']} has no layer behind it")
    return released


def special_ids(released: dict[str, Any], tokenizer: Any) -> dict[str, int]:
    """Return the ids of `MARKS` and of a line break ("break"). Raises PolicyError: the tokenizer is not the model's."""
    marks = {name: tokenizer.convert_tokens_to_ids(mark) for name, mark in MARKS.items()}
    broken, words = tokenizer("\n", add_special_tokens=False)["input_ids"], int(released["vocab_size"])
    if None in marks.values() or len(broken) != 1 or len(tokenizer) > words:
        raise PolicyError(f"the tokenizer ({len(tokenizer)} pieces) is not MiniMind-O's: the model has {words} words")
    placed = (released["eos_token_id"], released["audio_ids"])
    if (marks["end"], [marks["sound"]]) != placed or marks["pad"] != 0:
        raise PolicyError(f"{MARKS['end']} and {MARKS['sound']} are {placed} to the config and {marks} to the tokenizer")
    return {**marks, "break": int(broken[0])}


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    """Return a checkpoint's tensors by name, torch's of the release or safetensors. Raises PolicyError: unreadable."""
    if (folder / RELEASED).is_file():
        with reading(folder / RELEASED, "cannot be read", "; copy the checkpoint again", kind=PolicyError):
            return dict(torch.load(folder / RELEASED, map_location="cpu", weights_only=True, mmap=True))
    tensors: dict[str, Tensor] = {}
    for path in shard_files(folder):
        with open_tensors(path) as held:
            tensors |= {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118 - no mapping
    return tensors


def split(network: MiniMindNetwork, stored: dict[str, Tensor], folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors of the network, and those that are kept for others. Raises PolicyError: they do not fit, by name."""
    kept = {name: value for name, value in stored.items() if name.startswith(KEPT)}
    own = {name: value for name, value in stored.items() if name not in kept and name != TIED}
    check_state(shapes_of(network.state_dict()), shapes_of(own), str(folder))
    return own, kept


def fill(network: MiniMindNetwork, folder: Path) -> dict[str, Tensor]:
    """Fill a network from a checkpoint; return the other tensors. Raises PolicyError: it does not fit; nothing has changed."""
    own, kept = split(network, stored_tensors(folder), folder)
    for name, value in network.state_dict().items():
        value.copy_(own[name])
    return kept
