"""How often the learner's pass chooses other experts than the sampler's for the same token, and what that does to log-probs.

    python benchmarks/expert_choice.py

Qwen3-Omni's text decoder as transformers has it, random weights: 12 layers, a width of 256, 32 experts, 4 of them for each
token (released: 48 layers, 2,048, 128, 8). The sampler reads 48 tokens of 8 answers one by one behind 40 of a prompt, the
learner all at once. "Replayed": the learner takes the sampler's experts. Not covered: trained weights and routers, whose
choices are less even, and GPUs.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
from figures import Figure, add_json_option, write_figures
from torch import Tensor

from paras2s.policy.streams import Reading, run_stack

ROWS, PROMPT, STEPS, WORDS, LAYERS, EXPERTS, CHOSEN = 8, 40, 48, 1000, 12, 32, 4
Routed = Callable[[int, tuple[Tensor, Tensor, Tensor]], tuple[Tensor, Tensor, Tensor] | None]


def decoder() -> Any:
    """A decoder whose routers tell experts apart about as sharply as its other layers tell words."""
    from transformers import Qwen3OmniMoeThinkerTextModel
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTextConfig

    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [12, 10, 10], "interleaved": True}
    config = Qwen3OmniMoeTextConfig(
        vocab_size=WORDS, hidden_size=256, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        moe_intermediate_size=96, num_experts=EXPERTS, num_experts_per_tok=CHOSEN, rope_parameters=rope,
    )  # fmt: skip
    model = Qwen3OmniMoeThinkerTextModel(config).eval()
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, 0.0, parameter.shape[-1] ** -0.5)
    return model


def with_routers(model: Any, routed: Routed, run: Callable[[], Tensor]) -> Tensor:
    """`run` while `routed(layer, what its router gave)` is told of every router's output, which it may replace."""
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda _, inputs, output, number=number: routed(number, output))
        for number, layer in enumerate(model.layers)
    ]
    try:
        return run()
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def measure(model: Any, dtype: torch.dtype) -> tuple[float, float, float, float]:
    """Share of other experts' sets; nats apart of a token's log-prob: mean and most; and the mean with experts replayed."""
    model = copy.deepcopy(model).to(dtype)
    if dtype == torch.float64:
        model.set_experts_implementation("eager")
    numbers = torch.Generator().manual_seed(1)
    words = torch.randint(0, WORDS, (ROWS, PROMPT + STEPS), generator=numbers)
    head = (torch.randn(WORDS, 256, generator=numbers) / 8).to(dtype)
    x = model.embed_tokens(words)
    kept: list[list[Tensor]] = [[] for _ in range(LAYERS)]

    def sampled() -> Tensor:
        lengths = torch.full((ROWS,), PROMPT)
        reading = Reading(model, x[:, :PROMPT], lengths, 1, STEPS)
        states = [reading.states[:, -1], *(reading.feed(x[:, PROMPT + step]) for step in range(STEPS - 1))]
        return torch.stack(states, 1)

    def keep(layer: int, output: tuple[Tensor, Tensor, Tensor]) -> None:
        kept[layer].append(output[2].view(ROWS, -1, CHOSEN))

    def at_once() -> Tensor:
        return run_stack(model, x[:, :-1])[:, PROMPT - 1 :]

    first = with_routers(model, keep, sampled)
    theirs = [torch.cat(part, 1) for part in kept]
    others: list[Tensor] = []

    def compare(layer: int, output: tuple[Tensor, Tensor, Tensor]) -> None:
        own = output[2].view(ROWS, -1, CHOSEN)[:, PROMPT - 1 :].sort(-1).values
        others.append((own != theirs[layer][:, PROMPT - 1 :].sort(-1).values).any(-1))

    def replay(layer: int, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, scores, _ = output
        chosen = theirs[layer].reshape(-1, CHOSEN)
        weights = logits.float().softmax(-1).gather(1, chosen)
        return logits, (weights / weights.sum(-1, keepdim=True)).to(scores.dtype), chosen

    second, third = with_routers(model, compare, at_once), with_routers(model, replay, at_once)
    logp = [
        (state @ head.T).double().log_softmax(-1).gather(2, words[:, PROMPT:, None])[..., 0] for state in (first, second, third)
    ]
    apart, replayed = (logp[0] - logp[1]).abs(), (logp[0] - logp[2]).abs()
    return float(torch.stack(others).double().mean()), float(apart.mean()), float(apart.max()), float(replayed.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_json_option(parser)
    options = parser.parse_args()
    model, figures = decoder(), []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        share, mean, most, replayed = measure(model, dtype)
        print(
            f"{name}: other experts in {share:.2%} of {ROWS * STEPS * LAYERS} choices; {mean:.1e} nats apart in the mean, "
            f"{most:.1e} at most; {replayed:.1e} with the sampler's experts"
        )
        figures.append(Figure(f"{name}: other experts", "of the choices", [share]))
        figures.append(Figure(f"{name}: log-probs apart, as chosen and replayed", "nats", [mean, replayed]))
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
