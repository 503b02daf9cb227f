"""Tiny random Moshis in float64: the real transformers classes, Mimi included, about 50k parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from paras2s.audio.clip import Clip
from paras2s.policy.moshi import MoshiPolicy, MoshiText
from paras2s.policy.types import Turn


def tiny_moshi(seed: int = 0) -> MoshiPolicy:
    """Twelve text ids (0..3 as in the release, then the words a..h) and three codebooks of eight."""
    return MoshiPolicy(tiny_released(seed), tiny_tokenizer(12))


def tiny_moshi_turns() -> list[list[Turn]]:
    """Dialogues of different length; the second has two clips of the user and one of Moshi between them."""
    return [
        [Turn("user", clip=tone(0.45, 16_000, 200))],
        [Turn("user", clip=tone(0.2, 24_000, 150)), Turn("assistant", "c a", tone(0.31, 24_000, 330)),
         Turn("user", "not read", tone(0.16, 8_000, 260))],
        [Turn("user", clip=tone(0.1, 24_000, 440))],
    ]  # fmt: skip


def tone(duration_s: float, rate_hz: int, pitch_hz: float) -> Clip:
    """A vibrating tone in noise, so that Mimi's codes move."""
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    noise = np.random.default_rng(round(pitch_hz)).normal(size=len(time_s))
    wave = 0.5 * np.sin(2 * np.pi * pitch_hz * time_s) * (1 + np.sin(30 * time_s)) + 0.2 * noise
    return Clip(wave.astype(np.float32), rate_hz)


def tiny_tokenizer(size: int) -> Tokenizer:
    """Whole words: the special ids of the release, then single letters."""
    names = ["<unk>", "<s>", "</s>", "<pad>", *"abcdefgh"][:size]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def tiny_released(seed: int = 0, text: int = 12, codes: int = 8, codebooks: int = 3) -> Any:
    """A `MoshiForConditionalGeneration` whose distributions are far from even."""
    from transformers import MoshiConfig, MoshiForConditionalGeneration

    mimi = dict(
        model_type="mimi", hidden_size=16, num_filters=2, codebook_size=codes, codebook_dim=8, num_quantizers=codebooks + 1,
        vector_quantization_hidden_dimension=8, num_hidden_layers=1, intermediate_size=16, num_attention_heads=2,
        num_key_value_heads=2, upsample_groups=16,
    )  # fmt: skip
    depth = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=24, max_position_embeddings=codebooks + 1,
                 sliding_window=codebooks)  # fmt: skip
    config = MoshiConfig(
        vocab_size=text, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32, num_codebooks=codebooks,
        max_position_embeddings=120, sliding_window=120, audio_encoder_config=mimi, depth_decoder_config=depth,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = MoshiForConditionalGeneration(config).double().eval()
    for name, value in model.state_dict().items():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        if name.endswith("embed_sum"):
            value.copy_(noise)
        elif name.startswith("audio_encoder.encoder") and name.endswith("conv.bias"):
            # Mimi would hear little but these.
            value.zero_()
        elif name.startswith("depth_decoder") and "norm" not in name:
            value.copy_(0.4 * noise)
        elif not name.startswith("audio_encoder"):
            value.add_(0.3 * noise)
    return model


def tiny_exhaustive(end_id: int | None) -> MoshiPolicy:
    """Three text ids and two codebooks of two codes: few enough to count all answers."""
    return MoshiPolicy(tiny_released(3, text=3, codes=2, codebooks=2), tiny_tokenizer(3), MoshiText(1, 0, end_id))
