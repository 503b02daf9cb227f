"""Converts a Moshi in Kyutai's own files to transformers' format, which `policy.kind: moshi` reads.

So moshiko, moshika, their checkpoints after reinforcement, and PersonaPlex can be trained. PersonaPlex's depth decoder is cut
to its own codebooks; the others guess the user's, whom a prompt gives.

python tools/convert_moshi.py models/personaplex-7b-v1 --mimi models/mimi --out models/personaplex

PersonaPlex reads a prompt before every question, which the checkpoint's folder holds: `--role "You enjoy having a good
conversation."` and `--voice CLIP`, which is brought to its makers' -24 LUFS. Either may be left out.

The folder holds `model.safetensors` and `tokenizer_spm_32k_3.model`; `--mimi`: the codec in transformers' format, kyutai/mimi.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LOUDNESS_LUFS = -24.0
WEIGHTS, PIECES = "model.safetensors", "tokenizer_spm_32k_3.model"
NAMES = (
    (r"emb\.(\d+)\.weight", r"embed_tokens.\1.weight"),
    (r"text_emb\.weight", "decoder.model.embed_tokens.weight"),
    (r"text_linear\.weight", "decoder.lm_head.weight"),
    (r"out_norm\.alpha", "decoder.model.norm.weight"),
    (r"depformer_emb\.(\d+)\.weight", r"depth_decoder.embed_tokens.\1.weight"),
    (r"depformer_text_emb\.weight", "depth_decoder.text_embed_tokens.weight"),
    (r"transformer\.(layers\.\d+)\.norm1\.alpha", r"decoder.model.\1.input_layernorm.weight"),
    (r"transformer\.(layers\.\d+)\.norm2\.alpha", r"decoder.model.\1.post_attention_layernorm.weight"),
    (r"transformer\.(layers\.\d+)\.gating\.linear_in\.weight", r"decoder.model.\1.mlp.fc1.weight"),
    (r"transformer\.(layers\.\d+)\.gating\.linear_out\.weight", r"decoder.model.\1.mlp.fc2.weight"),
    (r"transformer\.(layers\.\d+)\.self_attn\.out_proj\.weight", r"decoder.model.\1.self_attn.o_proj.linear.weight"),
    (r"depformer\.(layers\.\d+)\.norm1\.alpha", r"depth_decoder.\1.input_layernorm.weight"),
    (r"depformer\.(layers\.\d+)\.norm2\.alpha", r"depth_decoder.\1.post_attention_layernorm.weight"),
)  # fmt: skip
# A tensor a codebook, which transformers has in one.
STACKED = (
    (r"depformer_in\.(\d+)\.weight", "depth_decoder.input_projections.weight"),
    (r"linears\.(\d+)\.weight", "depth_decoder.lm_heads.weight"),
    (r"depformer\.(?P<layer>layers\.\d+)\.gating\.(\d+)\.linear_in\.weight", "depth_decoder.{layer}.mlp.fc1.weight"),
    (r"depformer\.(?P<layer>layers\.\d+)\.gating\.(\d+)\.linear_out\.weight", "depth_decoder.{layer}.mlp.fc2.weight"),
)  # fmt: skip


def converted(state: dict[str, Tensor], heads: int, codebooks: int) -> dict[str, Tensor]:
    """Return Kyutai's tensors under transformers' names; of the depth decoder those of the first `codebooks`."""
    depth = sum(re.fullmatch(r"linears\.\d+\.weight", name) is not None for name in state)
    found: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, value in state.items():
        if match := re.fullmatch(r"(transformer|depformer)\.(layers\.\d+)\.self_attn\.(in_proj_weight|out_proj\.weight)", name):
            found |= _attention(match, value, heads, depth, codebooks)
            continue
        for pattern, target in STACKED:
            if match := re.fullmatch(pattern, name):
                stacks.setdefault(target.format(**match.groupdict()), {})[int(match.groups()[-1])] = value
        for pattern, target in NAMES:
            if re.fullmatch(pattern, name):
                found[re.sub(pattern, target, name)] = value.flatten() if name.endswith("alpha") else value
    own = {f"depth_decoder.embed_tokens.{number}.weight" for number in range(codebooks - 1, depth)}
    stacked = {name: torch.stack([parts[number] for number in range(codebooks)]) for name, parts in stacks.items()}
    return {name: value for name, value in found.items() if name not in own} | stacked


def _attention(match: re.Match[str], value: Tensor, heads: int, depth: int, codebooks: int) -> dict[str, Tensor]:
    network, layer, part = match.groups()
    if network == "depformer":
        # A projection a codebook, each of its own queries, keys and values.
        value = value.view(depth, -1, value.shape[-1])[:codebooks]
        prefix = f"depth_decoder.{layer}.self_attn"
    else:
        prefix = f"decoder.model.{layer}.self_attn"
    if part != "in_proj_weight":
        return {f"{prefix}.o_proj.linear.weight": value}
    query, key, values = value.chunk(3, dim=-2)
    if network == "transformer":
        query, key = (_halves(part, heads) for part in (query, key))
    parts = {"q": query, "k": key, "v": values}
    return {f"{prefix}.{name}_proj.linear.weight": one.contiguous() for name, one in parts.items()}


def _halves(weight: Tensor, heads: int) -> Tensor:
    """Rotary positions turn neighbours in Kyutai's code, and the halves of a head in transformers'."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def config_of(state: dict[str, Tensor], mimi: Any, **changes: Any) -> Any:
    """Return transformers' config: sizes by the tensors; heads, positions and windows are those of the released 7B."""
    from transformers import MoshiConfig

    def layers(network: str) -> int:
        return len({match[1] for name in state if (match := re.match(rf"{network}\.layers\.(\d+)\.", name))})

    text, wide = state["text_emb.weight"].shape
    narrow = state["depformer_text_emb.weight"].shape[1]
    codebooks = sum(name.startswith("emb.") for name in state) // 2
    depth = {"hidden_size": narrow, "num_hidden_layers": layers("depformer"), "num_codebooks": codebooks,
             "ffn_dim": state["depformer.layers.0.gating.0.linear_in.weight"].shape[0]}  # fmt: skip
    depth |= changes.pop("depth", {})
    sizes = {"vocab_size": text - 1, "hidden_size": wide, "num_hidden_layers": layers("transformer"),
             "num_codebooks": codebooks, "audio_vocab_size": state["linears.0.weight"].shape[0],
             "ffn_dim": state["transformer.layers.0.gating.linear_in.weight"].shape[0]}  # fmt: skip
    return MoshiConfig(**sizes | changes, audio_encoder_config=mimi.config.to_dict(), depth_decoder_config=depth)


def assembled(state: dict[str, Tensor], mimi: Any, **changes: Any) -> Any:
    """Return transformers' model with these weights, in their precision."""
    from transformers import MoshiForConditionalGeneration

    config = config_of(state, mimi, **changes)
    with torch.device("meta"):
        model: Any = MoshiForConditionalGeneration(config)
    model.audio_encoder = mimi
    held = converted(state, config.num_attention_heads, config.num_codebooks)
    missing, unexpected = model.load_state_dict(held, strict=False, assign=True)
    if wrong := [name for name in missing if not name.startswith("audio_encoder.")] + unexpected:
        raise SystemExit(f"not a Moshi in Kyutai's files: {', '.join(wrong[:5])}")
    return model


def introduce(folder: Path, role: str, voice: Path | None) -> None:
    """Write PersonaPlex's prompt into a converted folder."""
    described = {"architecture": "Moshi", "text": {}, "persona": {"role": role}}
    (folder / "policy.json").write_text(json.dumps(described))
    if voice is not None:
        import pyloudnorm
        import soundfile

        samples, rate_hz = soundfile.read(voice)
        samples = samples.mean(1) if samples.ndim == 2 else samples
        level_lufs = pyloudnorm.Meter(rate_hz).integrated_loudness(samples)
        soundfile.write(folder / "voice.wav", pyloudnorm.normalize.loudness(samples, level_lufs, LOUDNESS_LUFS), rate_hz)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mimi", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--role")
    parser.add_argument("--voice", type=Path)
    given = parser.parse_args()
    from safetensors.torch import load_file
    from transformers import MimiModel
    from transformers.convert_slow_tokenizer import MoshiConverter

    mimi = MimiModel.from_pretrained(given.mimi)
    assembled(load_file(given.folder / WEIGHTS), mimi).save_pretrained(given.out)
    MoshiConverter(str(given.folder / PIECES)).converted().save(str(given.out / "tokenizer.json"))
    if given.role or given.voice:
        introduce(given.out, given.role or "", given.voice)


if __name__ == "__main__":
    main()
