"""A tiny MiniMind-O in the released layout: a tokenizer of bytes, Mimi, and audio_encoder that hear no words.

`minimind_golden.safetensors` is what its makers' code gives: codes, prompt, logits, greedy tokens and sound, written by
`tools/dumps/minimind_o.py` (`parts_of`, 36 steps, 5 frames of sound) with `model/model_omni.py` of jingyaogong/minimind-o at
commit a10fa6c (Apache-2.0), their chat template on the tiny tokenizer, and `TinyEncoder` in SenseVoice-Small's place, for the
question `tone(0.7, 16_000, 180)`. No code and no weights of theirs are in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.audio.clip import Clip
from paras2s.policy.minimind_o import MARKS, RELEASED, MiniMindNetwork, MiniMindPolicy, read_released

GOLDEN = Path(__file__).with_name("minimind_golden.safetensors")
# Eight codes; then an id that nobody uses, the pad, the stop, and the voice's mark.
CODES, PAD, STOP, IDS, FEATURES = 8, 9, 10, 12, 12
SIZES = {
    "architectures": ["MiniMindOmni"], "model_type": "minimind-o", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 300,
    "rope_theta": 1e6, "max_position_embeddings": 400, "eos_token_id": 2, "num_talker_hidden_layers": 2,
    "talker_hidden_size": 32, "bridge_layer": 1, "audio_ids": [3], "audio_hidden_size": FEATURES, "audio_vocab_size": IDS,
    "audio_pad_token": PAD, "audio_stop_token": STOP, "audio_spk_token": 11, "spk_emb_size": 4, "image_hidden_size": 4,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "use_moe": False, "tie_word_embeddings": True,
}  # fmt: skip


class TinyEncoder:
    """Vectors of the sound's own samples, one every 60 ms, in place of SenseVoice-Small."""

    def features(self, clip: Clip) -> np.ndarray:
        samples = clip.at(16_000).samples
        frames = np.resize(samples, (-(-len(samples) // 960), 960))
        return np.stack([np.abs(frames[:, n::FEATURES]).mean(1) * 8 - 1 for n in range(FEATURES)], 1).astype(np.float32)


def tiny_tokenizer() -> Any:
    from transformers import AddedToken, Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    special = [MARKS[name] for name in ("pad", "start", "end", "sound")]
    thinking = [MARKS["think"], MARKS["thought"]]
    pieces = [*special, *thinking, *bytes_to_unicode().values()]
    tokenizer = Qwen2Tokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, merges=[])
    tokenizer.add_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in thinking])
    tokenizer.eos_token = MARKS["end"]
    return tokenizer


def tiny_mimi() -> Any:
    from transformers import MimiConfig, MimiModel

    config = MimiConfig(
        hidden_size=16, num_filters=2, codebook_size=CODES, codebook_dim=8, num_quantizers=8, num_hidden_layers=1,
        vector_quantization_hidden_dimension=8, intermediate_size=16, num_attention_heads=2, num_key_value_heads=2,
        upsample_groups=16,
    )  # fmt: skip
    torch.manual_seed(0)
    mimi = MimiModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, value in mimi.state_dict().items():
        if name.endswith("embed_sum"):
            value.copy_(torch.randn(value.shape, generator=generator))
        elif name.startswith("encoder") and name.endswith("conv.bias"):
            # Mimi would hear little but these.
            value.zero_()
    return mimi


NORMS = ("audio_proj.mlp.0.weight", "talker.codec_proj.3.weight", "talker.embed_proj.3.weight")


def waves(number: int, name: str, shape: torch.Size) -> torch.Tensor:
    """Weights by the number of a tensor in the order of names; with this phase the greedy answer's words come to an end."""
    wave = torch.sin(37.13 + 1.3 * number + 0.731 * torch.arange(max(1, shape.numel()), dtype=torch.float64)).reshape(shape)
    return 1 + 0.1 * wave if "norm" in name or name in NORMS else 0.3 * wave


def write_minimind(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A checkpoint as released, `pytorch_model.bin`, and its Mimi; without SenseVoice-Small."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SIZES))
    tiny_tokenizer().save_pretrained(str(folder))
    network = MiniMindNetwork(read_released(folder))
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    shapes |= {"talker.spk_proj.weight": torch.Size((32, 4)), "vision_proj.mlp.1.weight": torch.Size((32, 4))}
    state = {name: waves(number, name, shapes[name]).to(dtype) for number, name in enumerate(sorted(shapes))}
    torch.save(state | {"lm_head.weight": state["model.embed_tokens.weight"]}, folder / RELEASED)
    tiny_mimi().save_pretrained(str(folder / "mimi"))
    return folder


class EncodingMiniMind(MiniMindPolicy):
    """Encodes by `TinyEncoder` in every process that loads it by `policy.kind: tiny.minimind:EncodingMiniMind`."""

    audio_encoder = TinyEncoder()  # type: ignore[assignment]


def tiny_minimind(folder: Path, dtype: torch.dtype = torch.float64) -> MiniMindPolicy:
    policy = MiniMindPolicy.load(write_minimind(folder, dtype))
    policy.audio_encoder = TinyEncoder()  # type: ignore[assignment]
    return policy
