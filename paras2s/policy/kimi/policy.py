"""`KimiPolicy`: Kimi-Audio 7B (arXiv 2504.18425) from its released checkpoint, with everything around its network.

The network is `DualStreamLM` under the released names. Around it: the prompt layout, Whisper features and codes of the
question, the detokenizer of the answer. These components are frozen, loaded when first needed, and never written again.

Left out: the released repetition penalty, which makes log-probs depend on more than the policy.
Alphabet: L positions of a prompt, T steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.components import find_component, write_pointers
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.policy import ADAPTOR, LORA_TARGETS, SHARDED, StreamPolicy
from paras2s.policy.kimi.detokenizer import KimiDetokenizer
from paras2s.policy.speaking import ANSWERS_AT_ONCE
from paras2s.policy.speech_tokenizers.bpe import KIMI_PATTERN, RankBpe, added_tokens
from paras2s.policy.speech_tokenizers.whisper_features import WhisperFeatures
from paras2s.policy.speech_tokenizers.whisper_vq import CODE_FORMAT, TOKENIZER_FOLDER, GlmTokenizer
from paras2s.policy.types import ClipStore, PolicySpec, Prompt, Turn, style_sentence, turns_of
from paras2s.policy.weights import check_fixed, load_tensors, read_config, shard_files, stored_dtype, write_tensors
from paras2s.types import Block, Query
from paras2s.utils.io import read_json, write_bytes

# Names in the released tokenizer; their ids are looked up, never assumed.
SPECIALS = {
    "msg_end_id": "<|im_msg_end|>",
    "media_begin_id": "<|im_media_begin|>",
    "media_end_id": "<|im_media_end|>",
    "blank_id": "<|im_kimia_text_blank|>",
    "text_eos_id": "<|im_kimia_text_eos|>",
    "user_id": "<|im_kimia_user_msg_start|>",
    "assistant_id": "<|im_kimia_assistant_msg_start|>",
    "text_only_id": "<|im_kimia_speech_ct_id|>",
    "audio_and_text_id": "<|im_kimia_speech_ctd_id|>",
}
_CONFIG_KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
    "rope_theta", "vocab_size", "max_position_embeddings", "pad_token_id", "kimia_mimo_layers",
    "kimia_mimo_transformer_from_layer_index", "kimia_mimo_audiodelaytokens", "kimia_token_offset",
    "kimia_adaptor_input_dim", "use_whisper_feature",
)  # fmt: skip
# Frozen components: folders in the checkpoint, or beside it. The detokenizer is the last two.
WHISPER, TOKENIZER, FLOW, VOCODER = COMPONENTS = ("whisper-large-v3", TOKENIZER_FOLDER, "audio_detokenizer", "vocoder")
_COPIED = ("tiktoken.model", "tokenizer_config.json", "generation_config.json")


@dataclass(frozen=True)
class Message:
    """One message of a dialogue, as the layout sees it: word ids, codes [T] from 0, or both (an answer that was given)."""

    role: Literal["user", "assistant"]
    words: tuple[int, ...] = ()
    codes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Layout:
    """Both streams of a prompt [L], and where the audio's continuous features are added."""

    audio: np.ndarray
    text: np.ndarray
    continuous: np.ndarray


def lay_out(messages: Sequence[Message], config: DualStreamConfig, output_id: int) -> Layout:
    """Return the released prompt layout, up to where the assistant begins (docs/policies.md, "Kimi-Audio: prompt layout").

    `output_id`, behind a user's audio, says whether the answer is to have sound.

    Raises:
        PolicyError: no message, or words of an earlier answer that are longer than its sound.
    """
    if not messages:
        raise PolicyError("a prompt needs a message")
    blank = config.blank_id
    rows: list[tuple[int, int, bool]] = []
    for role, held in groupby(messages, key=lambda message: message.role):
        group = list(held)
        rows.append((config.user_id if role == "user" else config.assistant_id, blank, False))
        for message in group:
            if message.codes is None:
                rows += [(blank, word, False) for word in message.words]
                rows += [(blank, config.text_eos_id, False)] if role == "assistant" else []
            elif role == "user":
                rows.append((config.media_begin_id, blank, False))
                rows += _question(message, config)
                rows.append((config.media_end_id, blank, False))
                rows += [(output_id, blank, False)] if message is group[-1] else []
            else:
                rows += _given(message, config)
        rows.append((config.msg_end_id, blank, False))
    rows.append((config.assistant_id, blank, False))
    audio, text, continuous = zip(*rows, strict=True)
    return Layout(np.array(audio), np.array(text), np.array(continuous))


def _question(message: Message, config: DualStreamConfig) -> list[tuple[int, int, bool]]:
    """Lay out a user's codes beside their transcript, from the first code on; the shorter is filled up with blanks.

    ParaS2S (section 4) fills both streams up to one length and does not say where the words begin. Without words it is the
    released layout.
    """
    assert message.codes is not None
    length = max(len(message.codes), len(message.words))
    audio = [config.codebook_offsets[0] + code for code in message.codes] + [config.blank_id] * (length - len(message.codes))
    text = [*message.words, *[config.blank_id] * (length - len(message.words))]
    return [(sound, word, index < len(message.codes)) for index, (sound, word) in enumerate(zip(audio, text, strict=True))]


def _given(message: Message, config: DualStreamConfig) -> list[tuple[int, int, bool]]:
    """Lay out an earlier answer with sound and words as the release does, without an end of its text."""
    assert message.codes is not None
    audio = [config.blank_id] * config.audio_delay_steps + [config.codebook_offsets[0] + code for code in message.codes]
    if len(message.words) > len(audio):
        raise PolicyError(f"an earlier answer has {len(message.words)} word ids for {len(message.codes)} steps of sound")
    text = [*message.words, *[config.blank_id] * (len(audio) - len(message.words))]
    return [(sound, word, False) for sound, word in zip(audio, text, strict=True)]


def _user_clips(turns: Sequence[Turn]) -> list[Clip]:
    """Return the user's clips, which the model also reads by continuous features."""
    return [turn.clip for turn in turns if turn.role == "user" and turn.clip is not None]


class KimiPolicy(StreamPolicy):
    """Kimi-Audio behind the policy interface."""

    with_transcript = False
    spoken_at_once = ANSWERS_AT_ONCE

    def __init__(self, model: DualStreamLM, words: RankBpe, text_only_id: int, context_steps: int, folder: Path) -> None:
        self.model, self.words, self.text_only_id, self.folder = model, words, text_only_id, folder
        self.spec = PolicySpec(
            slots=self.slots(),
            step_rate_hz=12.5,
            input_rate_hz=16_000,
            output_rate_hz=self._output_rate_hz(),
            lora_targets=LORA_TARGETS,
            adaptor_parameters=ADAPTOR,
            sharded=SHARDED,
            context_steps=context_steps,
            code_format=CODE_FORMAT,
        )

    # -- prompts and targets ------------------------------------------------------------------------------------------

    def encode_prompt(self, turns: Sequence[Turn], speak: bool = True) -> Prompt:
        """Encode a dialogue; the model listens to a user's clip, and reads its transcript after `use_transcript`.

        Raises:
            PolicyError: a system turn, which this model was not trained with.
        """
        # Words alone need no tokenizer of speech.
        messages = self._messages(turns, lambda clip: self.tokenizer.encode(clip))
        return self._prompt(messages, self._whisper_features(_user_clips(turns)), speak)

    def encode_queries(self, clips: ClipStore, queries: Sequence[Query]) -> list[Prompt]:
        """Encode spoken questions to prompts, in order; all clips go through the encoders together."""
        dialogues = [turns_of(clips, query) for query in queries]
        recorded = [turn.clip for turns in dialogues for turn in turns if turn.clip is not None]
        codes = {id(clip): row for clip, row in zip(recorded, self.tokenizer.encode_batch(recorded), strict=True)}
        user_clips = [_user_clips(turns) for turns in dialogues]
        whisper = iter(self._whisper_features([clip for own in user_clips for clip in own]))
        return [
            self._prompt(self._messages(turns, lambda clip: codes[id(clip)]), list(islice(whisper, len(own))))
            for turns, own in zip(dialogues, user_clips, strict=True)
        ]

    def _messages(self, turns: Sequence[Turn], encode_clip: Callable[[Clip], np.ndarray]) -> list[Message]:
        messages = []
        for turn in turns:
            if turn.role == "system":
                raise PolicyError("Kimi-Audio has no system role; put it into a user turn")
            codes = None if turn.clip is None else tuple(encode_clip(turn.clip).tolist())
            listens = turn.role == "user" and codes is not None
            words = self._transcript(turn.text) if listens else tuple(self.words.encode(turn.text))
            messages.append(Message(turn.role, words, codes))
        return messages

    def with_style(self, prompt: Prompt, words: str) -> Prompt:
        """See `Policy.with_style`: the words are a message of the user's before the last clip."""
        return self.with_message(prompt, self.words.encode(style_sentence(words)))

    def _transcript(self, text: str) -> tuple[int, ...]:
        """Return the words beside a question's codes: none unless `use_transcript` was called."""
        return tuple(self.words.encode(text)) if self.with_transcript else ()

    def _whisper_features(self, clips: Sequence[Clip]) -> list[np.ndarray]:
        """Return continuous features of each clip, or [] if the model reads none."""
        return self.whisper.features_batch(clips) if self.config.continuous_dim and clips else []

    def _prompt(self, messages: Sequence[Message], whisper: Sequence[np.ndarray], speak: bool = True) -> Prompt:
        """Make a prompt of a dialogue in the released layout, with the continuous features of its user's clips."""
        config = self.config
        layout = lay_out(messages, config, config.audio_and_text_id if speak else self.text_only_id)
        features = None
        if whisper:
            features = np.zeros((len(layout.audio), config.continuous_dim), dtype=np.float32)
            features[layout.continuous] = np.concatenate(whisper)
        return Prompt(layout.audio[:, None], layout.text, features, layout.continuous, code_offsets=config.codebook_offsets)

    def use_transcript(self) -> None:
        """See `_question`."""
        self.with_transcript = True

    def encode_target(self, clip: Clip, text: str) -> tuple[Block, ...]:
        """Lay out a demonstration as in ParaS2S's warm-up (docs/policies.md, "Kimi-Audio: targets")."""
        return (self.target_block(self.tokenizer.encode(clip)[:, None], self.words.encode(text)),)

    # -- answers ------------------------------------------------------------------------------------------------------

    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Waveform of one answer, by flow matching from noise of `seed`."""
        return self.decode_audios([(blocks, answer, seed)])[0]

    def decode_audios(self, answers: Sequence[tuple[Sequence[Block], int, int]]) -> list[Clip]:
        """Decode several answers to waveforms, many at once."""
        codes = [self.decode_codes(blocks, answer) for blocks, answer, _ in answers]
        return self.detokenizer.speak(codes, [seed for _, _, seed in answers])

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """Decode the text stream of one answer, up to its end; ids that are no text are left out, as in the release."""
        (block,) = blocks
        ids = block.tokens[answer, :, 0][block.sampled[answer, :, 0]].tolist()
        end = ids.index(self.config.text_eos_id) if self.config.text_eos_id in ids else len(ids)
        return self.words.decode(ids[:end])

    # -- frozen components -------------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> GlmTokenizer:
        """Speech to codes."""
        return GlmTokenizer.load(find_component(self.folder, TOKENIZER), self.device)

    @cached_property
    def whisper(self) -> WhisperFeatures:
        """Speech to continuous features."""
        return WhisperFeatures.load(find_component(self.folder, WHISPER), self.device)

    @cached_property
    def detokenizer(self) -> KimiDetokenizer:
        """Codes to speech."""
        return self.load_speaker(self.folder, str(self.device))

    @classmethod
    def load_speaker(cls, folder: Path, device: str = "cpu", decoder: Any = None) -> KimiDetokenizer:
        """Flow model and vocoder."""
        return KimiDetokenizer.load(find_component(folder, FLOW).parent, device)

    def _output_rate_hz(self) -> int:
        """Sample rate of the vocoder, 24 kHz in the release; known without loading it."""
        try:
            return int(dict(read_json(find_component(self.folder, VOCODER) / "config.json"))["sampling_rate"])
        except PolicyError:
            return 24_000

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write a checkpoint in the released layout; the frozen components stay where they are and are pointed at."""
        self.refuse_adapters()
        write_tensors(folder, self.model.state_dict())
        for name in _COPIED:
            if (self.folder / name).is_file() and folder.resolve() != self.folder.resolve():
                shutil.copy(self.folder / name, folder / name)
        write_pointers(folder, self.folder, COMPONENTS)
        # Last, since a folder that has it counts as complete.
        write_bytes(folder / "config.json", (self.folder / "config.json").read_bytes())

    def reload(self, folder: Path) -> None:
        """Read weights alone."""
        load_tensors(self.model, shard_files(folder), str(folder), own_name)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> KimiPolicy:
        """Load the released checkpoint, or what `save` wrote.

        Raises:
            PolicyError: config, tokenizer or tensors do not fit each other; they are named.
        """
        released = read_config(folder / "config.json", _CONFIG_KEYS)
        ids = special_ids(folder)
        text_only = ids.pop("text_only_id")
        config = stream_config(released, ids, str(folder / "config.json"))
        words = RankBpe.read(folder / "tiktoken.model", {}, KIMI_PATTERN)
        # On the meta device nothing is initialised that the checkpoint fills anyway.
        with torch.device("meta"):
            model = DualStreamLM(config)
        model = model.to(dtype or stored_dtype(shard_files(folder))).to_empty(device=device)
        context = released["max_position_embeddings"]
        policy = cls(model, words, text_only, int(str(context)), folder)
        policy.reload(folder)
        return policy


def own_name(stored: str) -> str | None:
    """Return our name of a stored tensor, which is its own, or None for positions, which are computed, and for Whisper."""
    return None if stored.endswith("rotary_emb.inv_freq") or stored.startswith("whisper_model.") else stored


def special_ids(folder: Path) -> dict[str, int]:
    """Return the ids of the special tokens, by the names of `SPECIALS`.

    Raises:
        PolicyError: the tokenizer does not have one of them.
    """
    path, ids = folder / "tokenizer_config.json", added_tokens(folder)
    if missing := [name for name in SPECIALS.values() if name not in ids]:
        raise PolicyError(f"{path}: added_tokens_decoder lacks {', '.join(missing)}; this is not Kimi-Audio's tokenizer")
    return {ours: ids[name] for ours, name in SPECIALS.items()}


def stream_config(released: dict[str, Any], ids: dict[str, int], where: str) -> DualStreamConfig:
    """Return the released config as ours.

    Raises:
        PolicyError: values that contradict each other, as those of the config class's defaults do, or that are not built.
    """
    layers, tap = released["num_hidden_layers"], released["kimia_mimo_transformer_from_layer_index"]
    if released["kimia_mimo_layers"] != layers - tap - 1:
        raise PolicyError(
            f"{where}: {released['kimia_mimo_layers']} audio layers do not match the {layers - tap - 1} text layers "
            f"after layer {tap}; these look like the defaults of a config class, not like a checkpoint's values"
        )
    fixed = {"rope_scaling": None, "tie_word_embeddings": False, "hidden_act": "silu", "use_whisper_feature": True}
    check_fixed(released, fixed, where)
    offset, vocab = released["kimia_token_offset"], released["vocab_size"]
    if outside := {name: number for name, number in ids.items() if not 0 <= number < offset}:
        raise PolicyError(f"{where}: special ids outside the text vocabulary of {offset}: {outside}")
    values = {
        "hidden_size": released["hidden_size"],
        "intermediate_size": released["intermediate_size"],
        "num_layers": layers,
        "tap_layer": tap,
        "num_heads": released["num_attention_heads"],
        "num_kv_heads": released["num_key_value_heads"],
        "rms_norm_eps": released["rms_norm_eps"],
        "rope_theta": released["rope_theta"],
        "text_vocab": offset,
        "codebook_sizes": (vocab - offset,),
        "audio_delay_steps": released["kimia_mimo_audiodelaytokens"],
        "continuous_dim": released["kimia_adaptor_input_dim"],
        "pad_id": released["pad_token_id"],
        "mask_invalid_ids": False,
    }
    return DualStreamConfig.read(values | ids, where)
