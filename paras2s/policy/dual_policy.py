"""`DualStreamPolicy`: the policy interface on `DualStreamLM` with a codec, a listener and a tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from paras2s.audio import Clip
from paras2s.errors import PolicyError
from paras2s.language import SENTENCE_DIM, WordPieces, piece_embeddings
from paras2s.policy.codec import Codec
from paras2s.policy.dual_stream import DualStreamConfig, DualStreamLM
from paras2s.policy.interface import Generation, PolicySpec, Prompt, Sampling, SlotSpec
from paras2s.policy.listener import FEATURE_DIM, Listener
from paras2s.policy.memory import AnswerMemory, PromptMemory
from paras2s.policy.perception import Percept, perceive
from paras2s.policy.sampler import pad_prompts, sample, slot_names
from paras2s.records import Block
from paras2s.storage import read_json, write_json

LORA_TARGETS = r".*model\.(layers|mimo_layers)\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
# Order of the special ids behind the word pieces. text_eos comes first, msg_end last: each borders what it is sampled with.
SPECIALS = (
    "text_eos_id", "blank_id", "pad_id", "user_id", "assistant_id", "media_begin_id", "media_end_id",
    "audio_and_text_id", "msg_end_id",
)  # fmt: skip


def special_ids(pieces: int) -> dict[str, int]:
    """Ids of the special tokens behind `pieces` word pieces."""
    return {name: pieces + number for number, name in enumerate(SPECIALS)}


class DualStreamPolicy:
    """Ids, prompts, answers and log-probs around one `DualStreamLM`."""

    def __init__(self, model: DualStreamLM, pieces: WordPieces, codec: Codec, listener: Listener) -> None:
        config = model.dual_config
        if codec.cardinality != config.codebook_sizes:
            raise PolicyError(f"codebooks {config.codebook_sizes} do not fit the codec's {codec.cardinality}")
        self.model, self.pieces, self.codec, self.listener = model, pieces, codec, listener
        self._frozen: DualStreamLM | None = None
        kinds = [("text", *config.text_range), *(("audio", *r) for r in config.audio_ranges)]
        self.spec = PolicySpec(
            slots=tuple(
                SlotSpec(name, kind, start, stop)  # type: ignore[arg-type]
                for name, (kind, start, stop) in zip(slot_names(config), kinds, strict=True)
            ),
            step_rate_hz=codec.frame_rate_hz,
            input_rate_hz=16_000,
            output_rate_hz=codec.sample_rate_hz,
            shared_prefill=True,
            has_target_encoder=True,
            stochastic_decoder=False,
            continuous_audio_input=config.continuous_dim > 0,
            joint_step=True,
            lora_targets=LORA_TARGETS,
            hearing_parameters=r"model\.vq_adaptor\..*",
        )

    @classmethod
    def create(cls, sizes: Any, codec: Codec, listener: Listener, seed: int) -> DualStreamPolicy:
        """A new policy of the sizes in `config.PolicyConfig`; its text rows start from a sentence model's token table."""
        pieces = WordPieces.most_frequent(sizes.text_pieces)
        config = DualStreamConfig(
            hidden_size=sizes.hidden_size,
            intermediate_size=sizes.intermediate_size,
            num_layers=sizes.num_layers,
            tap_layer=sizes.tap_layer,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            rope_theta=10_000.0,
            text_vocab=len(pieces) + len(SPECIALS),
            codebook_sizes=codec.cardinality,
            audio_delay_steps=sizes.audio_delay_steps,
            continuous_dim=FEATURE_DIM,
            mask_invalid_ids=True,
            **special_ids(len(pieces)),
        )
        model = DualStreamLM(config)
        model.initialise(seed)
        rows = piece_embeddings(pieces.pieces)
        rows = rows - rows.mean(0)
        _, _, directions = np.linalg.svd(rows, full_matrices=False)
        projected = rows @ directions[: config.hidden_size].T
        projected = torch.from_numpy(projected * (0.02 / projected.std())).float()
        model.model.embed_tokens.weight.data[: len(pieces), : projected.shape[1]] = projected
        return cls(model, pieces, codec, listener)

    # -- prompts and targets ------------------------------------------------------------------------------------------

    def encode_prompt(self, clip: Clip, heard: str) -> Prompt:
        """A question as the model reads it; `heard` is the recogniser's transcript."""
        return self.prompt_of(perceive(clip, self.codec), heard)

    def prompt_of(self, percept: Percept, heard: str) -> Prompt:
        """Layout of reference 1.5 with the transcript in the text stream (ParaS2S, section 4).

        user, media_begin, codes (continuous), media_end, "answer with both", msg_end, assistant.
        """
        config, codes = self.model.dual_config, percept.codes
        words = self.pieces.encode(heard)
        # Words longer than the speech run on beside blanks; the streams have one length.
        steps = max(len(codes), len(words))
        speech = slice(2, 2 + len(codes))
        audio = np.full((steps + 6, config.num_codebooks), config.pad_id, dtype=np.int64)
        text = np.full(steps + 6, config.blank_id, dtype=np.int64)
        audio[[0, 1], 0] = config.user_id, config.media_begin_id
        audio[2 + len(codes) : 2 + steps, 0] = config.blank_id
        audio[2 + steps :, 0] = config.media_end_id, config.audio_and_text_id, config.msg_end_id, config.assistant_id
        audio[speech] = codes + np.asarray(config.codebook_offsets)
        text[2 : 2 + len(words)] = words
        continuous = np.zeros(steps + 6, dtype=bool)
        continuous[speech] = True
        features = np.zeros((steps + 6, FEATURE_DIM), dtype=np.float32)
        features[speech] = self.listener.features(percept, heard)
        return Prompt(audio, text, features, continuous, SENTENCE_DIM, config.codebook_offsets)

    def encode_target(self, clip: Clip, text: str) -> Block:
        """A demonstration as one block with G = 1: forced blanks are marked as not sampled, terminators as sampled."""
        return self.target_block(self.codec.encode(clip), self.pieces.encode(text))

    def target_block(self, codes: np.ndarray, words: Sequence[int]) -> Block:
        """Layout of reference 1.9 from codes [T, K] and word ids."""
        config = self.model.dual_config
        delay, eos = config.audio_delay_steps, len(words)
        steps = max(eos + 1, delay + len(codes) + 1)
        if eos + 1 > delay + len(codes) + 1:
            raise PolicyError(f"the words ({eos} pieces) are longer than their speech ({len(codes)} steps)")
        tokens = np.full((1, steps, 1 + config.num_codebooks), config.pad_id, dtype=np.int64)
        sampled = np.zeros(tokens.shape, dtype=bool)
        tokens[0, :, 0] = config.blank_id
        tokens[0, : eos + 1, 0] = [*words, config.text_eos_id]
        sampled[0, : eos + 1, 0] = True
        tokens[0, :delay, 1] = config.blank_id
        tokens[0, delay : delay + len(codes), 1:] = codes + np.asarray(config.codebook_offsets)
        tokens[0, delay + len(codes), 1] = config.msg_end_id
        sampled[0, delay : delay + len(codes), 1:] = True
        sampled[0, delay + len(codes), 1] = True
        return Block(slot_names(config), tokens, sampled, np.zeros(tokens.shape))

    # -- sampling and scoring -----------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[Generation]:
        """See `sampler.sample`."""
        self.model.eval()
        return sample(self.model, prompts, group_size, sampling, seeds)

    def logprobs(self, prompts: Sequence[Prompt], blocks: Sequence[Block], sampling: Sampling) -> Tensor:
        """Log-probs [N, T, S] of blocks (one a prompt, each [G, T_b, S]), N = all answers, T = the longest block."""
        return teacher_forced(self.model, prompts, blocks, sampling)

    def decode_codes(self, block: Block, answer: int) -> np.ndarray:
        """Codec codes [T, K] of one answer: what was sampled in the audio slots, without its end."""
        config = self.model.dual_config
        tokens = block.tokens[answer, :, 1:]
        low = np.asarray(config.codebook_offsets)
        whole = ((tokens >= low) & (tokens < low + np.asarray(config.codebook_sizes))).all(1)
        return tokens[whole & block.sampled[answer, :, 1:].all(1)] - low

    def decode_audio(self, block: Block, answer: int) -> Clip:
        """Waveform of one answer."""
        return self.codec.decode(self.decode_codes(block, answer))

    def decode_text(self, block: Block, answer: int) -> str:
        """Text stream of one answer, up to its end."""
        ids = block.tokens[answer, :, 0][block.sampled[answer, :, 0]]
        return self.pieces.decode([int(i) for i in ids if i < len(self.pieces)])

    # -- reference, LoRA, files ---------------------------------------------------------------------------------------

    def freeze_reference(self) -> None:
        """Keep a copy of the present weights as the reference, for training without LoRA."""
        self._frozen = copy.deepcopy(self.model).requires_grad_(False).eval()

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Adapters off if there are any, else the frozen copy.

        Raises:
            PolicyError: neither adapters nor `freeze_reference`.
        """
        adapters = _lora_layers(self.model)
        if adapters:
            for layer in adapters:
                layer.enable_adapters(False)
            try:
                yield
            finally:
                for layer in adapters:
                    layer.enable_adapters(True)
        elif self._frozen is not None:
            trained, self.model = self.model, self._frozen
            try:
                yield
            finally:
                self.model = trained
        else:
            raise PolicyError("no reference: call freeze_reference() or add_lora() before training")

    def add_lora(self, rank: int, alpha: int) -> None:
        """Put LoRA matrices on both branches and freeze everything else."""
        from peft import LoraConfig, inject_adapter_in_model

        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=LORA_TARGETS), self.model)

    def merge_lora(self) -> None:
        """Fold the LoRA matrices into the weights and restore the original parameter names."""
        for name, module in list(self.model.named_modules()):
            if hasattr(module, "lora_A"):
                module.merge()
                parent, _, child = name.rpartition(".")
                setattr(self.model.get_submodule(parent), child, module.get_base_layer())
        self.model.requires_grad_(True)

    def save(self, folder: Path) -> None:
        """Weights as safetensors, config, vocabulary and listener statistics, each atomically."""
        from safetensors.torch import save

        from paras2s.storage import write_bytes

        if _lora_layers(self.model):
            raise PolicyError("merge_lora() before save(): a checkpoint holds the original parameter names")
        state = {name: value.contiguous() for name, value in self.model.state_dict().items()}
        write_bytes(folder / "model.safetensors", save(state))
        write_json(folder / "vocabulary.json", list(self.pieces.pieces))
        self.listener.save(folder / "listener.json")
        # Last, since a folder that has it counts as whole.
        config = self.model.dual_config.model_dump(mode="json")
        write_json(folder / "policy.json", {"architecture": "DualStreamLM", "config": config})

    @classmethod
    def load(cls, folder: Path, codec: Codec) -> DualStreamPolicy:
        """Read what `save` wrote.

        Raises:
            DataError: a file is missing or broken.
            PolicyError: another architecture, or weights that do not fit the config.
        """
        described = read_json(folder / "policy.json")
        architecture = described.get("architecture") if isinstance(described, dict) else None
        if architecture != "DualStreamLM":
            raise PolicyError(f"{folder}: holds a {architecture!r}, not a DualStreamLM; choose another")
        try:
            config = DualStreamConfig.model_validate(described.get("config"))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "config"
            raise PolicyError(f"{folder}/policy.json: {place}: {first['msg']}") from error
        model = DualStreamLM(config)
        load_weights(model, folder / "model.safetensors")
        pieces = WordPieces(read_json(folder / "vocabulary.json"))
        if len(pieces) != config.text_eos_id:
            raise PolicyError(f"{folder}/vocabulary.json: {len(pieces)} pieces, the config wants {config.text_eos_id}")
        return cls(model, pieces, codec, Listener.load(folder / "listener.json"))


def load_weights(model: DualStreamLM, path: Path) -> None:
    """Fill a model from a safetensors file.

    Raises:
        PolicyError: missing, cut off, or of another shape; the message names the first tensor that does not fit.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise PolicyError(f"{path}: cannot be read ({error}); copy the checkpoint again or warm up anew") from error
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise PolicyError(
                f"{path}: tensor {name} is {found.get(name, 'absent')}, the config wants {expected.get(name, 'none')}"
            )
    model.load_state_dict(state)


def _lora_layers(model: DualStreamLM) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "lora_A")]


# Answers scored at once: enough for fast products, few enough that neighbours of like length waste little padding.
ROWS_AT_ONCE = 32


def teacher_forced(model: DualStreamLM, prompts: Sequence[Prompt], blocks: Sequence[Block], sampling: Sampling) -> Tensor:
    """Differentiable log-probs [N, T, S] of the blocks' tokens, 0 where `sampled` is False.

    A prompt is read once for all its answers; answers go through by length, and the text branch no further than the
    longest text; heads run only where something was sampled.
    """
    config = model.dual_config
    steps = max(block.tokens.shape[1] for block in blocks)
    tokens, sampled = _stack_blocks(config, blocks, steps)
    audio, text, features, continuous, lengths = pad_prompts(config, prompts)
    read = PromptMemory(lengths)
    x = model.embed(audio, text, features, continuous)
    states = model.hidden(x, torch.arange(text.shape[1]).expand(text.shape), read)
    prompt_of = torch.repeat_interleave(torch.tensor([block.tokens.shape[0] for block in blocks]))
    ends = [None if state is None else state[torch.arange(len(prompts)), lengths - 1] for state in states]
    counts = _fed_steps(sampled)
    logp = torch.zeros(tokens.shape, dtype=x.dtype)
    for rows in torch.split(counts.argsort(descending=True), ROWS_AT_ONCE):
        part = _score_rows(model, read, ends, prompt_of[rows], tokens[rows], sampled[rows], int(counts[rows].max()), sampling)
        logp = logp.index_copy(0, rows, part)
    return logp


def _score_rows(
    model: DualStreamLM,
    read: PromptMemory,
    ends: Sequence[Tensor | None],
    prompt_of: Tensor,
    tokens: Tensor,
    sampled: Tensor,
    count: int,
    sampling: Sampling,
) -> Tensor:
    """Log-probs [n, T, S] of answers [n, T, S] behind their prompts; `ends` are the states that predict step 0.

    Step i sits `i` behind its prompt and is predicted one before; the last sampled one is predicted but never fed.
    """
    config = model.dual_config
    fed = tokens[:, :count]
    positions = read.lengths[prompt_of][:, None] + torch.arange(count)
    text_count = int(_fed_steps(sampled[..., :1]).max())
    memory = AnswerMemory(read, prompt_of, count)
    x = model.embed(fed[..., 1:], fed[..., 0], None, None)
    states = model.hidden(x, positions, memory, text_steps=text_count)
    text_state, audio_state = (
        None if end is None or state is None else torch.cat([end[prompt_of][:, None], state], 1)
        for end, state in zip(ends, states, strict=True)
    )
    assert text_state is not None
    logp = torch.zeros(tokens.shape, dtype=x.dtype)
    here = sampled[..., 0]
    logits = model.text_logits(text_state[here[:, : text_count + 1]]) / sampling.text_temperature
    wanted = tokens[..., 0][here] - config.text_range[0]
    logp = logp.masked_scatter(_only_slot(sampled, 0), torch.log_softmax(logits, -1).gather(1, wanted[:, None]))
    if audio_state is None:
        return logp
    here = sampled[..., 1]
    slot_logits = model.audio_logits(audio_state[here[:, : count + 1]])
    for slot, logits in enumerate(slot_logits, 1):
        # The end step samples the first audio slot only.
        inside = sampled[..., slot][here]
        wanted = tokens[..., slot][sampled[..., slot]] - config.audio_ranges[slot - 1][0]
        scored = torch.log_softmax(logits[inside] / sampling.audio_temperature, -1).gather(1, wanted[:, None])
        logp = logp.masked_scatter(_only_slot(sampled, slot), scored)
    return logp


def _fed_steps(sampled: Tensor) -> Tensor:
    """How many steps of each answer are read [N]: all before the last sampled one."""
    steps = torch.arange(sampled.shape[1])
    return (sampled.any(2) * steps).amax(1)


def _only_slot(sampled: Tensor, slot: int) -> Tensor:
    mask = torch.zeros_like(sampled)
    mask[..., slot] = sampled[..., slot]
    return mask


def _stack_blocks(config: DualStreamConfig, blocks: Sequence[Block], steps: int) -> tuple[Tensor, Tensor]:
    """All answers of all blocks: tokens [N, T, S] and sampled [N, T, S], padded to `steps`."""
    tokens, sampled = [], []
    for block in blocks:
        short = ((0, 0), (0, steps - block.tokens.shape[1]), (0, 0))
        tokens.append(np.pad(block.tokens, short, constant_values=config.pad_id))
        sampled.append(np.pad(block.sampled, short))
    return torch.from_numpy(np.concatenate(tokens)), torch.from_numpy(np.concatenate(sampled))
