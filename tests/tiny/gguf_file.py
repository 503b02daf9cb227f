"""A tiny Llama as a GGUF file, written by gguf, llama.cpp's own package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GLOBAL = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
NORMAL, CONTROL, UNUSED = 1, 3, 5


def write_gguf(path: Path, lm: Any, tokenizer: Any, template: str) -> Path:
    """Write a tied Llama in float32. A tokenizer of GGUF has a merge: "q" and "q", to a piece behind the tokenizer's own."""
    import gguf

    config, writer = lm.config, gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    own = [tokenizer.convert_ids_to_tokens(number) for number in range(len(tokenizer))]
    spare = ["qq", *(f"<unused{number}>" for number in range(config.vocab_size - len(own) - 1))]
    special = set(tokenizer.all_special_tokens) | set(tokenizer.get_added_vocab())
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*own, *spare])
    writer.add_token_types([CONTROL if piece in special else NORMAL for piece in own] + [UNUSED for _ in spare])
    writer.add_token_merges(["q q"])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(template)
    for name, tensor in lm.state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(*_tensor(name, tensor.float().numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensor(name: str, values: np.ndarray, config: Any) -> tuple[str, np.ndarray]:
    """Return a tensor under llama.cpp's name, in which rows of queries and keys are turned by neighbours."""
    if name in GLOBAL:
        return GLOBAL[name], values
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}.get(part)
    if heads is not None:
        values = values.reshape(heads, 2, len(values) // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)
    return f"blk.{layer}.{NAMES[part]}.weight", np.ascontiguousarray(values)
