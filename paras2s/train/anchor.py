"""The anchor: an SFT loss on demonstrations that is added to the policy gradient in the same update.

Reinforcement of the words lets the sound go: an answer's audio tokens are paid for what its text says. The likelihood of
demonstrations holds the audio stream (or the text stream, or both) where the warm-up left it. What a step learns from depends
on the seed and the step alone, so that a resumed run learns from the same (`batch_of_step`).

The adaptive anchor (WavAlign, arXiv 2604.14932; `trainer/vita_audio_rl_sft_trainer_masked.py` of its code) gives the policy
gradient a share `rl_share` and the anchor the rest of 1, times its weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from paras2s.configs.schema.align import AdaptiveConfig, AnchorConfig
from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.types import Prompt
from paras2s.train.sft import Example, add_sft_gradients, stream_masks
from paras2s.train.single_device import Devices
from paras2s.types import Reward, Unscored
from paras2s.utils.epochs import rows_of_step
from paras2s.utils.seeds import Stream

STREAMS = ("text", "audio")
# The highest variance that rewards from 1 to 5 can have.
LARGEST_VARIANCE = 4.0
Augment = Callable[[Prompt, np.random.Generator], Prompt]


class Examples(Protocol):
    """Demonstrations as a policy reads them; each may be read only when it is requested."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Example: ...

    @property
    def augment(self) -> Augment:
        """Changes a prompt before the policy reads it, as in the warm-up."""


def batch_of_step(config: AnchorConfig | None, examples: Examples, seed: int, step: int) -> tuple[Example, ...]:
    """Return the demonstrations of an update, their prompts augmented; () for an update without the anchor."""
    if config is None or not config.weight or step % config.every:
        return ()
    rows = rows_of_step(step // config.every, config.demonstrations, len(examples), [seed, Stream.ANCHOR_ORDER])
    rng = np.random.default_rng([seed, Stream.ANCHOR_AUGMENT, step])
    chosen = [examples[row] for row in rows]
    return tuple(replace(example, prompt=examples.augment(example.prompt, rng)) for example in chosen)


def next_rl_share(config: AdaptiveConfig, rewards: Sequence[Sequence[Reward | Unscored]], before: float | None) -> float:
    """Return the policy gradient's share in an update with rewards [B, G], after `before`; unscored answers do not count."""
    shares = []
    for group in rewards:
        values = [reward.value for reward in group if isinstance(reward, Reward)]
        if values:
            # A sigmoid that no reward makes overflow.
            gate = 0.5 * (1.0 + math.tanh(config.slope * (max(values) - config.threshold) / 2))
            shares.append(config.largest * gate * min(float(np.var(values)) / LARGEST_VARIANCE, 1.0))
    if not shares:
        # No group has a reward, so no policy gradient either.
        return before or 0.0
    share = float(np.mean(shares))
    return share if before is None else (1 - config.smoothing) * share + config.smoothing * before


def add_anchor(
    policy: Policy, devices: Devices, config: AnchorConfig, batch: Sequence[Example], micro_batch_size: int | None
) -> np.ndarray:
    """Add the anchor's gradient to the update's; every rank passes its share of the batch.

    Call it on every rank inside `devices.gathered`. Returns the rank's part of the losses of (text, audio), [2], in nats a
    token.

    Raises:
        PolicyError: the demonstrations have no token of the stream that is to be held.
    """
    tokens = [float(mask.sum()) for mask in stream_masks(batch, 1.0)]
    if not any(count and weight for count, weight in zip(tokens, config.weights, strict=True)):
        raise PolicyError(
            f"align.objective.anchor.streams: the demonstrations have no token of the {config.streams} stream; name the other"
        )
    return add_sft_gradients(policy, devices, batch, config.weights, 1.0, micro_batch_size)


def anchor_metrics(config: AnchorConfig, losses: np.ndarray) -> dict[str, float]:
    """Return the log's values from the losses of (text, audio), [2]: each, and `anchor_loss`, what the update added."""
    by_stream = {f"anchor_loss_{stream}": float(loss) for stream, loss in zip(STREAMS, losses, strict=True)}
    return {"anchor_loss": float(np.dot(config.weights, losses)), **by_stream}
