"""Supervised warm-up on both streams (ParaS2S, section 4.1; masks: docs/policies.md, "Kimi-Audio: targets")."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.configs.schema.run import WarmupConfig
from paras2s.policy.base import Policy, flat
from paras2s.policy.types import Prompt, Sampling
from paras2s.train.batching import token_batch
from paras2s.train.checkpoint import Position, training_bytes
from paras2s.train.passes import add_gradients, passes_at_once
from paras2s.train.single_device import Devices
from paras2s.types import AUDIO, TEXT, Block
from paras2s.utils.epochs import rows_of_step
from paras2s.utils.seeds import Stream


@dataclass(frozen=True)
class Example:
    """One demonstration as the model reads it: prompt, answer (G = 1), and `style` in words, "" where no prompt tells it."""

    prompt: Prompt
    target: tuple[Block, ...]
    style: str = ""


def schedule(step: int, steps: int, warm: int = 20) -> float:
    """Return the factor on the learning rate: linear over the first `warm` steps, then a cosine down to a tenth."""
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def stream_masks(batch: Sequence[Example], first_token_weight: float) -> list[torch.Tensor]:
    """Weight of each token in the loss, [n, M] of (text, audio); the first text token counts `first_token_weight` times."""
    known = token_batch([example.target for example in batch], torch.float64, torch.device("cpu"))
    mask = known.mask.clone()
    mask[:, 0] *= first_token_weight
    return [mask * (known.stream_id == stream) for stream in (TEXT, AUDIO)]


def stream_losses(
    policy: Policy, batch: Sequence[Example], first_token_weight: float, counts: Sequence[float] | None = None
) -> torch.Tensor:
    """Return the mean negative log-likelihood a token of (text, audio), [2].

    `counts`: total weights of the larger batch that this one is a part of; the losses of the parts add up to its loss.
    """
    answers = [example.target for example in batch]
    logp = flat(policy.logprobs([example.prompt for example in batch], answers, Sampling()))
    masks = [mask.to(logp) for mask in stream_masks(batch, first_token_weight)]
    counts = counts or [max(1.0, mask.sum().item()) for mask in masks]
    return -torch.stack([(logp * mask).sum() / count for mask, count in zip(masks, counts, strict=True)])


def add_sft_gradients(
    policy: Policy,
    devices: Devices,
    batch: Sequence[Example],
    weights: tuple[float, float],
    first_token_weight: float,
    micro_batch_size: int | None,
) -> np.ndarray:
    """Add the gradient of a batch's losses, each stream's times its weight, for this rank's share of the demonstrations.

    Call it on every rank inside `devices.gathered`. Returns the rank's part of the losses of (text, audio), [2], in nats a
    token.
    """
    counts = [max(1.0, mask.sum().item()) for mask in stream_masks(batch, first_token_weight)]
    own = devices.share(range(len(batch)))
    at_once = passes_at_once(policy, devices.sharded, micro_batch_size)
    # A rank may have no examples.
    size = micro_batch_size or max(1, -(-len(own) // at_once))

    def pass_of(part: Sequence[Example]) -> tuple[torch.Tensor, np.ndarray]:
        losses = stream_losses(policy, part, first_token_weight, counts)
        # Several devices average their gradients, and the loss is a sum over them.
        loss = (weights[0] * losses[0] + weights[1] * losses[1]) * devices.world
        return loss, losses.detach().double().cpu().numpy()

    def padding_pass() -> tuple[torch.Tensor, np.ndarray]:
        return 0.0 * pass_of(batch[:1])[0], np.zeros(2)

    parts = [[batch[row] for row in own[start : start + size]] for start in range(0, len(own), size)]
    passes: list[Callable[[], tuple[torch.Tensor, np.ndarray]]] = [partial(pass_of, part) for part in parts]
    # Ranks that gather layer by layer make equally many passes.
    passes += [padding_pass] * (devices.passes(len(parts)) - len(parts))
    return sum(add_gradients(passes, list(policy.model.parameters()), at_once), np.zeros(2))


def _groups(policy: Policy, config: WarmupConfig) -> list[dict[str, Any]]:
    """Return the trainable parameters by learning rate and weight decay: matrices decay, and an adaptor may be faster."""
    in_adaptor, trainable = re.compile(policy.spec.adaptor_parameters), policy.trainable()
    faster = {name for name in trainable if config.adaptor_lr is not None and in_adaptor.fullmatch(name)}
    groups = []
    for names, peak in ((trainable.keys() - faster, config.lr), (faster, config.adaptor_lr)):
        own = [parameter for name, parameter in trainable.items() if name in names]
        groups.append({"params": [p for p in own if p.ndim >= 2], "weight_decay": config.weight_decay, "peak": peak})
        groups.append({"params": [p for p in own if p.ndim < 2], "weight_decay": 0.0, "peak": peak})
    return [group for group in groups if group["params"]]


class Warmup:
    """The optimiser and the order of demonstrations; `step` n depends on the seed and n alone, so it can be resumed.

    As one rank of several it passes its share of each batch, and every rank must make the same calls.
    """

    def __init__(
        self,
        policy: Policy,
        examples: Sequence[Example],
        config: WarmupConfig,
        seed: int,
        devices: Devices | None = None,
        reopen: Callable[[], Policy] | None = None,
    ) -> None:
        self.policy, self.examples, self.config, self.seed = policy, examples, config, seed
        self.devices, self._reopen = devices or Devices(), reopen
        if config.gradient_checkpointing:
            policy.enable_gradient_checkpointing()
        policy.widen_trainable()
        self.devices.spread(policy)
        # Adapters alone, where there are any: frozen weights have no optimiser state.
        self.optimiser = torch.optim.AdamW(_groups(policy, config), lr=config.lr, betas=(0.9, 0.95), fused=True)

    def batch(self, step: int) -> list[Example]:
        """Return the demonstrations of a step, newly augmented."""
        rows = rows_of_step(step, self.config.batch_size, len(self.examples), [self.seed, Stream.WARMUP_ORDER])
        rng = np.random.default_rng([self.seed, Stream.WARMUP_AUGMENT, step])
        chosen = [self.examples[row] for row in rows]
        batch = [
            replace(example, prompt=self.policy.augment_prompt(example.prompt, self.config.augment, rng)) for example in chosen
        ]
        if not (share := self.config.style_share):
            return batch
        drawn = np.random.default_rng([self.seed, Stream.WARMUP_STYLE, step]).random(len(batch))
        return [
            replace(example, prompt=self.policy.with_style(example.prompt, example.style)) if number < share else example
            for example, number in zip(batch, drawn, strict=True)
        ]

    def step(self, number: int) -> dict[str, float]:
        """Make one update; return the losses in nats a token."""
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * schedule(number, self.config.steps)
        self.policy.model.train()
        self.optimiser.zero_grad()
        config, weights = self.config, (self.config.text_weight, 1.0)
        with self.devices.gathered(self.policy):
            total = add_sft_gradients(
                self.policy, self.devices, self.batch(number), weights, config.first_token_weight, config.micro_batch_size
            )
        self.devices.clip(self.policy.model.parameters(), 1.0)
        self.optimiser.step()
        text, audio = self.devices.total(total).tolist()
        return {"loss_text": text, "loss_audio": audio}

    @property
    def checkpoint_bytes(self) -> int:
        """Size of a checkpoint."""
        return training_bytes(self.policy)

    def save(self, folder: Path, next_step: int) -> None:
        """Write a checkpoint."""
        self.devices.save(folder, self.policy, self.optimiser, Position(next_step))

    def restore(self, folder: Path) -> int:
        """Continue from a checkpoint; return the step to do next."""
        return self.devices.restore(folder, self.policy, self.optimiser)

    def export(self, folder: Path) -> None:
        """Write the policy, adapters merged, under the released names. The last thing a warm-up does."""

        def first_policy() -> Policy:
            assert self._reopen is not None
            return self._reopen()

        self.devices.export(folder, self.policy, first_policy)
