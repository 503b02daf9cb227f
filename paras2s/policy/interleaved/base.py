"""`InterleavedPolicy`: text and audio in turn, in one stream of a plain causal decoder.

Every token of an answer is sampled, its end too. Which stream a token belongs to follows from its id and is written into the
block's labels. A policy does not know what it will draw before it has drawn it, so there is one temperature,
`Sampling.text_temperature`, for both. `Sampling.max_steps` counts tokens of both.

Released tensors that hold several of ours one above the other are cut when they are read and joined when they are written, so
that the network is the same for all; `hf_tensors` names the same weights as transformers does, for an engine that serves them.

Left out: top-p and the released repetition penalty (the sampled policy would not be the scored one), the decoders of codes
(see `interleaved.cosyvoice`), answers in text alone.
Alphabet: L positions, T tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.components import POINTERS, find_component, write_pointers
from paras2s.policy.dual_stream.config import SPECIAL_IDS, DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.policy import LORA_TARGETS, SHARDED, StreamPolicy
from paras2s.policy.interleaved.cosyvoice import DecoderSpeaker, SpeechDecoder, SpeechEncoder
from paras2s.policy.speaking import ANSWERS_AT_ONCE
from paras2s.policy.types import NO_PARAMETERS, PolicySpec, Prompt, Turn, slot_names, style_sentence, with_words
from paras2s.policy.weights import (
    INDEX,
    check_state,
    open_tensors,
    read_config,
    shard_files,
    stored_dtype,
    stored_shapes,
    write_tensors,
)
from paras2s.types import AUDIO, TEXT, Block
from paras2s.utils.io import write_bytes, write_json

# A stored tensor's name -> ours, one above the other.
Joined = Mapping[str, tuple[str, ...]]
# Beside the weights: configs, tokenizers, licence, and the makers' code, which their own loader wants.
_COPIED_SUFFIXES = (".json", ".model", ".txt", ".py", ".jinja", ".md")


class Words(Protocol):
    """Text to ids and back; markers of special tokens in a text are text."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, none of them special."""

    def decode(self, ids: Sequence[int]) -> str:
        """Decode the text ids; others are left out."""


OWN_OUTER = {name: (name,) for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")}
OWN_ATTENTION = {
    name: (name,)
    for name in (
        *(f"self_attn.{letter}_proj.{kind}" for letter in "qkv" for kind in ("weight", "bias")),
        "self_attn.o_proj.weight",
    )
}


# -- tensors under other names ----------------------------------------------------------------------------------------


def layered(outer: Joined, layer: Joined, stored: str, layers: int) -> dict[str, tuple[str, ...]]:
    """Return the names of a decoder's tensors, from those of one layer; `stored` is a layer's prefix with its number as {}."""
    names = dict(outer)
    for number in range(layers):
        for name, ours in layer.items():
            names[stored.format(number) + name] = tuple(f"model.layers.{number}.{own}" for own in ours)
    return names


def joined_shapes(state: Mapping[str, Tensor], names: Joined) -> dict[str, tuple[int, ...]]:
    """Return shapes of stored tensors, by their names, from ours."""
    return {name: (sum(len(state[own]) for own in ours), *state[ours[0]].shape[1:]) for name, ours in names.items()}


def load_joined(
    state: Mapping[str, Tensor], names: Joined, files: Iterable[Path], where: str, aside: Collection[str] = ()
) -> dict[str, Tensor]:
    """Fill tensors, by our names, from safetensors files with others; what is named in `aside` is returned as stored.

    Raises:
        PolicyError: a file cannot be read, or the tensors do not fit; nothing is then changed.
    """
    files = list(files)
    rows = {name: [len(state[own]) for own in ours] for name, ours in names.items()}
    expected = joined_shapes(state, names)
    stored: dict[str, tuple[int, ...]] = {}
    passed_through: dict[str, Tensor] = {}
    for path in files:
        with open_tensors(path) as held:
            for name in held.keys():  # noqa: SIM118 - a safetensors file is no mapping
                if name in aside:
                    passed_through[name] = held.get_tensor(name)
                else:
                    stored[name] = tuple(held.get_slice(name).get_shape())
    check_state(expected, stored, where)
    for path in files:
        with open_tensors(path) as held:
            for name in stored.keys() & set(held.keys()):
                for own, part in zip(names[name], held.get_tensor(name).split(rows[name]), strict=True):
                    state[own].copy_(part)
    return passed_through


def token_ids(known: Mapping[str, int], names: Iterable[str], sounds: tuple[str, int], where: str) -> dict[str, int]:
    """Return ids of the tokens `names`, and of codes: `sounds` is their name, with a code as {}, and their number.

    Raises:
        PolicyError: a token is unknown, or the codes do not follow one another.
    """
    name, count = sounds
    first, last = name.format(0), name.format(count - 1)
    names = (*names, first, last)
    if missing := [name for name in names if name not in known]:
        raise PolicyError(f"{where}: no token {', '.join(missing)}; this is another model's tokenizer")
    if known[last] - known[first] != count - 1:
        raise PolicyError(f"{where}: {first} is {known[first]} and {last} is {known[last]}; codes must follow one another")
    return {name: known[name] for name in names}


def plain_config(
    tokens: Mapping[str, int], first_audio: str, pad: int, ends: Sequence[int], where: str, **sizes: Any
) -> DualStreamConfig:
    """Return the config of a decoder without an audio branch: all ids may be sampled, those of codes are audio.

    Raises:
        PolicyError: sizes that contradict each other, or ids outside the vocabulary.
    """
    vocabulary = int(sizes["text_vocab"])
    if outside := {name: number for name, number in tokens.items() if not 0 <= number < vocabulary}:
        raise PolicyError(f"{where}: ids outside the vocabulary of {vocabulary}: {outside}")
    if outside_ends := [number for number in (pad, *ends) if not 0 <= number < vocabulary]:
        raise PolicyError(f"{where}: ids outside the vocabulary of {vocabulary}: {outside_ends}")
    unused = [name for name in SPECIAL_IDS if name not in ("text_eos_id", "pad_id")]
    values: dict[str, Any] = {
        **sizes, **dict.fromkeys(unused, pad), "tap_layer": sizes["num_layers"] - 1, "codebook_sizes": (),
        "audio_delay_steps": 0, "mask_invalid_ids": False, "text_eos_id": ends[0], "more_end_ids": tuple(ends[1:]),
        "audio_from_id": tokens[first_audio], "pad_id": pad,
    }  # fmt: skip
    return DualStreamConfig.read(values, where)


# -- what the family shares -------------------------------------------------------------------------------------------


class InterleavedPolicy(StreamPolicy):
    """A plain decoder whose tokens are text or codes. A subclass says how it was released and its answer layout."""

    codes: ClassVar[int]  # in the codec
    audio_begin: ClassVar[str]  # name of the token before a question's sound
    code_format: ClassVar[str]
    step_rate_hz: ClassVar[float]
    output_rate_hz: ClassVar[int]
    continuous_input: ClassVar[bool]
    config_keys: ClassVar[tuple[str, ...]]
    component_folder: ClassVar[str]  # of the frozen component, in the checkpoint or beside it
    decoder_hint: ClassVar[str]
    spoken_at_once = ANSWERS_AT_ONCE
    aside: ClassVar[tuple[str, ...]] = ()  # stored tensors that are computed here, and written back as they were

    def __init__(
        self,
        model: DualStreamLM,
        released: Mapping[str, Any],
        tokens: Mapping[str, int],
        words: Words,
        folder: Path,
        decoder: SpeechDecoder | None = None,
    ) -> None:
        self.model, self.released, self.tokens, self.words = model, released, tokens, words
        self.folder, self.decoder = folder, decoder
        self.files: dict[str, bytes] = {}
        self.stored_aside: dict[str, Tensor] = {}
        self.spec = PolicySpec(
            slots=self.slots(),
            step_rate_hz=self.step_rate_hz,
            input_rate_hz=16_000,
            output_rate_hz=self.output_rate_hz,
            lora_targets=LORA_TARGETS,
            adaptor_parameters=NO_PARAMETERS,
            sharded=SHARDED,
            context_steps=self.context(released),
            code_format=self.code_format,
        )

    # -- abstract: each model's own -------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def read_words(cls, folder: Path) -> tuple[dict[str, int], Words]:
        """Return the ids of the special tokens by name, and the tokenizer of text."""

    @classmethod
    @abstractmethod
    def stream_config(cls, released: Mapping[str, Any], tokens: Mapping[str, int], where: str) -> DualStreamConfig:
        """Return the released config as ours."""

    @classmethod
    @abstractmethod
    def context(cls, released: Mapping[str, Any]) -> int | None:
        """Return the positions the released model was made for, or None if its config does not say."""

    @abstractmethod
    def interleave(self, words: Sequence[int], codes: Sequence[int]) -> list[int]:
        """Return an answer's tokens from its words and codes, without its end."""

    @property
    @abstractmethod
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer, in order."""

    @cached_property
    @abstractmethod
    def tokenizer(self) -> SpeechEncoder:
        """Speech to codes, loaded when first needed."""

    @abstractmethod
    def stored_names(self) -> Joined:
        """Return the names of the released checkpoint."""

    @abstractmethod
    def hf_names(self) -> Joined:
        """Return the names of transformers' class for this decoder."""

    @abstractmethod
    def hf_config(self) -> dict[str, Any]:
        """Return the `config.json` of that class."""

    # -- prompts, targets, answers ------------------------------------------------------------------------------------

    @property
    def first_audio(self) -> int:
        """Id of code 0."""
        assert self.config.audio_from_id is not None
        return self.config.audio_from_id

    def prompt_of(self, ids: Sequence[int], features: np.ndarray | None = None, where: np.ndarray | None = None) -> Prompt:
        """Make a prompt of ids [L] with `features` [n, F] at the positions where `where` [L] is True."""
        text = np.array(ids, dtype=np.int64)
        continuous = np.zeros(len(text), dtype=bool) if where is None else where
        placed = None
        if features is not None:
            placed = np.zeros((len(text), features.shape[1]), dtype=features.dtype)
            placed[continuous] = features
        return Prompt(np.zeros((len(text), 0), dtype=np.int64), text, placed, continuous)

    def with_style(self, prompt: Prompt, words: str) -> Prompt:
        """See `Policy.with_style`: words before the sound of the last turn."""
        sound = int(np.flatnonzero(prompt.text_ids == self.tokens[self.audio_begin])[-1])
        return with_words(prompt, sound, self.words.encode(style_sentence(words)))

    def answer_of(self, turn: Turn) -> list[int]:
        """Return an earlier answer's tokens, as the model would have given them.

        Raises:
            PolicyError: sound without words, or words longer than their sound.
        """
        if turn.clip is None or not turn.text:
            raise PolicyError("an earlier answer with sound needs its words")
        return self.interleave(self.words.encode(turn.text), self.tokenizer.encode(turn.clip).tolist())

    def encode_target(self, clip: Clip, text: str) -> tuple[Block, ...]:
        """Encode a demonstration as the model would have sampled it, G = 1; every token counts as sampled, its end too."""
        ids = [*self.interleave(self.words.encode(text), self.tokenizer.encode(clip).tolist()), *self.end_ids]
        tokens = np.array(ids, dtype=np.int64)[None, :, None]
        labels = np.where(tokens >= self.first_audio, AUDIO, TEXT)
        return (
            Block(
                slot_names(self.config.num_codebooks), tokens, np.ones(tokens.shape, dtype=bool), np.zeros(tokens.shape), labels
            ),
        )

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Return codes [T, 1] of one answer: all sampled codes, in order."""
        (block,) = blocks
        codes = block.tokens[answer] - self.first_audio
        return codes[(block.sampled[answer] & (codes >= 0) & (codes < self.codes))[:, 0]]

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """Decode the text tokens of an answer."""
        (block,) = blocks
        ids = block.tokens[answer, :, 0][block.sampled[answer, :, 0]]
        return self.words.decode(ids[ids < self.first_audio].tolist())

    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Waveform of one answer, by the decoder that was handed to `load`.

        Raises:
            PolicyError: none was.
        """
        return self.decode_audios([(blocks, answer, seed)])[0]

    def decode_audios(self, answers: Sequence[tuple[Sequence[Block], int, int]]) -> list[Clip]:
        """Decode several answers to waveforms, many at once where the decoder takes them.

        Raises:
            PolicyError: no decoder was handed to `load`.
        """
        codes = [self.decode_codes(blocks, answer) for blocks, answer, _ in answers]
        if self.decoder is None and not any(map(len, codes)):
            return [Clip(np.zeros(0, dtype=np.float32), self.output_rate_hz)] * len(codes)
        return self._speaker(self.decoder).speak(codes, [seed for _, _, seed in answers])

    @classmethod
    def load_speaker(cls, folder: Path, device: str = "cpu", decoder: SpeechDecoder | None = None) -> DecoderSpeaker:
        """Return the decoder that was handed in.

        Raises:
            PolicyError: none was.
        """
        return cls._speaker(decoder)

    @classmethod
    def _speaker(cls, decoder: SpeechDecoder | None) -> DecoderSpeaker:
        if decoder is None:
            raise PolicyError(
                f"no decoder of codes: name one by policy.decoder, or hand it to {cls.__name__}.load(decoder=...); "
                f"{cls.decoder_hint}"
            )
        return DecoderSpeaker(decoder, cls.output_rate_hz)

    # -- files --------------------------------------------------------------------------------------------------------

    def component(self) -> Path:
        """Folder of the frozen component: in the checkpoint, beside it, or where the checkpoint it was trained from has it.

        Raises:
            PolicyError: nowhere.
        """
        return find_component(self.folder, self.component_folder)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint, by our names."""
        return dict(self.model.state_dict())

    def save(self, folder: Path) -> None:
        """Write a checkpoint in the released layout; the frozen component stays where it is and is pointed at."""
        self.refuse_adapters()
        held, dtype = self.tensors(), self.model.lm_head.weight.dtype
        stored = {name: _stack([held[part] for part in ours]).to(dtype) for name, ours in self.stored_names().items()}
        write_tensors(folder, stored | self.stored_aside)
        for name, content in self.files.items():
            write_bytes(folder / name, content)
        write_pointers(folder, self.folder, [self.component_folder])
        # Last, since a folder that has it counts as complete.
        write_json(folder / "config.json", dict(self.released))

    def reload(self, folder: Path) -> None:
        """Read weights alone."""
        self.stored_aside = load_joined(self.tensors(), self.stored_names(), shard_files(folder), str(folder), self.aside)

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None, decoder: SpeechDecoder | None = None
    ) -> Self:
        """Load the released checkpoint, or what `save` wrote.

        Raises:
            PolicyError: config, tokenizer or tensors do not fit each other; they are named.
        """
        policy = cls._unfilled(folder, device, dtype or stored_dtype(shard_files(folder)), decoder)
        skipped = ("config.json", INDEX, POINTERS)
        small = [
            path for path in folder.iterdir() if path.is_file() and path.suffix in _COPIED_SUFFIXES and path.name not in skipped
        ]
        policy.files = {path.name: path.read_bytes() for path in small}
        policy.reload(folder)
        return policy

    @classmethod
    def _unfilled(cls, folder: Path, device: str, dtype: torch.dtype, decoder: SpeechDecoder | None = None) -> Self:
        """Make a checkpoint's policy without its weights."""
        released = read_config(folder / "config.json", cls.config_keys)
        tokens, words = cls.read_words(folder)
        config = cls.stream_config(released, tokens, str(folder / "config.json"))
        # On the meta device nothing is initialised that the checkpoint fills anyway.
        with torch.device("meta"):
            model = DualStreamLM(config)
        return cls(model.to(dtype).to_empty(device=device), released, tokens, words, folder, decoder)

    @classmethod
    def check_folder(cls, folder: Path) -> None:
        """Compare a checkpoint's config, tokenizer and weights with each other, from the headers of the weights.

        Raises:
            PolicyError: they do not fit each other; they are named.
        """
        stored = stored_shapes(shard_files(folder))
        policy = cls._unfilled(folder, "meta", torch.float32)
        expected = joined_shapes(policy.tensors(), policy.stored_names())
        check_state(expected, {name: shape for name, shape in stored.items() if name not in cls.aside}, str(folder))

    # -- the same weights for others ----------------------------------------------------------------------------------

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the decoder's weights as transformers (and so vLLM) names them, one at a time; adapters are folded in."""
        for name, ours in self.hf_names().items():
            yield name, _stack([self._weight(part) for part in ours])

    def export_hf(self, folder: Path) -> None:
        """Write the decoder alone as a checkpoint of transformers; its tokenizer and audio encoder stay with ours."""
        write_tensors(folder, dict(self.hf_tensors()))
        write_json(folder / "config.json", self.hf_config())

    def causal_decoder(self) -> Self:
        """Itself."""
        return self

    @property
    def pad_id(self) -> int:
        """Id behind the end of an answer."""
        return self.config.pad_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end an answer."""
        return self.config.text_end_ids

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.config.hidden_size // self.config.num_heads

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.model.lm_head.weight.dtype

    @torch.inference_mode()
    def embed_prompt(self, prompt: Prompt) -> np.ndarray | None:
        """Return a prompt of features as vectors [L, d], or None for a prompt of ids alone."""
        if prompt.features is None:
            return None
        parts = (prompt.audio_ids, prompt.text_ids, prompt.features, prompt.continuous)
        device = self.model.lm_head.weight.device
        vectors = self.model.embed(*(torch.from_numpy(part)[None].to(device) for part in parts))
        return vectors[0].float().cpu().numpy()

    def _weight(self, name: str) -> Tensor:
        owner, _, kind = name.rpartition(".")
        module: Any = self.model.get_submodule(owner)
        if not hasattr(module, "lora_A"):
            return getattr(module, kind).detach()
        value: Tensor = getattr(module.get_base_layer(), kind).detach()
        if kind == "weight":
            # Adapters are float32 also where the weights are not, and are added up in it.
            added = sum(module.get_delta_weight(adapter).detach() for adapter in module.active_adapters)
            value = (value + added).to(value.dtype)
        return value

    def _hf_sizes(self) -> dict[str, Any]:
        config, context = self.config, self.context(self.released)
        sizes = {
            "vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads, "rms_norm_eps": config.rms_norm_eps, "hidden_act": "silu",
            "attention_dropout": 0.0, "tie_word_embeddings": False, "pad_token_id": config.pad_id,
            "eos_token_id": list(config.text_end_ids),
            "dtype": str(self.model.lm_head.weight.dtype).removeprefix("torch."),
        }  # fmt: skip
        return sizes | ({} if context is None else {"max_position_embeddings": context})


def _stack(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
