"""A tiny random Kimi-Audio in the released layout: sharded weights, tokenizers, Whisper, flow model and vocoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paras2s.policy.kimi.policy import SPECIALS
from tiny.detokenizer import save_detokenizer, tiny_models, with_filters
from tiny.dual_stream import golden_config, golden_model
from tiny.ranks import pieces_of, write_ranks
from tiny.whisper_vq import SMALL, encoder_of, save_tokenizer, whisper_folder

# As the golden instance of docs/experiments/policies.md, with room for the bytes; 64 codes.
TEXT, CODES = 300, 64
IDS = {name: 270 + number for number, name in enumerate(SPECIALS)}
SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": TEXT + CODES, "max_position_embeddings": 400,
    "pad_token_id": TEXT - 1, "kimia_mimo_layers": 2, "kimia_mimo_transformer_from_layer_index": 1,
    "kimia_mimo_audiodelaytokens": 2, "kimia_token_offset": TEXT, "kimia_adaptor_input_dim": 32, "use_whisper_feature": True,
    "rope_scaling": None, "tie_word_embeddings": False, "hidden_act": "silu", "architectures": ["MoonshotKimiaForCausalLM"],
}  # fmt: skip


def write_tokenizer(folder: Path, ids: dict[str, int], texts: Sequence[str] = ()) -> None:
    """Ranks of the 256 bytes and of the words of some texts, and the special tokens under their released names."""
    pieces = pieces_of(texts)
    assert not texts or len(pieces) <= min(ids.values())
    write_ranks(folder / "tiktoken.model", pieces)
    added = {str(ids[ours]): {"content": name, "special": True} for ours, name in SPECIALS.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))


def write_weights(folder: Path, seed: int, dtype: torch.dtype, sizes: dict[str, Any]) -> None:
    """Two shards and an index, with what the released checkpoint has beside them."""
    from paras2s.policy.dual_stream.model import DualStreamLM
    from paras2s.policy.kimi.policy import special_ids, stream_config

    ids = special_ids(folder)
    ids.pop("text_only_id")
    torch.manual_seed(seed)
    model = DualStreamLM(stream_config(sizes, ids, "tiny")).to(dtype)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    state = model.state_dict() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    names = sorted(state)
    halves = {"model-1.safetensors": names[: len(names) // 2], "model-2.safetensors": names[len(names) // 2 :]}
    for file, held in halves.items():
        save_file({name: state[name].contiguous() for name in held}, folder / file)
    weight_map = {name: file for file, held in halves.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_kimi(
    folder: Path,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    text: int = TEXT,
    texts: Sequence[str] = (),
    wider: dict[str, Any] | None = None,
) -> Path:
    """Everything `KimiPolicy.load` reads, tiny; `text` ids below the codes, tokens for the words of `texts` among them."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = SIZES | {"vocab_size": text + CODES, "pad_token_id": text - 1, "kimia_token_offset": text} | (wider or {})
    (folder / "config.json").write_text(json.dumps(sizes))
    write_tokenizer(folder, {name: one + text - TEXT for name, one in IDS.items()}, texts)
    write_weights(folder, seed, dtype, sizes)
    (folder / "glm-4-voice-tokenizer").mkdir()
    save_tokenizer(folder / "glm-4-voice-tokenizer", encoder_of(SMALL), SMALL)
    whisper_folder(folder / "whisper-large-v3", chunk_s=30)
    flow, vocoder = tiny_models(codes=CODES)
    save_detokenizer(folder, flow.state_dict(), with_filters(vocoder), codes=CODES)
    return folder


def write_golden(folder: Path) -> Path:
    """The golden network (docs/experiments/policies.md) as a released checkpoint, without audio encoder and vocoder."""
    config = golden_config()
    folder.mkdir(parents=True)
    sizes = SIZES | {
        "vocab_size": 64, "kimia_token_offset": 40, "pad_token_id": 32, "kimia_adaptor_input_dim": 20,
        "kimia_mimo_audiodelaytokens": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(sizes))
    ids = {name: getattr(config, name) for name in SPECIALS if name != "text_only_id"} | {"text_only_id": 31}
    write_tokenizer(folder, ids)
    state = {name: value.contiguous() for name, value in golden_model().state_dict().items()}
    save_file(state, folder / "model.safetensors")
    return folder
