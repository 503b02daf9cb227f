"""Text and audio in turn, in one stream of a plain causal decoder: what such policies share, and GLM-4-Voice 9B.

Every token of an answer is sampled, its end too, whatever it is of; which stream it belongs to is said by its id, and written
into the block's labels. A policy does not know what it will draw before it has drawn it, so there is one temperature,
`Sampling.text_temperature`, for both. `Sampling.max_steps` counts tokens of both.

Released tensors that hold several of ours one above the other are cut when they are read and joined when they are written, so
that the network is the same for all; `hf_tensors` names the same weights as transformers does, for an engine that serves them.

Left out: top-p and the released repetition penalty (the sampled policy would not be the scored one), the decoders of codes
(see `speech.cosyvoice`), answers in text alone.
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
from pydantic import ValidationError
from torch import Tensor

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.components import POINTERS, find_part, point_at_parts
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.policy import LORA_TARGETS, SHARDED, StreamPolicy
from paras2s.policy.dual_stream.sampler import slot_names
from paras2s.policy.interleaved.cosyvoice import SpeechDecoder, SpeechEncoder
from paras2s.policy.speech_tokenizers.bpe import GLM_PATTERN, RankBpe
from paras2s.policy.speech_tokenizers.whisper_vq import GlmTokenizer
from paras2s.policy.types import PolicySpec, Prompt, Turn
from paras2s.policy.weights import INDEX, check_state, read_config, shard_files, stored_dtype, write_tensors
from paras2s.types import AUDIO, TEXT, Block
from paras2s.utils.io import read_json, write_bytes, write_json

# A stored tensor's name -> ours, one above the other.
Joined = Mapping[str, tuple[str, ...]]
NOTHING = r"(?!)"
# Beside the weights: configs, tokenizers, licence, and the makers' code, which their own loader wants.
_KEPT = (".json", ".model", ".txt", ".py", ".jinja", ".md")


class Words(Protocol):
    """Text to ids and back; markers of special tokens in a text are text."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, none of them special."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of what are text ids; others are left out."""


# -- tensors under other names ----------------------------------------------------------------------------------------


def layered(outer: Joined, layer: Joined, stored: str, layers: int) -> dict[str, tuple[str, ...]]:
    """The names of a whole decoder, from those of one layer; `stored` is a layer's prefix with its number as {}."""
    names = dict(outer)
    for number in range(layers):
        for name, ours in layer.items():
            names[stored.format(number) + name] = tuple(f"model.layers.{number}.{own}" for own in ours)
    return names


def load_joined(
    state: Mapping[str, Tensor], names: Joined, files: Iterable[Path], where: str, aside: Collection[str] = ()
) -> dict[str, Tensor]:
    """Fill tensors, by our names, from safetensors files with others; what is named in `aside` is handed back as it is.

    Raises:
        PolicyError: a file cannot be read, or the tensors do not fit; nothing is then changed.
    """
    from safetensors import SafetensorError, safe_open

    files, path = list(files), None
    rows = {name: [len(state[own]) for own in ours] for name, ours in names.items()}
    wanted = {name: (sum(rows[name]), *state[ours[0]].shape[1:]) for name, ours in names.items()}
    found: dict[str, tuple[int, ...]] = {}
    kept: dict[str, Tensor] = {}
    try:
        for path in files:
            with safe_open(path, "pt") as held:
                for name in held.keys():  # noqa: SIM118 - a safetensors file is no mapping
                    if name in aside:
                        kept[name] = held.get_tensor(name)
                    else:
                        found[name] = tuple(held.get_slice(name).get_shape())
        check_state(wanted, found, where)
        for path in files:
            with safe_open(path, "pt") as held:
                for name in found.keys() & set(held.keys()):
                    for own, part in zip(names[name], held.get_tensor(name).split(rows[name]), strict=True):
                        state[own].copy_(part)
    except (FileNotFoundError, SafetensorError) as error:
        raise PolicyError(f"{path or where}: cannot be read ({error}); copy the checkpoint again or make it anew") from error
    return kept


def added_tokens(folder: Path) -> dict[str, int]:
    """Special tokens of a released tokenizer: name to id, from `tokenizer_config.json` and, if there, `added_tokens.json`."""
    described = dict(read_json(folder / "tokenizer_config.json")).get("added_tokens_decoder", {})
    found = {str(token["content"]): int(number) for number, token in dict(described).items()}
    if (folder / "added_tokens.json").is_file():
        found |= {str(name): int(number) for name, number in dict(read_json(folder / "added_tokens.json")).items()}
    return found


def token_ids(found: Mapping[str, int], wanted: Iterable[str], sounds: tuple[str, int], where: str) -> dict[str, int]:
    """Ids of the tokens a policy wants, and of its codes: `sounds` is their name, with a code as {}, and how many there are.

    Raises:
        PolicyError: a token is unknown, or the codes do not follow one another.
    """
    name, count = sounds
    first, last = name.format(0), name.format(count - 1)
    wanted = (*wanted, first, last)
    if missing := [one for one in wanted if one not in found]:
        raise PolicyError(f"{where}: no token {', '.join(missing)}; this is another model's tokenizer")
    if found[last] - found[first] != count - 1:
        raise PolicyError(f"{where}: {first} is {found[first]} and {last} is {found[last]}; codes must follow one another")
    return {one: found[one] for one in wanted}


def only(released: Mapping[str, Any], fixed: Mapping[str, Any], where: str) -> None:
    """Refuse a config that asks for what is not built; a key that is not there is the model's own default.

    Raises:
        PolicyError: by key.
    """
    for key, value in fixed.items():
        if released.get(key, value) != value:
            raise PolicyError(f"{where}: {key} is {released[key]!r}; only {value!r} is built")


def plain_config(
    tokens: Mapping[str, int], first_audio: str, pad: int, ends: Sequence[int], where: str, **sizes: Any
) -> DualStreamConfig:
    """A decoder without an audio branch: all ids may be sampled, those of codes are audio.

    Raises:
        PolicyError: sizes that contradict each other, or ids outside the vocabulary.
    """
    vocabulary = int(sizes["text_vocab"])
    if outside := {name: one for name, one in tokens.items() if not 0 <= one < vocabulary}:
        raise PolicyError(f"{where}: ids outside the vocabulary of {vocabulary}: {outside}")
    if outside_ends := [one for one in (pad, *ends) if not 0 <= one < vocabulary]:
        raise PolicyError(f"{where}: ids outside the vocabulary of {vocabulary}: {outside_ends}")
    unused = ("blank_id", "msg_end_id", "media_begin_id", "media_end_id", "user_id", "assistant_id", "audio_and_text_id")
    try:
        return DualStreamConfig(
            **sizes, **dict.fromkeys(unused, pad), tap_layer=sizes["num_layers"] - 1, codebook_sizes=(), audio_delay_steps=0,
            mask_invalid_ids=False, text_eos_id=ends[0], more_end_ids=tuple(ends[1:]), audio_from_id=tokens[first_audio],
            pad_id=pad,
        )  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        raise PolicyError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


# -- what the family shares -------------------------------------------------------------------------------------------


class InterleavedPolicy(StreamPolicy):
    """A plain decoder whose tokens are text or codes. A subclass says how it was released and how it was taught to speak."""

    codes: ClassVar[int]  # in the codec
    code_format: ClassVar[str]
    step_rate_hz: ClassVar[float]
    output_rate_hz: ClassVar[int]
    hears_vectors: ClassVar[bool]
    config_keys: ClassVar[tuple[str, ...]]
    part_folder: ClassVar[str]  # of the frozen part, in the checkpoint or beside it
    decoder_hint: ClassVar[str]
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
        self.kept: dict[str, Tensor] = {}
        self.spec = PolicySpec(
            slots=self.slots(),
            step_rate_hz=self.step_rate_hz,
            input_rate_hz=16_000,
            output_rate_hz=self.output_rate_hz,
            shared_prefill=True,
            has_target_encoder=True,
            stochastic_decoder=True,
            continuous_audio_input=self.hears_vectors,
            joint_step=False,
            lora_targets=LORA_TARGETS,
            adaptor_parameters=NOTHING,
            sharded=SHARDED,
            context_steps=self.context(released),
            code_format=self.code_format,
        )

    # -- what each model has of its own -------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def read_words(cls, folder: Path) -> tuple[dict[str, int], Words]:
        """Ids of the special tokens by name, and the tokenizer of text."""

    @classmethod
    @abstractmethod
    def stream_config(cls, released: Mapping[str, Any], tokens: Mapping[str, int], where: str) -> DualStreamConfig:
        """The released config as ours."""

    @classmethod
    @abstractmethod
    def context(cls, released: Mapping[str, Any]) -> int | None:
        """Positions the released model was made for, None if its config does not say."""

    @abstractmethod
    def interleave(self, words: Sequence[int], codes: Sequence[int]) -> list[int]:
        """An answer's tokens from its words and codes, without its end."""

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
        """Names of the released checkpoint."""

    @abstractmethod
    def hf_names(self) -> Joined:
        """Names of transformers' class for this decoder."""

    @abstractmethod
    def hf_config(self) -> dict[str, Any]:
        """The `config.json` of that class."""

    # -- prompts, targets, answers ------------------------------------------------------------------------------------

    @property
    def first_audio(self) -> int:
        """Id of code 0."""
        assert self.config.audio_from_id is not None
        return self.config.audio_from_id

    def prompt_of(self, ids: Sequence[int], features: np.ndarray | None = None, where: np.ndarray | None = None) -> Prompt:
        """A prompt of ids [L]; `features` [n, F] stand at the positions `where` [L] holds."""
        text = np.array(ids, dtype=np.int64)
        continuous = np.zeros(len(text), dtype=bool) if where is None else where
        placed = None
        if features is not None:
            placed = np.zeros((len(text), features.shape[1]), dtype=features.dtype)
            placed[continuous] = features
        return Prompt(np.zeros((len(text), 0), dtype=np.int64), text, placed, continuous)

    def answer_of(self, turn: Turn) -> list[int]:
        """An earlier answer's tokens, as the model would have given them.

        Raises:
            PolicyError: sound without words, or words longer than their sound.
        """
        if turn.clip is None or not turn.text:
            raise PolicyError("an earlier answer with sound needs its words")
        return self.interleave(self.words.encode(turn.text), self.tokenizer.encode(turn.clip).tolist())

    def encode_target(self, clip: Clip, text: str) -> tuple[Block, ...]:
        """A demonstration as the model would have said it, G = 1; every token counts as sampled, its end too."""
        ids = [*self.interleave(self.words.encode(text), self.tokenizer.encode(clip).tolist()), *self.end_ids]
        tokens = np.array(ids, dtype=np.int64)[None, :, None]
        labels = np.where(tokens >= self.first_audio, AUDIO, TEXT)
        return (Block(slot_names(self.config), tokens, np.ones(tokens.shape, dtype=bool), np.zeros(tokens.shape), labels),)

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Codes [T, 1] of one answer: what was sampled of them, wherever it stands."""
        (block,) = blocks
        codes = block.tokens[answer] - self.first_audio
        return codes[(block.sampled[answer] & (codes >= 0) & (codes < self.codes))[:, 0]]

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """What is text among an answer's tokens."""
        (block,) = blocks
        ids = block.tokens[answer, :, 0][block.sampled[answer, :, 0]]
        return self.words.decode(ids[ids < self.first_audio].tolist())

    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Waveform of one answer, by the decoder that was handed to `load`.

        Raises:
            PolicyError: none was.
        """
        codes = self.decode_codes(blocks, answer)[:, 0]
        if not len(codes):
            return Clip(np.zeros(0, dtype=np.float32), self.output_rate_hz)
        if self.decoder is None:
            raise PolicyError(f"no decoder of codes: hand one to {type(self).__name__}.load(decoder=...); {self.decoder_hint}")
        return self.decoder.decode(codes, seed).at(self.output_rate_hz)

    # -- files --------------------------------------------------------------------------------------------------------

    def part(self) -> Path:
        """Where the frozen part is: in the checkpoint, beside it, or where the checkpoint it was trained from has it.

        Raises:
            PolicyError: nowhere.
        """
        return find_part(self.folder, self.part_folder)

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, by our names."""
        return dict(self.model.state_dict())

    def save(self, folder: Path) -> None:
        """A checkpoint in the released layout; the frozen part stays where it is and is pointed at."""
        if self.adapters:
            raise PolicyError("merge_lora() before save(): a checkpoint holds the released names")
        held, dtype = self.tensors(), self.model.lm_head.weight.dtype
        stored = {name: _stack([held[one] for one in ours]).to(dtype) for name, ours in self.stored_names().items()}
        write_tensors(folder, stored | self.kept)
        for name, content in self.files.items():
            write_bytes(folder / name, content)
        point_at_parts(folder, self.folder, [self.part_folder])
        # Last, since a folder that has it counts as whole.
        write_json(folder / "config.json", dict(self.released))

    def reload(self, folder: Path) -> None:
        """Weights alone."""
        self.kept = load_joined(self.tensors(), self.stored_names(), shard_files(folder), str(folder), self.aside)

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None, decoder: SpeechDecoder | None = None
    ) -> Self:
        """The released checkpoint, or what `save` wrote.

        Raises:
            PolicyError: config, tokenizer or tensors do not fit each other; they are named.
        """
        released = read_config(folder / "config.json", cls.config_keys)
        tokens, words = cls.read_words(folder)
        config = cls.stream_config(released, tokens, str(folder / "config.json"))
        # On the meta device nothing is initialised that the checkpoint fills anyway.
        with torch.device("meta"):
            model = DualStreamLM(config)
        model = model.to(dtype or stored_dtype(shard_files(folder))).to_empty(device=device)
        policy = cls(model, released, tokens, words, folder, decoder)
        passed = ("config.json", INDEX, POINTERS)
        small = [path for path in folder.iterdir() if path.is_file() and path.suffix in _KEPT and path.name not in passed]
        policy.files = {path.name: path.read_bytes() for path in small}
        policy.reload(folder)
        return policy

    # -- the same weights for others ----------------------------------------------------------------------------------

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The decoder's weights as transformers (and so vLLM) names them, one at a time; adapters are folded in."""
        for name, ours in self.hf_names().items():
            yield name, _stack([self._weight(one) for one in ours])

    def export_hf(self, folder: Path) -> None:
        """The decoder alone as a checkpoint of transformers; its tokenizer and ears stay here."""
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
        """Ids any of which ends an answer."""
        return self.config.text_end_ids

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.config.hidden_size // self.config.num_heads

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.model.lm_head.weight.dtype

    @torch.inference_mode()
    def embed_prompt(self, prompt: Prompt) -> np.ndarray | None:
        """A prompt of features as vectors [L, d], None for one of ids alone."""
        if prompt.features is None:
            return None
        audio, text = torch.from_numpy(prompt.audio_ids)[None], torch.from_numpy(prompt.text_ids)[None]
        features, continuous = torch.from_numpy(prompt.features)[None], torch.from_numpy(prompt.continuous)[None]
        return self.model.embed(audio, text, features, continuous)[0].float().numpy()

    def _weight(self, name: str) -> Tensor:
        place, _, kind = name.rpartition(".")
        module: Any = self.model.get_submodule(place)
        if not hasattr(module, "lora_A"):
            return getattr(module, kind).detach()
        value: Tensor = getattr(module.get_base_layer(), kind).detach()
        if kind == "weight":
            for adapter in module.active_adapters:
                value = value + module.get_delta_weight(adapter).detach()
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


# -- GLM-4-Voice ------------------------------------------------------------------------------------------------------

GMASK, SOP, SYSTEM, USER, ASSISTANT = "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"
AUDIO_BEGIN, AUDIO_END, AUDIO_CODE = "<|begin_of_audio|>", "<|end_of_audio|>", "<|audio_{}|>"
# What the model was trained to be told, to the letter, the missing plural and the space at the end of the first one included
# (the makers' web_demo.py). In other words it speaks less well.
SPEECH_INSTRUCTION = (
    "User will provide you with a speech instruction. Do it step by step. First, think about the instruction and respond in a "
    "interleaved manner, with 13 text token followed by 26 audio tokens. "
)
TEXT_INSTRUCTION = SPEECH_INSTRUCTION.replace("a speech", "a text").rstrip()
ANSWER = "streaming_transcription\n"
WORDS_A_TURN, CODES_A_TURN = 13, 26
_QKV = {
    f"self_attention.query_key_value.{kind}": tuple(f"self_attn.{one}_proj.{kind}" for one in "qkv")
    for kind in ("weight", "bias")
}
_NORMS = {name: (name,) for name in ("input_layernorm.weight", "post_attention_layernorm.weight")}
_GATED = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
CHATGLM_OUTER = {
    "transformer.embedding.word_embeddings.weight": ("model.embed_tokens.weight",),
    "transformer.encoder.final_layernorm.weight": ("model.norm.weight",),
    "transformer.output_layer.weight": ("lm_head.weight",),
}
CHATGLM_LAYER = _NORMS | _QKV | {
    "self_attention.dense.weight": ("self_attn.o_proj.weight",),
    "mlp.dense_h_to_4h.weight": _GATED,
    "mlp.dense_4h_to_h.weight": ("mlp.down_proj.weight",),
}  # fmt: skip
OWN_OUTER = {name: (name,) for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")}
OWN_ATTENTION = {
    name: (name,)
    for name in (*(f"self_attn.{one}_proj.{kind}" for one in "qkv" for kind in ("weight", "bias")), "self_attn.o_proj.weight")
}
HF_GLM_LAYER = _NORMS | OWN_ATTENTION | {
    "mlp.gate_up_proj.weight": _GATED, "mlp.down_proj.weight": ("mlp.down_proj.weight",),
}  # fmt: skip


class Glm4VoicePolicy(InterleavedPolicy):
    """GLM-4-Voice 9B (arXiv 2412.02612): 13 text tokens, 26 codes, and so on; once the words are said, codes alone.

    It hears codes, and those it speaks are the same ones. The interleave was learned and is not enforced. At the nominal one
    26 codes last 2.08 s, so an answer has 18.75 tokens a second (`spec.step_rate_hz`), and 12.5 where words have ended.
    An earlier answer in text alone is laid out as GLM-4's, which this model's makers do not show.
    """

    codes = 16_384
    code_format = "glm-4-voice-16384@12.5"
    step_rate_hz = 12.5 * (WORDS_A_TURN + CODES_A_TURN) / CODES_A_TURN
    output_rate_hz = 22_050
    hears_vectors = False
    part_folder = "glm-4-voice-tokenizer"
    decoder_hint = (
        "the released one is AudioDecoder in flow_inference.py of github.com/zai-org/GLM-4-Voice, with the weights of "
        "zai-org/glm-4-voice-decoder, and no package holds it"
    )
    # Rotary frequencies, from before `rope_ratio`.
    aside = ("transformer.rotary_pos_emb.inv_freq",)
    config_keys = (
        "padded_vocab_size", "hidden_size", "ffn_hidden_size", "num_layers", "num_attention_heads", "multi_query_group_num",
        "kv_channels", "layernorm_epsilon", "eos_token_id", "pad_token_id",
    )  # fmt: skip

    @classmethod
    def read_words(cls, folder: Path) -> tuple[dict[str, int], Words]:
        """Names from `tokenizer_config.json`, text by the ranks in `tokenizer.model`."""
        wanted = (GMASK, SOP, SYSTEM, USER, ASSISTANT, AUDIO_BEGIN, AUDIO_END)
        where = str(folder / "tokenizer_config.json")
        tokens = token_ids(added_tokens(folder), wanted, (AUDIO_CODE, cls.codes), where)
        return tokens, RankBpe.read(folder / "tokenizer.model", {}, GLM_PATTERN)

    @classmethod
    def context(cls, released: Mapping[str, Any]) -> int | None:
        """`seq_length`."""
        return int(released["seq_length"]) if "seq_length" in released else None

    @classmethod
    def stream_config(cls, released: Mapping[str, Any], tokens: Mapping[str, int], where: str) -> DualStreamConfig:
        """ChatGLM's config as ours; half of each head is rotated, in pairs of neighbours.

        Raises:
            PolicyError: a variant that is not built, or sizes that contradict each other.
        """
        built = dict.fromkeys(("multi_query_attention", "rmsnorm", "post_layer_norm", "original_rope"), True)
        left_out = ("add_bias_linear", "apply_residual_connection_post_layernorm", "fp32_residual_connection")
        only(released, built | dict.fromkeys((*left_out, "tie_word_embeddings"), False), where)
        only(released, {"kv_channels": released["hidden_size"] // released["num_attention_heads"]}, where)
        listed = released["eos_token_id"]
        ends = [int(one) for one in (listed if isinstance(listed, list) else [listed])]
        # What stands where the user would go on; it is what demonstrations end with.
        ends = [tokens[USER], *(one for one in ends if one != tokens[USER])]
        # 1 where it is not written, in the makers' code and in vLLM's.
        ratio = released.get("rope_ratio", 1)
        return plain_config(
            tokens, AUDIO_CODE.format(0), int(released["pad_token_id"]), ends, where,
            text_vocab=released["padded_vocab_size"], hidden_size=released["hidden_size"],
            intermediate_size=released["ffn_hidden_size"], num_layers=released["num_layers"],
            num_heads=released["num_attention_heads"], num_kv_heads=released["multi_query_group_num"],
            rms_norm_eps=released["layernorm_epsilon"], rope_theta=10_000.0 * ratio, rotary_share=0.5, rotary_in_pairs=True,
        )  # fmt: skip

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """A dialogue, up to where an answer with sound begins; what a recogniser heard in a user's clip is not read.

        The instruction is the one for speech if the first question is spoken; what a system turn says goes behind it.

        Raises:
            PolicyError: no turn of the user, a turn without content, or an earlier answer that is no answer.
        """
        asked = [turn for turn in turns if turn.role == "user"]
        if not asked:
            raise PolicyError("a prompt needs a turn of the user")
        told = [turn.text for turn in turns if turn.role == "system"]
        instruction = TEXT_INSTRUCTION if asked[0].clip is None else SPEECH_INSTRUCTION
        if told:
            instruction = " ".join([instruction.rstrip(), *told])
        at, encode = self.tokens, self.words.encode
        ids = [at[GMASK], at[SOP], at[SYSTEM], *encode(f"\n{instruction}")]
        for turn in turns:
            if turn.role == "system":
                continue
            if turn.clip is None and not turn.text:
                raise PolicyError(f"the {turn.role}'s turn holds neither words nor sound")
            ids.append(at[USER] if turn.role == "user" else at[ASSISTANT])
            if turn.clip is None:
                ids += encode(f"\n{turn.text}")
            elif turn.role == "user":
                heard = self.tokenizer.encode(turn.clip) + self.first_audio
                ids += [*encode("\n"), at[AUDIO_BEGIN], *heard.tolist(), at[AUDIO_END]]
            else:
                ids += [*encode(ANSWER), *self.answer_of(turn)]
        return self.prompt_of([*ids, at[ASSISTANT], *encode(ANSWER)])

    def interleave(self, words: Sequence[int], codes: Sequence[int]) -> list[int]:
        """13 words, 26 codes, and so on; codes alone once the words are said.

        Raises:
            PolicyError: words are left when the sound is over.
        """
        turns = -(-len(codes) // CODES_A_TURN)
        if len(words) > turns * WORDS_A_TURN:
            raise PolicyError(f"the words ({len(words)} pieces) are longer than their speech ({len(codes)} codes)")
        ids: list[int] = []
        for turn in range(turns):
            ids += words[turn * WORDS_A_TURN : (turn + 1) * WORDS_A_TURN]
            ids += [self.first_audio + code for code in codes[turn * CODES_A_TURN : (turn + 1) * CODES_A_TURN]]
        return ids

    @property
    def end_ids(self) -> tuple[int, ...]:
        """`<|user|>`: the next turn's first token."""
        return (self.tokens[USER],)

    @cached_property
    def tokenizer(self) -> SpeechEncoder:
        """Speech to codes."""
        return GlmTokenizer.load(self.part(), self.device)

    def stored_names(self) -> Joined:
        """ChatGLM's."""
        return layered(CHATGLM_OUTER, CHATGLM_LAYER, "transformer.encoder.layers.{}.", self.config.num_layers)

    def hf_names(self) -> Joined:
        """`GlmForCausalLM`'s."""
        return layered(OWN_OUTER, HF_GLM_LAYER, "model.layers.{}.", self.config.num_layers)

    def hf_config(self) -> dict[str, Any]:
        """`GlmForCausalLM`'s."""
        config = self.config
        turned = {"rope_type": "default", "rope_theta": config.rope_theta, "partial_rotary_factor": config.rotary_share}
        return self._hf_sizes() | {
            "architectures": ["GlmForCausalLM"],
            "model_type": "glm",
            "head_dim": config.hidden_size // config.num_heads,
            "attention_bias": True,
            "rope_parameters": turned,
        }
