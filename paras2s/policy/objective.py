"""The GRPO objective as a pure function on flat log-probs; no model is named here (ParaS2S, equation 3; reference 5).

Alphabet: N sequences, M flat entries a sequence (every slot of every step), U units (entries that share one ratio).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

TEXT, AUDIO = 0, 1


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
class ObjectiveResult:
    """`loss` is a scalar with gradient; the rest are detached numbers for the log."""

    loss: Tensor
    kl: float
    kl_text: float
    kl_audio: float
    clipped_share: float


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


def _average(values: Tensor, mask: Tensor, over: str, max_steps: int) -> Tensor:
    if over == "sequence":
        return ((values * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
    if over == "batch":
        return (values * mask).sum() / mask.sum().clamp(min=1)
    return (values * mask).sum() / (mask.shape[0] * max_steps)


def grpo_loss(
    batch: LogProbBatch, advantages: Tensor, objective: Objective, importance: Tensor | None = None
) -> ObjectiveResult:
    """Loss of a batch; advantages [N]; `importance` [N] weighs the policy term where another engine sampled."""
    term, over = LOSSES[objective.loss_type]
    streams = [(batch.mask, 1.0)]
    if objective.average == "per_stream":
        streams = [
            (batch.mask * (batch.stream_id == TEXT), objective.text_weight),
            (batch.mask * (batch.stream_id == AUDIO), objective.audio_weight),
        ]
    loss = torch.zeros((), dtype=batch.logp.dtype)
    kl_sum, clipped, units_seen = 0.0, 0.0, 0.0
    for mask, weight in streams:
        units = _units(batch, mask, objective.ratio_level, objective.kl_form)
        ratio = units.log_ratio.exp()
        spread = advantages[:, None].expand_as(ratio)
        values = term(ratio, spread, units.logp, objective)
        if importance is not None:
            values = values * importance[:, None]
        if objective.kl_weight:
            correction = ratio if objective.kl_bias_correction else 1.0
            values = values + objective.kl_weight * units.kl * correction
        loss = loss + weight * _average(values, units.mask, over, objective.max_steps)
        kl_sum += (units.kl * units.mask).sum().item()
        outside = ((ratio < 1 - objective.clip_low) & (spread < 0)) | ((ratio > 1 + objective.clip_high) & (spread > 0))
        clipped += (outside * units.mask).sum().item()
        units_seen += units.mask.sum().item()
    return ObjectiveResult(
        loss=loss,
        kl=kl_sum / max(units_seen, 1.0),
        kl_text=_stream_kl(batch, TEXT),
        kl_audio=_stream_kl(batch, AUDIO),
        clipped_share=clipped / max(units_seen, 1.0),
    )


def _stream_kl(batch: LogProbBatch, stream: int) -> float:
    """Mean k3 a token of one stream, in nats."""
    mask = batch.mask * (batch.stream_id == stream)
    return float((k3(batch.ref_logp, batch.logp.detach()) * mask).sum() / mask.sum().clamp(min=1))


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
