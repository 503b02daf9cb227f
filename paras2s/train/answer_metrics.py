"""Metrics of a step that its answers alone give, before anything is learned from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from paras2s.types import AUDIO, TEXT, Reward, Rollout, Unscored


def answer_metrics(
    rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]
) -> dict[str, float | int | None]:
    """Return mean reward by source, entropy of each stream (nats a token), share of answers with the commonest text.

    The entropy is estimated from the samples: the mean of -log p over the tokens that were sampled, at their temperature.
    """
    metrics: dict[str, float | int | None] = {}
    parts = [reward.parts for row in rewards for reward in row if isinstance(reward, Reward)]
    for name in dict.fromkeys(name for part in parts for name in part):
        metrics[f"reward/{name}"] = fmean(part[name] for part in parts if name in part)
    for stream, number in (("text", TEXT), ("audio", AUDIO)):
        logps = [
            block.behaviour_logp[block.sampled & (block.streams == number)] for rollout in rollouts for block in rollout.blocks
        ]
        if count := sum(map(len, logps)):
            metrics[f"entropy_{stream}"] = -float(sum(part.sum() for part in logps)) / count
    texts = Counter(text for rollout in rollouts for text in rollout.texts)
    if total := texts.total():
        metrics["same_text_share"] = max(texts.values()) / total
    return metrics
