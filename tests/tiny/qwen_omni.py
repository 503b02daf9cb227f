"""A tiny random Qwen2.5-Omni of the true class: thinker, talker and token2wav, with a tokenizer of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paras2s.audio.clip import Clip
from paras2s.policy.qwen_omni import AUDIO_MARKS, SYSTEM, QwenOmniPolicy, audio_tokens
from paras2s.policy.types import Generation, Turn
from paras2s.types import Block

VISION = ["<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>"]
SPECIAL = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", *VISION, "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
# Six codes and two ends, side by side so that every id of the audio slot can be sampled; then begin, mask, and one nobody uses.
CODES, CODEC_PAD, CODEC_END, CODEC_BEGIN, CODEC_MASK, CODEC_IDS = 6, 6, 7, 8, 9, 11
TEXT_IDS, TTS_PAD, TTS_BEGIN, TTS_END = 320, 300, 301, 302
SPEAKERS = ("Chelsie", "Ethan")
# Weights are float64, but transformers' norms and rotary angles are float32 in any case.
CLOSE = 1e-6


def tiny_tokenizer() -> Any:
    from transformers import AddedToken, Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokenizer = Qwen2Tokenizer(vocab={piece: n for n, piece in enumerate(bytes_to_unicode().values())}, merges=[])
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.pad_token = "<|endoftext|>"
    return tokenizer


def tiny_config(tokenizer: Any) -> Any:
    from transformers import Qwen2_5OmniConfig

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}
    tokens = {
        "audio_token_index": ids["<|AUDIO|>"], "image_token_index": ids["<|IMAGE|>"], "video_token_index": ids["<|VIDEO|>"],
        "audio_start_token_id": ids["<|audio_bos|>"], "audio_end_token_id": ids["<|audio_eos|>"],
        "vision_start_token_id": ids["<|vision_bos|>"], "vision_end_token_id": ids["<|vision_eos|>"],
    }  # fmt: skip
    thinker = {
        "text_config": {
            "vocab_size": TEXT_IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, "rope_parameters": rope,
            "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
        },
        "audio_config": {
            "num_mel_bins": 128, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16,
            "output_dim": 32, "n_window": 50, "max_source_positions": 64,
        },
        "vision_config": {
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
            "fullatt_block_indexes": [0],
        },
        "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
        **tokens,
    }  # fmt: skip
    talker = {
        "vocab_size": CODEC_IDS, "embedding_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "rope_parameters": rope,
        "tts_text_start_token_id": TTS_BEGIN, "tts_text_end_token_id": TTS_END, "tts_text_pad_token_id": TTS_PAD,
        "tts_codec_start_token_id": CODEC_BEGIN, "tts_codec_end_token_id": CODEC_END,
        "tts_codec_pad_token_id": CODEC_PAD, "tts_codec_mask_token_id": CODEC_MASK,
        **tokens,
    }  # fmt: skip
    token2wav = {
        "dit_config": {
            # One embedding more than there are codes, as released.
            "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8, "emb_dim": 8,
            "num_embeds": CODES + 1, "mel_dim": 8, "block_size": 4, "look_ahead_layers": [0], "look_backward_layers": [0],
            "enc_emb_dim": 4, "enc_dim": 4, "enc_channels": [8, 8, 8, 8, 24], "enc_attention_channels": 4,
            "enc_se_channels": 4,
        },
        # Products of the rates: 240 samples a mel frame, as released.
        "bigvgan_config": {
            "mel_dim": 8, "upsample_initial_channel": 64, "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]],
        },
    }  # fmt: skip
    return Qwen2_5OmniConfig(thinker_config=thinker, talker_config=talker, token2wav_config=token2wav, enable_audio_output=True)


def tiny_speakers() -> dict[str, dict[str, Any]]:
    noise = torch.Generator().manual_seed(3)
    return {
        name: {
            "cond": torch.randn(1, 4, generator=noise), "ref_mel": torch.randn(1, 6, 8, generator=noise), "bos_token": token,
        }
        for name, token in zip(SPEAKERS, (TTS_BEGIN, TTS_BEGIN + 4), strict=True)
    }  # fmt: skip


def tiny_model(tokenizer: Any, seed: int = 0) -> Any:
    """Weights large enough that positions, codes and prompts matter, in float64 but for token2wav."""
    from transformers import Qwen2_5OmniForConditionalGeneration

    torch.manual_seed(seed)
    model = Qwen2_5OmniForConditionalGeneration(tiny_config(tokenizer))
    for part in (model.thinker, model.talker):
        for parameter in part.parameters():
            parameter.data += 0.15 * torch.randn_like(parameter)
        part.double()
    # Replies of a few words: the end is likely now and then, instead of once in 320 words.
    model.thinker.lm_head.weight.data[tokenizer.convert_tokens_to_ids("<|im_end|>")] *= 5
    # At their usual scale the wave would be 1e-9.
    for parameter in model.token2wav.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter[0].numel() ** -0.5)
    return model.eval()


def tiny_qwen_omni(seed: int = 0, **options: Any) -> QwenOmniPolicy:
    tokenizer = tiny_tokenizer()
    return QwenOmniPolicy(tiny_model(tokenizer, seed), tokenizer, tiny_speakers(), **options)


def noise_clip(seed: int, duration_s: float, rate_hz: int = 16_000) -> Clip:
    samples = 0.1 * np.random.default_rng(seed).standard_normal(int(rate_hz * duration_s))
    return Clip(samples.astype(np.float32), rate_hz)


def tiny_qwen_omni_turns() -> list[list[Turn]]:
    """Dialogues of different length: one clip, two clips of one turn each with history between, and text alone."""
    return [
        [Turn("user", clip=noise_clip(0, 0.3))],
        [
            Turn("system", text="Be kind."),
            Turn("user", text="(what was heard)", clip=noise_clip(1, 0.2)),
            Turn("assistant", text="Yes?"),
            Turn("user", clip=noise_clip(2, 0.4, rate_hz=8_000)),
        ],
        [Turn("system", text="s"), Turn("user", text="Hi")],
    ]


def block(name: str, tokens: Any, sampled: Any = True) -> Block:
    """A block of tokens [G, T], all of them sampled unless told otherwise."""
    held = np.asarray(tokens, dtype=np.int64)[..., None]
    mask = np.broadcast_to(np.asarray(sampled, dtype=bool).reshape(*np.shape(sampled), 1), held.shape)
    return Block((name,), held, mask, np.zeros(held.shape))


def blocks_of(words: Any, codes: Any) -> tuple[Block, Block]:
    return block("text", words), block("audio0", codes)


def assert_same_answer(first: Generation, row: int, second: Generation, other: int) -> None:
    """Equal tokens, masks and log-probs in both streams; behind the shorter block nothing was sampled."""
    assert first.finish_reason[row] == second.finish_reason[other]
    for one, two in zip(first.blocks, second.blocks, strict=True):
        steps = min(one.tokens.shape[1], two.tokens.shape[1])
        np.testing.assert_array_equal(one.sampled[row, :steps], two.sampled[other, :steps])
        np.testing.assert_array_equal(one.tokens[row, :steps], two.tokens[other, :steps])
        np.testing.assert_allclose(one.behaviour_logp[row, :steps], two.behaviour_logp[other, :steps], atol=CLOSE, rtol=0)
        assert not one.sampled[row, steps:].any()
        assert not two.sampled[other, steps:].any()


def released_inputs(policy: QwenOmniPolicy, dialogues: list[list[Turn]]) -> dict[str, Tensor]:
    """What the processor makes of a batch: left-padded ids, and mel features padded to 300 s."""
    texts, clips = [], []
    for turns in dialogues:
        text = "" if turns[0].role == "system" else f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
        for turn in turns:
            content = turn.text
            if turn.role == "user" and turn.clip is not None:
                clips.append(turn.clip.at(16_000).samples)
                begin, audio, end = AUDIO_MARKS
                content = begin + audio * audio_tokens(len(clips[-1])) + end
            text += f"<|im_start|>{turn.role}\n{content}<|im_end|>\n"
        texts.append(text + "<|im_start|>assistant\n")
    ids = [policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    longest = max(map(len, ids))
    made = policy.mel(clips, sampling_rate=16_000, padding="max_length", return_attention_mask=True, return_tensors="pt")
    return {
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in ids]),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids]),
        "input_features": made["input_features"].double(),
        "feature_attention_mask": made["attention_mask"],
    }


def write_qwen_omni(folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """A checkpoint in the released layout."""
    policy = tiny_qwen_omni(seed)
    for part in (policy.model.thinker, policy.model.talker):
        part.to(dtype)
    policy.save(folder)
    return folder
