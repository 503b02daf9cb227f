"""A tiny random CSM in float64: the real transformers classes, Mimi included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paras2s.policy.csm import CsmPolicy
from paras2s.policy.types import Turn
from tiny.moshi import tone

# Four codes, of which 0 in all codebooks but the last ends an answer, and two ids that are none.
CODES, IDS, CODEBOOKS, TEXT_IDS = 4, 6, 3, 300
SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>")


def tiny_tokenizer() -> Any:
    from transformers import AddedToken, Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokenizer = Qwen2Tokenizer(vocab={piece: n for n, piece in enumerate(bytes_to_unicode().values())}, merges=[])
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def tiny_released(seed: int = 0, context: int = 200) -> Any:
    """A `CsmForConditionalGeneration` whose distributions are far from even, with so many positions."""
    from transformers import CsmConfig, CsmForConditionalGeneration

    tokenizer = tiny_tokenizer()
    mimi = dict(
        model_type="mimi", hidden_size=16, num_filters=2, codebook_size=CODES, codebook_dim=8, num_quantizers=CODEBOOKS,
        vector_quantization_hidden_dimension=8, num_hidden_layers=1, intermediate_size=16, num_attention_heads=2,
        num_key_value_heads=2, upsample_groups=16,
    )  # fmt: skip
    depth = dict(
        num_codebooks=CODEBOOKS, backbone_hidden_size=24, vocab_size=IDS, hidden_size=16, intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=CODEBOOKS + 1,
    )  # fmt: skip
    begin, _, audio, audio_end = (tokenizer.convert_tokens_to_ids(token) for token in SPECIAL)
    config = CsmConfig(
        num_codebooks=CODEBOOKS, vocab_size=IDS, text_vocab_size=TEXT_IDS, hidden_size=24, intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=context,
        codebook_pad_token_id=IDS - 1, codebook_eos_token_id=0, bos_token_id=begin, pad_token_id=audio, audio_token_id=audio,
        audio_eos_token_id=audio_end, depth_decoder_config=depth, codec_config=mimi,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = CsmForConditionalGeneration(config).double().eval()
    for name, value in model.state_dict().items():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        if name.endswith("embed_sum"):
            value.copy_(noise)
        elif name.startswith("codec_model.encoder") and name.endswith("conv.bias"):
            # Mimi would hear little but these.
            value.zero_()
        elif name == "depth_decoder.codebooks_head.weight":
            value.copy_(0.4 * noise)
        elif not name.startswith("codec_model") and value.dtype.is_floating_point:
            value.add_(0.3 * noise)
    return model


def tiny_csm(seed: int = 0, replies: dict[str, str] | None = None) -> CsmPolicy:
    return CsmPolicy(tiny_released(seed), tiny_tokenizer(), replies)


def tiny_csm_turns() -> list[list[Turn]]:
    """Dialogues of different length, the words to be said at the end of each."""
    return [
        [Turn("user", "Hi", tone(0.45, 16_000, 200)), Turn("assistant", "Ho")],
        [Turn("user", "a", tone(0.2, 24_000, 150)), Turn("assistant", "bc", tone(0.31, 24_000, 330)),
         Turn("user", "d", tone(0.16, 8_000, 260)), Turn("assistant", "efg")],
        [Turn("assistant", "x")],
    ]  # fmt: skip


def write_csm(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    replies: dict[str, str] | None = None,
    context: int = 200,
) -> Path:
    """A checkpoint in the released layout, with the words to be said."""
    policy = CsmPolicy(tiny_released(seed, context), tiny_tokenizer(), replies)
    policy.model.to(dtype)
    policy.save(folder)
    return folder
