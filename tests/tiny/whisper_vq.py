"""Tiny random speech tokenizers and Whispers in the released layout, and a clip to try them on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from paras2s.audio.clip import Clip
from paras2s.policy.speech_tokenizers.whisper_vq import WhisperVQConfig, WhisperVQEncoder

# Pooled to 25 Hz half-way, so that two layers run behind the pooling.
TINY = {
    "num_mel_bins": 4,
    "d_model": 8,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "max_source_positions": 12,
    "pooling_kernel_size": 2,
    "pooling_type": "avg",
    "pooling_position": 2,
    "quantize_position": 4,
    "quantize_vocab_size": 4,
    "quantize_causal_block_size": 4,
    "quantize_causal_encoder": False,
    "encoder_causal_attention": False,
    "encoder_causal_convolution": True,
    "activation_function": "gelu",
}
# The proportions of the release, small: 12.5 Hz, 30 s, 4 s blocks, quantised where it is pooled.
SMALL = TINY | {
    "max_source_positions": 1500,
    "pooling_kernel_size": 4,
    "quantize_position": 2,
    "quantize_vocab_size": 64,
    "quantize_causal_block_size": 200,
}


def encoder_of(config: dict[str, object], seed: int = 0) -> WhisperVQEncoder:
    """Random weights, and codes that lie where the states are: with a plain random codebook one code takes them all."""
    torch.manual_seed(seed)
    encoder = WhisperVQEncoder(WhisperVQConfig.model_validate(config)).double()
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.normal_(std=0.5)
        states = encoder.hidden(torch.randn(8, 4, 16).double(), torch.ones(8, 16)).flatten(0, 1)
        encoder.codebook.weight.mul_(3 * states.std(dim=0)).add_(states.mean(dim=0))
    return encoder


def noise(samples: int, seed: int = 0) -> Clip:
    """A sliding tone in noise at 16 kHz; its first second is the loudest, as log-mel floors everything by the peak."""
    time = np.arange(samples) / 16_000
    tone = np.sin(2 * np.pi * (200 + 150 * np.sin(2 * np.pi * 0.7 * time)) * time)
    wave = 0.2 * tone * np.abs(np.sin(3 * time)) + 0.02 * np.random.default_rng(seed).normal(size=samples)
    return Clip((wave * np.where(time < 1, 4.0, 1.0)).astype(np.float32), 16_000)


def save_tokenizer(folder: Path, encoder: WhisperVQEncoder, config: dict[str, object]) -> Path:
    """A folder as released: the config among Whisper's keys, log-mel recipe, weights with what training left in them."""
    from transformers import WhisperFeatureExtractor

    WhisperFeatureExtractor(feature_size=4).save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps(config | {"encoder_layers": 32, "quantize_encoder_only": True}))
    state = {name: value.float().clone() for name, value in encoder.state_dict().items()}
    state |= {"ema_count": torch.ones(64), "ema_weight": torch.ones(64, 8), "embed_positions2.weight": torch.ones(375, 8)}
    save_file(state, folder / "model.safetensors")
    return folder


def whisper_folder(folder: Path, chunk_s: int = 2) -> Path:
    """A tiny Whisper as saved by transformers, decoder and all, with chunks of `chunk_s`."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 8, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "num_mel_bins": 4}
    text = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "vocab_size": 20, "pad_token_id": 0}
    config = WhisperConfig(**sizes, **text, max_source_positions=50 * chunk_s, bos_token_id=1, eos_token_id=2)
    model = WhisperForConditionalGeneration(config)
    for weight in model.parameters():
        weight.data.normal_(std=0.5)
    model.save_pretrained(str(folder))
    WhisperFeatureExtractor(feature_size=4, chunk_length=chunk_s).save_pretrained(str(folder))
    return folder
