"""The GRPO objective as a pure function on flat log-probs; no model is named here (ParaS2S, equation 3; TRL 1.16).

Alphabet: N sequences, M flat entries a sequence (every slot of every step), U units (entries that share one ratio).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paras2s.types import AUDIO, TEXT


@dataclass(frozen=True)
class LogProbBatch:
    """All [N, M]: `mask` 1 where a token was sampled; `step_id` its step; `stream_id` 0 for text, 1 for audio."""

    logp: Tensor
    old_logp: Tensor
    ref_logp: Tensor
    mask: Tensor
    step_id: Tensor
    stream_id: Tensor


@dataclass(frozen=True)
class Objective:
    """What to maximise.

    `ratio_level`: "token" one ratio an entry, "step" one for all entries of a step (ParaS2S's joint), "sequence" one for
    the masked mean of a sequence (GSPO). `average`: "joint" averages over units of both streams at once, "per_stream"
    averages text and audio apart and adds them with their weights. `kl_form`: "sum" adds up k3 of each entry, "joint" is
    k3 of the unit's summed log-prob; they differ, and both estimate the same divergence. `max_steps` divides in dr_grpo.
    """

    loss_type: Literal["grpo", "bnpo", "dr_grpo", "cispo", "sapo"] = "grpo"
    ratio_level: Literal["token", "step", "sequence"] = "step"
    average: Literal["joint", "per_stream"] = "joint"
    kl_form: Literal["sum", "joint"] = "sum"
    kl_weight: float = 0.04
    kl_bias_correction: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_cap: float | None = None
    text_weight: float = 1.0
    audio_weight: float = 1.0
    max_steps: int = 52


@dataclass(frozen=True)
class LossNormalizer:
    """Over what a loss is averaged, where its batch comes in parts: all sequences, and all units of each stream's mask."""

    sequences: float
    units: tuple[float, ...]


# What is added up for the log, in this order: a batch in parts, or on several devices, has the sums of its parts.
SUMS = ("kl", "clipped", "units", "kl_text", "text", "kl_audio", "audio")


@dataclass(frozen=True)
class ObjectiveResult:
    """`loss` is a scalar with gradient; `sums` are detached (see `SUMS`), the rest are their means for the log."""

    loss: Tensor
    sums: tuple[float, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """Mean k3 a unit and a token of each stream, in nats, and the share of units outside the clip range."""
        held = dict(zip(SUMS, self.sums, strict=True))
        return {
            "kl": held["kl"] / max(held["units"], 1.0),
            "kl_text": held["kl_text"] / max(held["text"], 1.0),
            "kl_audio": held["kl_audio"] / max(held["audio"], 1.0),
            "clipped_share": held["clipped"] / max(held["units"], 1.0),
        }


@dataclass(frozen=True)
class _Units:
    """Entries summed to units, all [N, U]."""

    log_ratio: Tensor
    logp: Tensor
    kl: Tensor
    mask: Tensor


def k3(ref_logp: Tensor, logp: Tensor) -> Tensor:
    """exp(ref - logp) - (ref - logp) - 1, never negative."""
    difference = ref_logp - logp
    return difference.exp() - difference - 1


def _units(batch: LogProbBatch, mask: Tensor, level: str, kl_form: str) -> _Units:
    log_ratio, logp, ref = ((part * mask) for part in (batch.logp - batch.old_logp, batch.logp, batch.ref_logp))
    kl = k3(batch.ref_logp, batch.logp) * mask
    if level == "step":
        steps = int(batch.step_id.max()) + 1
        shape = (mask.shape[0], steps)

        def by_step(values: Tensor) -> Tensor:
            return torch.zeros(shape, dtype=values.dtype, device=values.device).scatter_add(1, batch.step_id, values)

        log_ratio, logp, ref, kl = by_step(log_ratio), by_step(logp), by_step(ref), by_step(kl)
        mask = (by_step(mask) > 0).to(mask.dtype)
    elif level == "sequence":
        mean = log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        log_ratio = mean.expand_as(mask)
    if kl_form == "joint":
        kl = k3(ref, logp) * mask
    return _Units(log_ratio, logp, kl, mask)


def _clipped(ratio: Tensor, advantages: Tensor, logp: Tensor, objective: Objective) -> Tensor:
    free = ratio if objective.ratio_cap is None else ratio.clamp(max=objective.ratio_cap)
    held = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    return -torch.minimum(free * advantages, held * advantages)


def _cispo(ratio: Tensor, advantages: Tensor, logp: Tensor, objective: Objective) -> Tensor:
    return -ratio.clamp(max=objective.clip_high).detach() * advantages * logp


def _sapo(ratio: Tensor, advantages: Tensor, logp: Tensor, objective: Objective) -> Tensor:
    softness = torch.where(advantages > 0, torch.ones_like(ratio), 1.05)
    return -(4 / softness) * torch.sigmoid(softness * (ratio - 1)) * advantages


Term = Callable[[Tensor, Tensor, Tensor, Objective], Tensor]
# How a unit enters the loss, and over what it is averaged.
LOSSES: dict[str, tuple[Term, Literal["sequence", "batch", "length"]]] = {
    "grpo": (_clipped, "sequence"),
    "bnpo": (_clipped, "batch"),
    "dr_grpo": (_clipped, "length"),
    "cispo": (_cispo, "batch"),
    "sapo": (_sapo, "sequence"),
}


def _average(values: Tensor, mask: Tensor, over: str, max_steps: int, sequences: float, units: float) -> Tensor:
    if over == "sequence":
        return ((values * mask).sum(1) / mask.sum(1).clamp(min=1)).sum() / sequences
    if over == "batch":
        return (values * mask).sum() / max(units, 1.0)
    return (values * mask).sum() / (sequences * max_steps)


def _stream_masks(mask: Tensor, stream_id: Tensor, objective: Objective) -> list[tuple[Tensor, float]]:
    if objective.average == "joint":
        return [(mask, 1.0)]
    return [(mask * (stream_id == TEXT), objective.text_weight), (mask * (stream_id == AUDIO), objective.audio_weight)]


def loss_normalizer(mask: Tensor, step_id: Tensor, stream_id: Tensor, objective: Objective) -> LossNormalizer:
    """What a batch, all [N, M], adds to the averages; those of its parts add up to it."""
    units = []
    for part, _ in _stream_masks(mask, stream_id, objective):
        if objective.ratio_level == "step":
            steps = torch.zeros(len(mask), int(step_id.max()) + 1, dtype=mask.dtype, device=mask.device)
            part = (steps.scatter_add(1, step_id, part) > 0).to(mask.dtype)
        units.append(part.sum().item())
    return LossNormalizer(float(len(mask)), tuple(units))


def grpo_loss(
    batch: LogProbBatch,
    advantages: Tensor,
    objective: Objective,
    importance: Tensor | None = None,
    whole: LossNormalizer | None = None,
) -> ObjectiveResult:
    """Loss of a batch; advantages [N]; `importance` weighs the policy term where another engine, or an older policy, sampled.

    `importance` is [N], one weight a sequence, or [N, M], one an entry; a unit of several entries has their product.
    `whole`: the batch is a part of one; losses of the parts add up to the loss of the whole.
    """
    term, over = LOSSES[objective.loss_type]
    whole = whole or loss_normalizer(batch.mask, batch.step_id, batch.stream_id, objective)
    loss = torch.zeros((), dtype=batch.logp.dtype, device=batch.logp.device)
    kl_sum, clipped, units_seen = 0.0, 0.0, 0.0
    streams = _stream_masks(batch.mask, batch.stream_id, objective)
    for (mask, weight), units_in_all in zip(streams, whole.units, strict=True):
        units = _units(batch, mask, objective.ratio_level, objective.kl_form)
        ratio = units.log_ratio.exp()
        spread = advantages[:, None].expand_as(ratio)
        values = term(ratio, spread, units.logp, objective)
        if importance is not None:
            values = values * _unit_weights(importance, batch, mask, objective.ratio_level)
        if objective.kl_weight:
            correction = ratio if objective.kl_bias_correction else 1.0
            values = values + objective.kl_weight * units.kl * correction
        loss = loss + weight * _average(values, units.mask, over, objective.max_steps, whole.sequences, units_in_all)
        kl_sum += (units.kl * units.mask).sum().item()
        outside = ((ratio < 1 - objective.clip_low) & (spread < 0)) | ((ratio > 1 + objective.clip_high) & (spread > 0))
        clipped += (outside * units.mask).sum().item()
        units_seen += units.mask.sum().item()
    return ObjectiveResult(loss, (kl_sum, clipped, units_seen, *_stream_kl(batch, TEXT), *_stream_kl(batch, AUDIO)))


def _unit_weights(importance: Tensor, batch: LogProbBatch, mask: Tensor, level: str) -> Tensor:
    if importance.ndim == 1:
        return importance[:, None]
    if level != "step":
        return importance
    logs = importance.log() * mask
    steps = torch.zeros(len(mask), int(batch.step_id.max()) + 1, dtype=logs.dtype, device=logs.device)
    return steps.scatter_add(1, batch.step_id, logs).exp()


def truncated_importance(logp: Tensor, behaviour_logp: Tensor, mask: Tensor, cap: float) -> Tensor:
    """How much likelier each token [N, M] is to the learner than to who sampled it, at most `cap`; 1 where nothing was sampled.

    For answers of an older policy or of another engine. Weights of whole sequences would be products of hundreds of ratios.
    """
    return ((logp.detach() - behaviour_logp) * mask).exp().clamp(max=cap)


def _stream_kl(batch: LogProbBatch, stream: int) -> tuple[float, float]:
    """Sum of k3 over the tokens of one stream, in nats, and how many they are."""
    mask = batch.mask * (batch.stream_id == stream)
    return float((k3(batch.ref_logp, batch.logp.detach()) * mask).sum()), float(mask.sum())


@dataclass(frozen=True)
class Advantages:
    """`values[i]` is None for an answer without a reward, or alone in its group; `zero_spread` counts flat groups."""

    values: tuple[float | None, ...]
    zero_spread: int
    unscored: int


def group_advantages(rewards: Sequence[Sequence[float | None]], scale: Literal["group", "none"] = "group") -> Advantages:
    """(r - mean) / (std + 1e-4) within each group, unbiased std, over the answers that have a reward; or r - mean alone.

    A reward model never gives eight equal scores, so "group" blows its noise up to full size where all answers are good.

    A flat group gets advantage 0 and is counted; an unscored answer gets none at all, which is not the same.
    """
    values: list[float | None] = []
    flat = missing = 0
    for group in rewards:
        scored = torch.tensor([reward for reward in group if reward is not None], dtype=torch.float64)
        missing += len(group) - len(scored)
        if len(scored) < 2:
            values += [None] * len(group)
            continue
        if scored.min() == scored.max():
            # Their mean may be off by a rounding, so the spread would not be exactly 0.
            values += [None if reward is None else 0.0 for reward in group]
            flat += 1
            continue
        mean = scored.mean().item()
        spread = scored.std().item() + 1e-4 if scale == "group" else 1.0
        values += [None if reward is None else (reward - mean) / spread for reward in group]
    return Advantages(tuple(values), flat, missing)
