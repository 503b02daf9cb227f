"""A tiny random Qwen3-Omni of the true classes, with experts, code predictor and code2wav, and a tokenizer of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paras2s.policy.qwen3_omni import Qwen3OmniPolicy
from paras2s.policy.types import Turn
from tiny.qwen_omni import noise_clip

MARKS = {"audio_bos_token": "<|audio_start|>", "audio_token": "<|audio_pad|>", "audio_eos_token": "<|audio_end|>"}
SPECIAL = [*MARKS.values(), "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
# One id each, as in the release.
ROLES = ["user", "assistant", "system"]
TEXT_IDS, TTS_PAD, TTS_BEGIN, TTS_END = 320, 300, 301, 302
# Six codes and the end; then pad, begin, no thinking (three ids), two speakers, and one that nobody uses.
CODES, CODEC_END, CODEC_PAD, CODEC_BEGIN, CODEC_IDS, CODEBOOKS = 6, 6, 7, 8, 15, 3
SPEAKERS = {"ethan": 12, "chelsie": 13}


def tiny_tokenizer() -> Any:
    from transformers import AddedToken, Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {piece: n for n, piece in enumerate(bytes_to_unicode().values())}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], extra_special_tokens=MARKS)
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(role, special=False) for role in ROLES])
    tokenizer.pad_token = "<|endoftext|>"
    return tokenizer


def tiny_config(tokenizer: Any) -> Any:
    from transformers import Qwen3OmniMoeConfig

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (*SPECIAL, *ROLES)}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1], "interleaved": True}
    audio = {"audio_token_id": ids["<|audio_pad|>"], "audio_start_token_id": ids["<|audio_start|>"]}
    # Four experts, two of them at a time.
    mixture = {"num_experts_per_tok": 2, "moe_intermediate_size": 12, "rope_parameters": rope, "num_key_value_heads": 2}
    thinker = {
        "text_config": {
            "vocab_size": TEXT_IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_experts": 4,
            "num_attention_heads": 4, "head_dim": 8, **mixture,
        },
        "audio_config": {
            "num_mel_bins": 128, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16,
            "output_dim": 32, "n_window": 50, "downsample_hidden_size": 4,
        },
        "vision_config": {
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
            "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
        },
        "user_token_id": ids["user"], "vision_start_token_id": TEXT_IDS - 1, **audio,
    }  # fmt: skip
    predictor = {
        "vocab_size": CODES, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "num_code_groups": CODEBOOKS,
    }  # fmt: skip
    talker = {
        "text_config": {
            "vocab_size": CODEC_IDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_experts": 4,
            "num_attention_heads": 4, "head_dim": 8, "shared_expert_intermediate_size": 12, **mixture,
        },
        "code_predictor_config": predictor, "num_code_groups": CODEBOOKS, "thinker_hidden_size": 32, "accept_hidden_layer": 1,
        "codec_eos_token_id": CODEC_END, "codec_pad_id": CODEC_PAD, "codec_bos_id": CODEC_BEGIN, "codec_nothink_id": 9,
        "codec_think_bos_id": 10, "codec_think_eos_id": 11, "speaker_id": SPEAKERS, "spatial_merge_size": 2, **audio,
    }  # fmt: skip
    code2wav = {
        "codebook_size": CODES, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_quantizers": CODEBOOKS, "decoder_dim": 32, "sliding_window": 8,
    }  # fmt: skip
    return Qwen3OmniMoeConfig(
        thinker_config=thinker, talker_config=talker, code2wav_config=code2wav, enable_audio_output=True,
        im_start_token_id=ids["<|im_start|>"], im_end_token_id=ids["<|im_end|>"], user_token_id=ids["user"],
        assistant_token_id=ids["assistant"], system_token_id=ids["system"], tts_pad_token_id=TTS_PAD,
        tts_bos_token_id=TTS_BEGIN, tts_eos_token_id=TTS_END,
    )  # fmt: skip


def tiny_model(tokenizer: Any, seed: int = 1) -> Any:
    """Weights large enough that positions, codes, prompts and the choice of experts matter, in float64 but for code2wav."""
    from transformers import Qwen3OmniMoeForConditionalGeneration

    torch.manual_seed(seed)
    model = Qwen3OmniMoeForConditionalGeneration(tiny_config(tokenizer))
    for part in (model.thinker, model.talker):
        for name, parameter in part.named_parameters():
            # transformers leaves the talker's experts as they lie in memory.
            start = torch.zeros_like(parameter) if ".experts." in name else parameter.data
            parameter.data = start + 0.15 * torch.randn_like(parameter)
        part.double()
    # Replies of a few words: the end is likely now and then, instead of once in 320 words.
    model.thinker.lm_head.weight.data[tokenizer.convert_tokens_to_ids("<|im_end|>")] *= 5
    for parameter in model.code2wav.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter[0].numel() ** -0.5)
    return model.eval()


def tiny_qwen3_omni(seed: int = 1, **options: Any) -> Qwen3OmniPolicy:
    tokenizer = tiny_tokenizer()
    return Qwen3OmniPolicy(tiny_model(tokenizer, seed), tokenizer, **options)


def tiny_qwen3_omni_turns() -> list[list[Turn]]:
    """Dialogues of different length: a clip of more than one second, two clips with history between, and text alone."""
    return [
        [Turn("user", clip=noise_clip(0, 1.13))],
        [
            Turn("system", text="Be kind."),
            Turn("user", text="(what was heard)", clip=noise_clip(1, 0.2)),
            Turn("assistant", text="Yes?"),
            Turn("user", clip=noise_clip(2, 0.4, rate_hz=8_000)),
        ],
        [Turn("system", text="s"), Turn("user", text="Hi")],
    ]


def write_qwen3_omni(folder: Path, dtype: torch.dtype = torch.float32, seed: int = 1) -> Path:
    """A checkpoint in the released layout."""
    policy = tiny_qwen3_omni(seed)
    for part in (policy.model.thinker, policy.model.talker):
        part.to(dtype)
    policy.save(folder)
    return folder
