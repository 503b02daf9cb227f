"""Supervised warm-up on both streams (ParaS2S, section 4.1; masks of reference 1.9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from paras2s.config import WarmupConfig
from paras2s.policy.dual_policy import DualStreamPolicy, teacher_forced
from paras2s.policy.interface import Prompt, Sampling
from paras2s.records import Block


@dataclass(frozen=True)
class Example:
    """One demonstration as the model reads it: a prompt and the answer it should give (G = 1)."""

    prompt: Prompt
    target: Block


def schedule(step: int, steps: int, warm: int = 20) -> float:
    """Factor on the learning rate: linear over the first `warm` steps, then a cosine down to a tenth."""
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def hide(prompt: Prompt, words: bool, features: bool, blank_id: int) -> Prompt:
    """Take away the words (text stream and sentence embedding) or the prosody, so that neither is leant on alone."""
    text, held = prompt.text_ids, prompt.features
    if words:
        text = np.full_like(text, blank_id)
    if held is not None and (words or features):
        held = held.copy()
        if words:
            held[:, held.shape[1] - prompt.words_dim :] = 0
        if features:
            held[:, : held.shape[1] - prompt.words_dim] = 0
    return replace(prompt, text_ids=text, features=held)


def stream_losses(policy: DualStreamPolicy, batch: Sequence[Example], first_token_weight: float) -> torch.Tensor:
    """Mean negative log-likelihood a token of (text, audio), [2]; the first text token counts `first_token_weight` times."""
    blocks = [example.target for example in batch]
    logp = teacher_forced(policy.model, [example.prompt for example in batch], blocks, Sampling())
    mask = torch.zeros_like(logp)
    for row, block in enumerate(blocks):
        mask[row, : block.sampled.shape[1]] = torch.from_numpy(block.sampled[0]).to(logp.dtype)
    mask[:, 0, 0] *= first_token_weight
    text = (logp[..., 0] * mask[..., 0]).sum() / mask[..., 0].sum()
    audio = (logp[..., 1:] * mask[..., 1:]).sum() / mask[..., 1:].sum()
    return -torch.stack([text, audio])


class Warmup:
    """The optimiser and the order of demonstrations; `step` n depends on the seed and n alone, so it can be resumed."""

    def __init__(self, policy: DualStreamPolicy, examples: Sequence[Example], config: WarmupConfig, seed: int) -> None:
        self.policy, self.examples, self.config, self.seed = policy, examples, config, seed
        decayed = [p for p in policy.model.parameters() if p.ndim >= 2]
        plain = [p for p in policy.model.parameters() if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))

    def batch(self, step: int) -> list[Example]:
        """Demonstrations of a step, some with words or prosody hidden; similar lengths would bias the order, so none."""
        size = self.config.batch_size
        epoch, place = divmod(step * size, len(self.examples))
        order = np.random.default_rng([self.seed, 1, epoch]).permutation(len(self.examples))
        following = np.random.default_rng([self.seed, 1, epoch + 1]).permutation(len(self.examples))
        rows = np.concatenate([order, following])[place : place + size]
        rng = np.random.default_rng([self.seed, 2, step])
        blank = self.policy.model.dual_config.blank_id
        found = []
        for row in rows:
            example = self.examples[int(row)]
            words, features = rng.random() < self.config.words_dropped, rng.random() < self.config.features_dropped
            found.append(replace(example, prompt=hide(example.prompt, words, features and not words, blank)))
        return found

    def step(self, number: int) -> dict[str, float]:
        """One update; returns the losses in nats a token."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.learning_rate * schedule(number, self.config.steps)
        self.policy.model.train()
        losses = stream_losses(self.policy, self.batch(number), self.config.first_token_weight)
        self.optimiser.zero_grad()
        (self.config.text_weight * losses[0] + losses[1]).backward()
        torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), 1.0)
        self.optimiser.step()
        return {"loss_text": losses[0].item(), "loss_audio": losses[1].item()}
