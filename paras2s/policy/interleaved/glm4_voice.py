"""`Glm4VoicePolicy`: GLM-4-Voice 9B (arXiv 2412.02612), a ChatGLM decoder that reads and answers in codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.components import find_component
from paras2s.policy.dual_stream.config import DualStreamConfig
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
from paras2s.policy.speech_tokenizers.bpe import GLM_PATTERN, RankBpe, added_tokens
from paras2s.policy.speech_tokenizers.whisper_vq import CODE_FORMAT, TOKENIZER_FOLDER, GlmTokenizer, check_tokenizer
from paras2s.policy.types import ClipStore, Prompt, Turn, turns_of
from paras2s.policy.weights import check_fixed
from paras2s.types import Query

GMASK, SOP, SYSTEM, USER, ASSISTANT = "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"
AUDIO_BEGIN, AUDIO_END, AUDIO_CODE = "<|begin_of_audio|>", "<|end_of_audio|>", "<|audio_{}|>"
# The instruction of the training data, to the letter, the missing plural and the space at the end of the first one included
# (the makers' web_demo.py). Another wording gives worse answers.
SPEECH_INSTRUCTION = (
    "User will provide you with a speech instruction. Do it step by step. First, think about the instruction and respond in a "
    "interleaved manner, with 13 text token followed by 26 audio tokens. "
)
TEXT_INSTRUCTION = SPEECH_INSTRUCTION.replace("a speech", "a text").rstrip()
ANSWER = "streaming_transcription\n"
WORDS_A_TURN, CODES_A_TURN = 13, 26
_QKV = {
    f"self_attention.query_key_value.{kind}": tuple(f"self_attn.{letter}_proj.{kind}" for letter in "qkv")
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
HF_GLM_LAYER = _NORMS | OWN_ATTENTION | {
    "mlp.gate_up_proj.weight": _GATED, "mlp.down_proj.weight": ("mlp.down_proj.weight",),
}  # fmt: skip


class Glm4VoicePolicy(InterleavedPolicy):
    """GLM-4-Voice 9B (arXiv 2412.02612): 13 text tokens, 26 codes, and so on; once the words are over, codes alone.

    It reads codes and answers in the same ones. The interleave was learned and is not enforced. At the nominal one
    26 codes last 2.08 s, so an answer has 18.75 tokens a second (`spec.step_rate_hz`), and 12.5 where words have ended.
    An earlier answer in text alone is laid out as GLM-4's, which this model's makers do not show.
    """

    codes = 16_384
    audio_begin = AUDIO_BEGIN
    code_format = CODE_FORMAT
    step_rate_hz = 12.5 * (WORDS_A_TURN + CODES_A_TURN) / CODES_A_TURN
    output_rate_hz = 22_050
    continuous_input = False
    component_folder = TOKENIZER_FOLDER
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
        """Read names from `tokenizer_config.json`, text by the ranks in `tokenizer.model`.

        Raises:
            PolicyError: a name is missing, or the two files are of different models.
        """
        names = (GMASK, SOP, SYSTEM, USER, ASSISTANT, AUDIO_BEGIN, AUDIO_END)
        where = str(folder / "tokenizer_config.json")
        tokens = token_ids(added_tokens(folder), names, (AUDIO_CODE, cls.codes), where)
        words = RankBpe.read(folder / "tokenizer.model", {}, GLM_PATTERN)
        words.check_below(tokens, folder / "tokenizer.model")
        return tokens, words

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
        check_fixed(released, built | dict.fromkeys((*left_out, "tie_word_embeddings"), False), where)
        check_fixed(released, {"kv_channels": released["hidden_size"] // released["num_attention_heads"]}, where)
        listed = released["eos_token_id"]
        ends = [int(end) for end in (listed if isinstance(listed, list) else [listed])]
        # The token at which the user would go on; demonstrations end with it.
        ends = [tokens[USER], *(end for end in ends if end != tokens[USER])]
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
        """Encode a dialogue, up to where an answer with sound begins; the transcript of a user's clip is not read.

        The instruction is the one for speech if the first question is spoken; the text of a system turn goes behind it.

        Raises:
            PolicyError: no turn of the user, a turn without content, or an earlier answer that is no answer.
        """
        return self._prompt(turns, self.tokenizer.encode)

    def encode_queries(self, clips: ClipStore, queries: Sequence[Query]) -> list[Prompt]:
        """Encode spoken questions to prompts, in order; all clips go through the tokenizer together."""
        dialogues = [turns_of(clips, query) for query in queries]
        recorded = [turn.clip for turns in dialogues for turn in turns if turn.role == "user" and turn.clip is not None]
        codes = {id(clip): row for clip, row in zip(recorded, self.tokenizer.encode_batch(recorded), strict=True)}
        return [self._prompt(turns, lambda clip: codes[id(clip)]) for turns in dialogues]

    def _prompt(self, turns: Sequence[Turn], encode_clip: Callable[[Clip], np.ndarray]) -> Prompt:
        questions = [turn for turn in turns if turn.role == "user"]
        if not questions:
            raise PolicyError("a prompt needs a turn of the user")
        system_texts = [turn.text for turn in turns if turn.role == "system"]
        instruction = TEXT_INSTRUCTION if questions[0].clip is None else SPEECH_INSTRUCTION
        if system_texts:
            instruction = " ".join([instruction.rstrip(), *system_texts])
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
                codes = encode_clip(turn.clip) + self.first_audio
                ids += [*encode("\n"), at[AUDIO_BEGIN], *codes.tolist(), at[AUDIO_END]]
            else:
                ids += [*encode(ANSWER), *self.answer_of(turn)]
        return self.prompt_of([*ids, at[ASSISTANT], *encode(ANSWER)])

    def interleave(self, words: Sequence[int], codes: Sequence[int]) -> list[int]:
        """13 words, 26 codes, and so on; codes alone once the words are over.

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

    @classmethod
    def check_folder(cls, folder: Path) -> None:
        """Check its speech tokenizer besides: with as many codes.

        Raises:
            PolicyError: something does not fit; it is named.
        """
        super().check_folder(folder)
        check_tokenizer(find_component(folder, cls.component_folder), cls.codes)

    @cached_property
    def tokenizer(self) -> GlmTokenizer:
        """Speech to codes."""
        return GlmTokenizer.load(self.component(), self.device)

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
