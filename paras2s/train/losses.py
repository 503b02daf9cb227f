"""The losses as pure functions of flat log-probs: what all algorithms of `train/algorithms` share (GRPO: ParaS2S, equation 3).

The options are `ObjectiveConfig`. `ratio_level`: "token" has one ratio a token, "step" one for all tokens of a step (ParaS2S's
joint ratio), "sequence" one for the masked mean of a sequence (GSPO). `average`: "joint" averages over units of both streams
at once, "per_stream" averages text and audio apart and adds them with their weights. `kl_form`: "sum" adds up k3 of each
token, "joint" is k3 of the unit's summed log-prob; they differ, and both estimate the same divergence.
Alphabet: N sequences, M flat tokens a sequence (every slot of every step), U units (tokens that share one ratio).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paras2s.configs.schema.align import ObjectiveConfig, SelfDistillConfig, algorithm_names
from paras2s.train.algorithm import load_algorithm
from paras2s.train.algorithms.self_distill import towards_teacher
from paras2s.types import AUDIO, TEXT

Teacher = tuple[Tensor, SelfDistillConfig]


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
class LossNormalizer:
    """Denominators of a full batch's averages, for its micro-batches: all sequences, and all units of each stream's mask."""

    sequences: float
    units: tuple[float, ...]


# Sums for the log, in this order: those of a batch in parts, or on several devices, are the sums of its parts.
SUMS = ("kl", "clipped", "units", "kl_text", "text", "kl_audio", "audio", "behind_teacher")


@dataclass(frozen=True)
class ObjectiveResult:
    """`loss` is a scalar with gradient; `sums` are detached (see `SUMS`), the rest are their means for the log."""

    loss: Tensor
    sums: tuple[float, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """Mean k3 in nats, by unit of the streams that have a weight and by token of each stream that was read; clipped units.

        A stream without a token in the batch has no entry.
        """
        sums = dict(zip(SUMS, self.sums, strict=True))
        by_stream = {f"kl_{name}": sums[f"kl_{name}"] / sums[name] for name in ("text", "audio") if sums[name]}
        units = max(sums["units"], 1.0)
        return {"kl": sums["kl"] / units, **by_stream, "clipped_share": sums["clipped"] / units}

    @property
    def behind_teacher(self) -> float:
        """The log-ratio of student and teacher on the student's samples, in nats a unit: their reverse KL, estimated."""
        sums = dict(zip(SUMS, self.sums, strict=True))
        return sums["behind_teacher"] / max(sums["units"], 1.0)


@dataclass(frozen=True)
class _Units:
    """Tokens summed to units, all [N, U]."""

    log_ratio: Tensor
    logp: Tensor
    kl: Tensor
    mask: Tensor
    # Log-ratio of teacher and student; 0 without a teacher.
    teacher: Tensor


def k3(ref_logp: Tensor, logp: Tensor) -> Tensor:
    """Return exp(ref - logp) - (ref - logp) - 1, never negative."""
    difference = ref_logp - logp
    return difference.exp() - difference - 1


def _units(batch: LogProbBatch, mask: Tensor, level: str, kl_form: str, teacher_logp: Tensor | None) -> _Units:
    teacher = torch.zeros_like(mask) if teacher_logp is None else (teacher_logp - batch.logp.detach()) * mask
    log_ratio, logp, ref = ((part * mask) for part in (batch.logp - batch.old_logp, batch.logp, batch.ref_logp))
    kl = k3(batch.ref_logp, batch.logp) * mask
    if level == "step":
        steps = int(batch.step_id.max()) + 1
        shape = (mask.shape[0], steps)

        def by_step(values: Tensor) -> Tensor:
            return torch.zeros(shape, dtype=values.dtype, device=values.device).scatter_add(1, batch.step_id, values)

        log_ratio, logp, ref, kl = by_step(log_ratio), by_step(logp), by_step(ref), by_step(kl)
        teacher = by_step(teacher)
        mask = (by_step(mask) > 0).to(mask.dtype)
    elif level == "sequence":
        mean = log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        log_ratio = mean.expand_as(mask)
    if kl_form == "joint":
        kl = k3(ref, logp) * mask
    return _Units(log_ratio, logp, kl, mask, teacher)


def _average(values: Tensor, mask: Tensor, over: str, max_steps: int, sequences: float, units: float) -> Tensor:
    if over == "sequence":
        return ((values * mask).sum(1) / mask.sum(1).clamp(min=1)).sum() / sequences
    if over == "batch":
        return (values * mask).sum() / max(units, 1.0)
    return (values * mask).sum() / (sequences * max_steps)


def _stream_masks(mask: Tensor, stream_id: Tensor, objective: ObjectiveConfig) -> list[tuple[Tensor, float]]:
    if objective.average == "joint":
        return [(mask, 1.0)]
    return [(mask * (stream_id == TEXT), objective.text_weight), (mask * (stream_id == AUDIO), objective.audio_weight)]


def loss_normalizer(mask: Tensor, step_id: Tensor, stream_id: Tensor, objective: ObjectiveConfig) -> LossNormalizer:
    """Return the denominators of a batch, all [N, M]; those of its parts add up to it."""
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
    objective: ObjectiveConfig,
    max_steps: int,
    importance: Tensor | None = None,
    normalizer: LossNormalizer | None = None,
    teacher: Teacher | None = None,
    entropy_weight: float = 0.0,
) -> ObjectiveResult:
    """Return the loss of a batch with advantages [N]; dr_grpo divides by `max_steps`.

    `importance` weighs the policy term where another engine or an older policy sampled: [N], one weight a sequence, or
    [N, M], one a token; a unit of several tokens has their product.
    `normalizer`: the batch is a part of a larger one; the losses of its parts add up to its loss.
    `teacher`: log-probs [N, M] of the policy that is given the style in words, and how to learn from them.
    `entropy_weight`: of a bonus for entropy; the mean of its term is the negative entropy, and so is that of its gradient.
    """
    algorithm, (teacher_logp, distilled) = load_algorithm(objective.loss_type), teacher or (None, None)
    assert algorithm.term is not None
    normalizer = normalizer or loss_normalizer(batch.mask, batch.step_id, batch.stream_id, objective)
    loss = torch.zeros((), dtype=batch.logp.dtype, device=batch.logp.device)
    kl_sum, clipped, units_seen, behind = 0.0, 0.0, 0.0, 0.0
    streams = _stream_masks(batch.mask, batch.stream_id, objective)
    for (mask, weight), total_units in zip(streams, normalizer.units, strict=True):
        if not weight:
            continue
        units = _units(batch, mask, objective.ratio_level, objective.kl_form, teacher_logp)
        ratio = units.log_ratio.exp()
        spread = advantages[:, None].expand_as(ratio)
        values = algorithm.term(ratio, spread, units.logp, objective)
        if distilled is not None:
            values = values + towards_teacher(ratio, units.teacher, distilled)
            behind -= (units.teacher * units.mask).sum().item()
        if entropy_weight:
            values = values + entropy_weight * ratio * units.logp.detach()
        if importance is not None:
            values = values * _unit_weights(importance, batch, mask, objective.ratio_level)
        if objective.kl_weight:
            correction = ratio if objective.kl_bias_correction else 1.0
            values = values + objective.kl_weight * units.kl * correction
        loss = loss + weight * _average(values, units.mask, algorithm.average, max_steps, normalizer.sequences, total_units)
        kl_sum += (units.kl * units.mask).sum().item()
        outside = ((ratio < 1 - objective.clip_low) & (spread < 0)) | ((ratio > 1 + objective.clip_high) & (spread > 0))
        clipped += (outside * units.mask).sum().item()
        units_seen += units.mask.sum().item()
    return ObjectiveResult(loss, (kl_sum, clipped, units_seen, *_stream_kl(batch, TEXT), *_stream_kl(batch, AUDIO), behind))


def _unit_weights(importance: Tensor, batch: LogProbBatch, mask: Tensor, level: str) -> Tensor:
    if importance.ndim == 1:
        return importance[:, None]
    if level != "step":
        return importance
    logs = importance.log() * mask
    steps = torch.zeros(len(mask), int(batch.step_id.max()) + 1, dtype=logs.dtype, device=logs.device)
    return steps.scatter_add(1, batch.step_id, logs).exp()


def truncated_importance(logp: Tensor, behaviour_logp: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Return the ratio of learner to sampler probability of each token [N, M], at most `cap`; 1 if not sampled.

    For answers of an older policy or of another engine. A weight for a full sequence would be a product of hundreds of ratios.
    """
    return ((logp.detach() - behaviour_logp) * mask).exp().clamp(max=cap)


def _stream_kl(batch: LogProbBatch, stream: int) -> tuple[float, float]:
    """Return the sum of k3 over the tokens of one stream, in nats, and their number."""
    mask = batch.mask * (batch.stream_id == stream)
    return float((k3(batch.ref_logp, batch.logp.detach()) * mask).sum()), float(mask.sum())


def pair_loss(
    batch: LogProbBatch,
    advantages: Tensor,
    objective: ObjectiveConfig,
    max_steps: int,
    importance: Tensor | None = None,
    normalizer: LossNormalizer | None = None,
    teacher: Teacher | None = None,
    entropy_weight: float = 0.0,
) -> ObjectiveResult:
    """Return the loss of an algorithm of pairs, averaged over pairs.

    Sequences 2n and 2n + 1 are a pair, with advantage 1 of the preferred and -1 of the other. An answer's log-ratio to the
    reference is summed over its tokens and both streams, by the streams' weights where `average` is per_stream.
    """
    algorithm = load_algorithm(objective.loss_type)
    assert algorithm.pair_term is not None
    normalizer = normalizer or loss_normalizer(batch.mask, batch.step_id, batch.stream_id, objective)
    summed = torch.zeros_like(advantages)
    for mask, weight in _stream_masks(batch.mask, batch.stream_id, objective):
        summed = summed + weight * ((batch.logp - batch.ref_logp) * mask).sum(1)
    margins = (advantages * summed).view(-1, 2).sum(1)
    loss = algorithm.pair_term(margins, objective).sum() / (normalizer.sequences / 2)
    text, audio = _stream_kl(batch, TEXT), _stream_kl(batch, AUDIO)
    kl, tokens = (
        sum(part for part, weight in zip(parts, objective.weights, strict=True) if weight)
        for parts in zip(text, audio, strict=True)
    )
    return ObjectiveResult(loss, (kl, 0.0, tokens, *text, *audio, 0.0))


Objective = Callable[
    [LogProbBatch, Tensor, ObjectiveConfig, int, Tensor | None, LossNormalizer | None, Teacher | None, float], ObjectiveResult
]
# By `loss_type`: all have the same inputs.
OBJECTIVES: dict[str, Objective] = {
    name: pair_loss if load_algorithm(name).pair_term else grpo_loss for name in algorithm_names()
}
