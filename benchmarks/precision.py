"""How far half precision alone moves a dual-stream network's logits: the bounds of `check-policy --against` follow from it.

    python benchmarks/precision.py

Random weights of three sizes in Kimi-Audio's depth (28 layers, the audio branch after layer 21) and a width of 256; the prompt
of 80 positions has 55 of sound. A figure is the root mean square of the difference from float64, in spreads of the logits.
Not covered: trained weights, and Kimi-Audio's width of 3584.
"""

from __future__ import annotations

import argparse
import copy

import torch
from figures import Figure, add_json_option, write_figures

from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM

CONFIG = DualStreamConfig(
    hidden_size=256, intermediate_size=1024, num_layers=28, tap_layer=21, num_heads=4, num_kv_heads=2, text_vocab=1000,
    codebook_sizes=(500,), audio_delay_steps=6, continuous_dim=64, blank_id=990, text_eos_id=991, msg_end_id=992,
    media_begin_id=993, media_end_id=994, user_id=995, assistant_id=996, audio_and_text_id=997, pad_id=998,
    mask_invalid_ids=False,
)  # fmt: skip
WEIGHT_STDS = (0.02, 0.05, 0.1)
LENGTH, SOUND = 80, slice(5, 60)


@torch.no_grad()
def logits(model: DualStreamLM, dtype: torch.dtype) -> list[torch.Tensor]:
    """Logits of both streams in float64, up to a constant of each position, computed in `dtype`."""
    numbers = torch.Generator().manual_seed(1)
    audio = torch.randint(0, 1500, (1, LENGTH, 1), generator=numbers)
    text = torch.randint(0, 900, (1, LENGTH), generator=numbers)
    features = torch.randn(1, LENGTH, CONFIG.continuous_dim, generator=numbers)
    continuous = torch.zeros(1, LENGTH, dtype=torch.bool)
    continuous[:, SOUND] = True
    model = copy.deepcopy(model).to(dtype)
    states = model.hidden(model.embed(audio, text, features, continuous), torch.arange(LENGTH)[None])
    found = [model.text_logits(states[0]).double(), model.audio_logits(states[1])[0].double()]
    return [one - one.mean(-1, keepdim=True) for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_json_option(parser)
    options = parser.parse_args()
    figures = []
    for std in WEIGHT_STDS:
        torch.manual_seed(0)
        model = DualStreamLM(CONFIG)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                torch.nn.init.normal_(parameter, 0.0, std)
        exact = logits(model, torch.float64)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            pairs = zip(logits(model, dtype), exact, strict=True)
            apart = [float((one - other).pow(2).mean().sqrt() / other.std()) for one, other in pairs]
            name = f"{str(dtype).removeprefix('torch.')}, weights of {std}"
            print(f"{name}: text {apart[0]:.2e}, audio {apart[1]:.2e} of the logits' spread")
            figures.append(Figure(name, "of the logits' spread", apart))
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
