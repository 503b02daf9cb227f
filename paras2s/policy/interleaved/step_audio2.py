"""`StepAudio2Policy`: Step-Audio 2 mini (arXiv 2507.16632), Qwen2-7B that reads audio vectors and answers one word, four codes.

A clip goes through the audio encoder (`interleaved.step_encoder`), in pieces of 25 s, while a prompt is made; its vectors are
where `<audio_patch>` is. A spoken answer begins behind `<tts_start>`, which is put there and so belongs to the prompt; then one
text token and four codes take turns. Where the words have ended the model itself draws `<tts_pad>`, and where the sound has,
`<audio_6561>`: nothing in an answer is forced, so all of it counts. It ends with `<tts_end>` and `<|EOT|>`.

Left out: tools, answers in text alone, a text behind the spoken part, the released decoder (see `cosyvoice`), training
of the audio encoder (it runs while a prompt is made and never again, so it gets no gradient).
Alphabet: L positions, H width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paras2s.errors import PolicyError, one_line
from paras2s.policy.components import find_component
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.interleaved.base import (
    OWN_ATTENTION,
    OWN_OUTER,
    InterleavedPolicy,
    Joined,
    Words,
    layered,
    plain_config,
    token_ids,
)
from paras2s.policy.interleaved.cosyvoice import S3_NAME, S3Tokenizer, SpeechDecoder, SpeechEncoder
from paras2s.policy.interleaved.step_encoder import RATE_HZ, StepEncoder, StepEncoderConfig
from paras2s.policy.types import Prompt, Turn
from paras2s.policy.weights import check_fixed
from paras2s.utils.io import read_json

BEGIN, END, PAD = "<|BOT|>", "<|EOT|>", "<|endoftext|>"
AUDIO_BEGIN, AUDIO_PATCH, AUDIO_END = "<audio_start>", "<audio_patch>", "<audio_end>"
SPEAK, SPOKEN, NO_WORD, CODE = "<tts_start>", "<tts_end>", "<tts_pad>", "<audio_{}>"
# All of the makers' examples of spoken answers have it.
SYSTEM = "You are a helpful assistant."
CODES_A_WORD = 4
PIECE_S = 25
QWEN_LAYER = {name: (name,) for name in (
    "input_layernorm.weight", "post_attention_layernorm.weight", *OWN_ATTENTION, "mlp.gate_proj.weight", "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)}  # fmt: skip
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "rms_norm_eps", "rope_theta", "max_position_embeddings",
)  # fmt: skip


class PlainWords:
    """A tokenizer of the `tokenizers` package without its added tokens, so that their names in a text are text."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        import json

        from tokenizers import Tokenizer

        self._coder = Tokenizer.from_str(json.dumps({**described, "added_tokens": []}))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return list(self._coder.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode the ids that are text; others are left out."""
        size = self._coder.get_vocab_size()
        return str(self._coder.decode([number for number in ids if number < size]))


def s3_file(folder: Path) -> Path:
    """Return the path of the tokenizer of codes, in a checkpoint's component.

    Raises:
        PolicyError: there is no such component.
    """
    return find_component(folder, StepAudio2Policy.component_folder) / f"{S3_NAME}.onnx"


class StepAudio2Policy(InterleavedPolicy):
    """Step-Audio 2 mini behind the policy interface.

    25 codes a second and a word for every four make 31.25 tokens a second (`spec.step_rate_hz`), from the first to the last.
    """

    codes = 6561
    audio_begin = AUDIO_BEGIN
    code_format = "s3-6561@25"
    step_rate_hz = 25 * (1 + CODES_A_WORD) / CODES_A_WORD
    output_rate_hz = 24_000
    continuous_input = True
    component_folder = "token2wav"
    decoder_hint = (
        "the released one is Token2wav in token2wav.py of github.com/stepfun-ai/Step-Audio2, with the checkpoint's folder "
        "token2wav and a recording of the voice it is to have, and no package holds it"
    )
    config_keys = ("text_config", "audio_encoder_config")

    def __init__(
        self,
        model: DualStreamLM,
        released: Mapping[str, Any],
        tokens: Mapping[str, int],
        words: Words,
        folder: Path,
        decoder: SpeechDecoder | None = None,
    ) -> None:
        super().__init__(model, released, tokens, words, folder, decoder)
        weight = model.lm_head.weight
        with torch.device("meta"):
            encoder = StepEncoder(StepEncoderConfig.read(released["audio_encoder_config"], str(folder / "config.json")))
        # In half precision its features would be less exact, and it is small.
        self.audio_encoder = encoder.to(torch.promote_types(weight.dtype, torch.float32)).to_empty(device=weight.device)
        self.audio_encoder.eval().requires_grad_(False)

    @classmethod
    def read_words(cls, folder: Path) -> tuple[dict[str, int], Words]:
        """Read names and text, both from `tokenizer.json`.

        Raises:
            PolicyError: not a tokenizer, or another model's.
        """
        path = folder / "tokenizer.json"
        described = read_json(path)
        try:
            ids = {str(token["content"]): int(token["id"]) for token in described["added_tokens"]}
            words = PlainWords(described)
        except Exception as error:
            # tokenizers raises bare exceptions.
            raise PolicyError(f"{path}: not a tokenizer ({one_line(error)[:200]})") from error
        names = (BEGIN, END, PAD, AUDIO_BEGIN, AUDIO_PATCH, AUDIO_END, SPEAK, SPOKEN, NO_WORD)
        # One more than there are codes: the last one means that there is none.
        return token_ids(ids, names, (CODE, cls.codes + 1), str(path)), words

    @classmethod
    def context(cls, released: Mapping[str, Any]) -> int | None:
        """`max_position_embeddings`."""
        return int(released["text_config"]["max_position_embeddings"])

    @classmethod
    def stream_config(cls, released: Mapping[str, Any], tokens: Mapping[str, int], where: str) -> DualStreamConfig:
        """Qwen2's config as ours.

        Raises:
            PolicyError: sizes are missing or contradict each other, or a variant that is not built.
        """
        sizes = dict(released["text_config"])
        if missing := [key for key in _SIZES if key not in sizes]:
            raise PolicyError(f"{where}: text_config.{', text_config.'.join(missing)} missing")
        check_fixed(sizes, {"rope_scaling": None, "hidden_act": "silu", "tie_word_embeddings": False}, f"{where}: text_config")
        check_fixed(dict(released["audio_encoder_config"]), {"llm_dim": sizes["hidden_size"]}, f"{where}: audio_encoder_config")
        return plain_config(
            tokens, CODE.format(0), tokens[PAD], (tokens[END],), where,
            text_vocab=sizes["vocab_size"], hidden_size=sizes["hidden_size"], intermediate_size=sizes["intermediate_size"],
            num_layers=sizes["num_hidden_layers"], num_heads=sizes["num_attention_heads"],
            num_kv_heads=sizes["num_key_value_heads"], rms_norm_eps=sizes["rms_norm_eps"],
            rope_theta=float(sizes["rope_theta"]), continuous_dim=sizes["hidden_size"], continuous="ready",
        )  # fmt: skip

    # -- prompts and answers ------------------------------------------------------------------------------------------

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Encode a dialogue, up to and including the token before a spoken answer; without a system turn, the makers'.

        The transcript of a user's clip is not read.

        Raises:
            PolicyError: a turn without content, or an earlier answer that is no answer.
        """
        if not turns or turns[0].role != "system":
            turns = [Turn("system", SYSTEM), *turns]
        at, encode = self.tokens, self.words.encode
        ids: list[int] = []
        audio: list[np.ndarray] = []
        for turn in turns:
            role = "human" if turn.role == "user" else turn.role
            ids.append(at[BEGIN])
            if turn.clip is None or turn.role == "system":
                if not turn.text:
                    raise PolicyError(f"the {turn.role}'s turn holds no words")
                # In one piece, as released: the break would otherwise not be merged with a break at the text's beginning.
                ids += encode(f"{role}\n{turn.text}")
            elif turn.role == "user":
                ids += encode(f"{role}\n")
                samples = turn.clip.at(RATE_HZ).samples
                for start in range(0, len(samples), PIECE_S * RATE_HZ):
                    vectors = self.audio_encoder.features(samples[start : start + PIECE_S * RATE_HZ])
                    ids += [at[AUDIO_BEGIN], *[at[AUDIO_PATCH]] * len(vectors), at[AUDIO_END]]
                    audio.append(vectors)
            else:
                ids += [*encode(f"{role}\n"), at[SPEAK], *self.answer_of(turn), at[SPOKEN]]
            ids.append(at[END])
        ids += [at[BEGIN], *encode("assistant\n"), at[SPEAK]]
        if not audio:
            return self.prompt_of(ids)
        # No text holds this id: names of special tokens in it are text.
        return self.prompt_of(ids, np.concatenate(audio), np.array(ids) == at[AUDIO_PATCH])

    def interleave(self, words: Sequence[int], codes: Sequence[int]) -> list[int]:
        """Interleave one word and four codes at a time; the shorter is filled up with what means that there is none."""
        turns = max(-(-len(codes) // CODES_A_WORD), len(words))
        words = [*words, *[self.tokens[NO_WORD]] * (turns - len(words))]
        codes = [*codes, *[self.codes] * (CODES_A_WORD * turns - len(codes))]
        ids: list[int] = []
        for turn, word in enumerate(words):
            ids += [word, *(self.first_audio + code for code in codes[CODES_A_WORD * turn : CODES_A_WORD * (turn + 1)])]
        return ids

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The end of what is spoken, and of the turn."""
        return self.tokens[SPOKEN], self.tokens[END]

    @cached_property
    def tokenizer(self) -> SpeechEncoder:
        """Speech to codes; only demonstrations and earlier answers need it."""
        return S3Tokenizer.load(s3_file(self.folder), self.device)

    @classmethod
    def check_warmup(cls, folder: Path) -> None:
        """Check the tokenizer of codes.

        Raises:
            PolicyError: its file or its package is missing.
        """
        S3Tokenizer.needs(s3_file(folder))

    # -- files --------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the decoder and the audio encoder."""
        return {**super().tensors(), **self.audio_encoder.state_dict()}

    def stored_names(self) -> Joined:
        """Return the names: the decoder's are Qwen2's and so are ours; the audio encoder's are its own."""
        return {**self.hf_names(), **{name: (name,) for name in self.audio_encoder.state_dict()}}

    def hf_names(self) -> Joined:
        """`Qwen2ForCausalLM`'s."""
        return layered(OWN_OUTER, QWEN_LAYER, "model.layers.{}.", self.config.num_layers)

    def hf_config(self) -> dict[str, Any]:
        """`Qwen2ForCausalLM`'s."""
        return self._hf_sizes() | {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "use_sliding_window": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.config.rope_theta},
        }
