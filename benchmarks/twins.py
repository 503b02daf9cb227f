"""One small decoder in two implementations with the same weights: ours without an audio branch, and transformers' Qwen2.

Alphabet: B prompts, G answers a prompt, L positions, V vocabulary.
"""

from __future__ import annotations

import os

# Nothing here is on a hub; without this, loading a local folder would ask one.
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from paras2s.policy.dual_stream import DualStreamConfig, DualStreamLM
from paras2s.policy.interface import Prompt

logging.set_verbosity_error()

THREADS = 2
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 8, 8, 16, 64
VOCAB, PAD_ID = 2048, 0
# An id behind the vocabulary: it is never drawn, so that every answer has NEW_TOKENS tokens.
EOS_ID = VOCAB


def our_model(seed: int) -> DualStreamLM:
    """A Qwen2-like text decoder of 6.3 M parameters."""
    unused = ("blank_id", "msg_end_id", "media_begin_id", "media_end_id", "user_id", "assistant_id",
              "audio_and_text_id")  # fmt: skip
    config = DualStreamConfig(
        hidden_size=256,
        intermediate_size=640,
        num_layers=7,
        tap_layer=0,
        num_heads=4,
        num_kv_heads=4,
        text_vocab=VOCAB,
        codebook_sizes=(),
        audio_delay_steps=0,
        text_eos_id=EOS_ID,
        pad_id=PAD_ID,
        mask_invalid_ids=False,
        **dict.fromkeys(unused, PAD_ID),
    )
    model = DualStreamLM(config)
    model.initialise(seed)
    return model


def their_model(ours: DualStreamLM) -> Qwen2ForCausalLM:
    """The same decoder by transformers; the names of the parameters are equal already."""
    config = ours.dual_config
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=False,
            pad_token_id=PAD_ID,
        )
    )
    model.load_state_dict(ours.state_dict())
    return model


def prompt_ids(seed: int) -> np.ndarray:
    """Random ids [B, L] without padding among them."""
    return np.random.default_rng(seed).integers(PAD_ID + 1, VOCAB, size=(PROMPTS, PROMPT_TOKENS))


def as_prompts(ids: np.ndarray) -> list[Prompt]:
    """The same ids as our sampler takes them."""
    no_audio, silent = np.zeros((ids.shape[1], 0), dtype=np.int64), np.zeros(ids.shape[1], dtype=bool)
    return [Prompt(no_audio, row, None, silent) for row in ids]


def seeds_of(step: int) -> list[list[int]]:
    """Seeds [B][G] that no other step uses."""
    first = step * PROMPTS * GROUP
    return [[first + row * GROUP + answer for answer in range(GROUP)] for row in range(PROMPTS)]


def count_parameters(model: torch.nn.Module) -> float:
    """In millions."""
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6
