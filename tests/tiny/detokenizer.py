"""Tiny random flow models and vocoders of Kimi-Audio, and the released sizes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import yaml
from torch import Tensor, nn

from paras2s.configs.schema.base import preset_path, read_values
from paras2s.policy.kimi.bigvgan import Activation, BigVGAN, BigVGANConfig, kaiser_sinc
from paras2s.policy.kimi.flow_matching import FlowConfig, FlowModel

RELEASED = read_values(preset_path("kimi", "released"))
RELEASED_FLOW, RELEASED_VOCODER = RELEASED["audio_detokenizer"], RELEASED["vocoder"]
RELEASED_DIT = RELEASED_FLOW["model"]["dit"]
MEL = {name: RELEASED_FLOW[name] for name in ("normalize_mel", "mel_mean", "mel_std")}
TINY_DIT = {**RELEASED_DIT, "input_size": 8, "semantic_vocab_size": 40, "hidden_size": 24, "depth": 2, "num_heads": 2}
TINY_FLOW = {"model": {"dit": TINY_DIT}, **MEL}
TINY_VOCODER = {
    **RELEASED_VOCODER,
    **{"num_mels": 8, "sampling_rate": 300, "hop_size": 6, "upsample_initial_channel": 8},
    **{"upsample_rates": [3, 2], "upsample_kernel_sizes": [5, 4]},
    **{"resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3]] * 2},
}


def tiny_flow(codes: int) -> dict[str, object]:
    return {**TINY_FLOW, "model": {"dit": {**TINY_DIT, "semantic_vocab_size": codes}}}


def tiny_models(codes: int = 40) -> tuple[FlowModel, BigVGAN]:
    torch.manual_seed(0)
    flow = FlowModel(FlowConfig.from_released(tiny_flow(codes)))
    vocoder = BigVGAN(BigVGANConfig.from_released(TINY_VOCODER))
    for name, parameter in [*flow.named_parameters(), *vocoder.named_parameters()]:
        if name.endswith(("alpha", "beta", "bias")):
            nn.init.normal_(parameter, std=0.3)
    # Quiet enough not to be clamped, so that a change anywhere shows.
    nn.init.constant_(vocoder.conv_post.weight_g, 0.02)
    return flow, vocoder


def save_detokenizer(folder: Path, flow: dict[str, Tensor], vocoder: dict[str, Tensor], codes: int = 40) -> Path:
    """Both models' tensors in the layout of the release, with what else the release holds."""
    for name in ("audio_detokenizer", "vocoder"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "audio_detokenizer" / "config.yaml").write_text(yaml.safe_dump(tiny_flow(codes)))
    (folder / "vocoder" / "config.json").write_text(json.dumps(TINY_VOCODER))
    state = {f"speech_model.{name}": tensor for name, tensor in flow.items()} | {"step": torch.zeros(1)}
    torch.save({"state_dict": state}, folder / "audio_detokenizer" / "model.pt")
    torch.save({"generator": vocoder}, folder / "vocoder" / "model.pt")
    return folder


def with_filters(vocoder: BigVGAN) -> dict[str, Tensor]:
    filters = {}
    for name, module in vocoder.named_modules():
        if isinstance(module, Activation):
            for end in ("upsample.filter", "downsample.lowpass.filter"):
                filters[f"{name}.{end}"] = torch.tensor(kaiser_sinc()).view(1, 1, 12)
    return {**vocoder.state_dict(), **filters}
