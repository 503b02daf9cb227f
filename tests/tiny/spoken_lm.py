"""A tiny random `SpokenLmPolicy` in float64: transformers' own Llama, and a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paras2s.policy.spoken_lm.policy import SpokenLmPolicy
from paras2s.policy.types import Turn
from tiny.moshi import tone

SPECIAL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS, LAYERS, PROSODY_LAYER = 264, 3, 1


def tiny_tokenizer() -> Any:
    from transformers import AddedToken, Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokenizer = Qwen2Tokenizer(vocab={piece: n for n, piece in enumerate(bytes_to_unicode().values())}, merges=[])
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.chat_template, tokenizer.eos_token = TEMPLATE, "<|im_end|>"
    return tokenizer


def tiny_lm(seed: int = 0, tied: bool = True, context: int = 400) -> Any:
    """A language model whose distributions are far from even."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=24, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=context, tie_word_embeddings=tied,
    )  # fmt: skip
    lm: Any = LlamaForCausalLM(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in lm.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return lm


def tiny_spoken_lm(seed: int = 0, tied: bool = True) -> SpokenLmPolicy:
    """A policy whose new parts are as random as the rest."""
    policy = SpokenLmPolicy(tiny_lm(seed, tied), tiny_tokenizer(), PROSODY_LAYER)
    policy.model.start(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for head in policy.model.prosody_heads:
        head.weight.data.normal_(0, 0.5, generator=generator)
    return policy


def tiny_spoken_lm_turns() -> list[list[Turn]]:
    """Dialogues of different length; the last turn is spoken."""
    return [
        [Turn("user", "Hi", tone(0.45, 16_000, 200))],
        [Turn("system", "Be brief."), Turn("user", "a"), Turn("assistant", "bc"), Turn("user", "d", tone(0.3, 16_000, 260))],
        [Turn("user", "x, y.", tone(0.2, 24_000, 150))],
    ]


def write_spoken_lm(folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0, tied: bool = True) -> Path:
    """A checkpoint."""
    policy = tiny_spoken_lm(seed, tied)
    policy.model.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    policy.save(folder)
    return folder
