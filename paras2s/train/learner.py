"""The learner: one update from rollouts and rewards, and checkpoints that continue to the same weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from paras2s.configs.schema.align import AlignConfig, AnchorConfig
from paras2s.errors import PolicyError
from paras2s.policy.base import Policy, flat
from paras2s.policy.types import Prompt, Sampling, until_last_of
from paras2s.policy.weights import to_arrays
from paras2s.train.advantages import Values, advantages_of
from paras2s.train.algorithm import rule_of
from paras2s.train.anchor import add_anchor, anchor_metrics, next_rl_share
from paras2s.train.averaged_teacher import AveragedTeacher
from paras2s.train.batching import MicroBatch, TokenBatch, micro_batches, parity, token_batch, top_groups_by_reward_std
from paras2s.train.checkpoint import Position, check_base, read_position, training_bytes, write_position
from paras2s.train.losses import OBJECTIVES, SUMS, LossNormalizer, ObjectiveResult, truncated_importance
from paras2s.train.passes import add_gradients, passes_at_once, side_by_side
from paras2s.train.sft import Example
from paras2s.train.single_device import Devices
from paras2s.types import AUDIO, TEXT, Reward, Rollout, Unscored

STREAMS = ("text", "audio")
Metrics = dict[str, float | int | None]


def schedule(config: AlignConfig, step: int) -> float:
    """Return the factor on learning rates: it rises over `warmup_steps`, then falls linearly to a tenth at the run's end."""
    return min(1.0, (step + 1) / config.optimizer.warmup_steps) * (1 - 0.9 * step / config.steps)


def prepare(policy: Policy, config: AlignConfig) -> dict[str, torch.dtype]:
    """Give a policy what its training needs: adapters, or a frozen reference; what learns is float32 from now on.

    Returns the precision that rollout workers hold it in.
    """
    if config.optimizer.gradient_checkpointing:
        policy.enable_gradient_checkpointing()
    if config.lora is not None:
        policy.add_lora(config.lora.rank, config.lora.alpha)
    else:
        policy.freeze_reference()
    dtypes = {name: value.dtype for name, value in policy.trainable().items()}
    policy.widen_trainable()
    return dtypes


class Learner:
    """The policy under training, its frozen reference and the optimiser; on one device, or as one rank of several."""

    def __init__(
        self,
        policy: Policy,
        config: AlignConfig,
        max_steps: int,
        devices: Devices | None = None,
        reopen: Callable[[], Policy] | None = None,
        base: str | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.policy, self.config, self.devices, self._reopen = policy, config, devices or Devices(), reopen
        # The fingerprint of the weights that training began with.
        self.base = base
        # Of the sources of reward, by name.
        self.source_weights = weights
        self._dtypes = prepare(policy, config)
        self.devices.spread(policy)
        self.sampling = Sampling(*config.sampling.temperatures, max_steps)
        trainable = policy.trainable()
        in_adaptor = re.compile(policy.spec.adaptor_parameters)
        adaptor = [p for name, p in trainable.items() if in_adaptor.fullmatch(name)]
        decoder = [p for name, p in trainable.items() if not in_adaptor.fullmatch(name)]
        groups = [{"params": decoder, "peak": config.optimizer.lr}]
        groups += [{"params": adaptor, "peak": config.optimizer.adaptor_lr}] if adaptor else []
        self.optimiser = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.99), fused=True)
        self.next_step = 0
        average = None if config.distilled is None else config.distilled.average
        self.teacher = None if average is None else AveragedTeacher(trainable, average)
        # Of the adaptive anchor, in the last update.
        self.rl_share: float | None = None
        # Of the last step's answers [B, G]; None for an answer from which nothing was learned.
        self.advantages: Values = []

    def step(
        self,
        prompts: Sequence[Prompt],
        rollouts: Sequence[Rollout],
        rewards: Sequence[Sequence[Reward | Unscored]],
        anchored: Sequence[Example] = (),
        styles: Sequence[str] = (),
    ) -> Metrics:
        """Make one update on G answers to each of B queries; return its metrics. Every rank gets all answers.

        `anchored` are the demonstrations of `align.objective.anchor` in this update; every rank gets all of them, too.
        `styles` [B] are the questions' styles in words, where self-distillation tells its teacher.

        Raises:
            PolicyError: too many answers are unscored, sampler and learner have drifted apart, or loss or gradient is not
                finite; nothing was changed.
        """
        if self.config.distilled is not None and not styles:
            raise PolicyError("align.self_distill: the styles of the questions are not given")
        rule, flat_std = rule_of(self.config.objective), self.config.sampling.flat_std
        advantages = advantages_of(rewards, rule, self.source_weights, flat_std)
        count = sum(map(len, rewards))
        if advantages.unscored > self.config.max_unscored_share * count or advantages.unscored == count:
            reason = next((r.reason for group in rewards for r in group if isinstance(r, Unscored)), "a lone answer")
            raise PolicyError(f"step {self.next_step}: {advantages.unscored} of {count} answers are unscored ({reason})")
        scored = [reward.value for group in rewards for reward in group if isinstance(reward, Reward)]
        metrics: Metrics = {
            "step": self.next_step,
            "reward_mean": float(np.mean(scored)),
            "reward_std": float(np.std(scored)),
            "zero_spread_groups": advantages.zero_spread,
            "unscored": advantages.unscored,
            "length_steps": float(np.mean([r.blocks[0].sampled.any(2).sum(1).mean() for r in rollouts])),
            "truncated": sum(reason == "length" for rollout in rollouts for reason in rollout.finish_reason),
            "staleness": float(np.mean([self.next_step - rollout.policy_version for rollout in rollouts])),
            **answer_metrics(rollouts, rewards),
        }
        anchor, rl_share = self._anchor_of(rewards)
        metrics |= {} if rl_share is None else {"rl_share": rl_share}
        chosen = top_groups_by_reward_std(advantages.compared, self.config.objective.groups_per_update)
        self.advantages = [row if group in chosen else [None] * len(row) for group, row in enumerate(advantages.groups)]
        if chosen:
            own, size = self.devices.share(chosen), self.config.optimizer.micro_batch_size
            at_once = passes_at_once(self.policy, self.devices.sharded, size)
            if at_once > 1:
                counts = [sum(value is not None for value in advantages.groups[number]) for number in own]
                # Groups stay together: their prompt is read once, and pairs are pairs.
                size = max(-(-sum(counts) // at_once), *counts)
            styled = list(map(self.policy.with_style, prompts, styles))
            # Behind a text of 2 s, the other 28 s of an answer would be most of the update, and move nothing.
            read = [replace(rollout, blocks=until_last_of(rollout.blocks, self._streams_read)) for rollout in rollouts]
            batches = micro_batches(prompts, read, advantages.groups, own, size, styled)
            # One answer, for passes that are made only so that other ranks need not wait for this one.
            padding = micro_batches(prompts, read, advantages.groups, chosen[:1], 1, styled)[:1]
            padding *= self.devices.passes(len(batches)) - len(batches)
            on_policy = all(rollouts[number].policy_version == self.next_step for number in chosen)
            metrics |= self._update(batches, padding, (anchor, anchored), on_policy, at_once, rl_share)
        self.next_step += 1
        self.rl_share = rl_share
        return metrics

    @property
    def _streams_read(self) -> list[int]:
        """The streams that the next update reads: those that have a weight.

        Where an evaluation is due it reads both, so that the log has both KLs, and sampler and learner are compared in both.
        """
        if self.config.evaluates_after(self.next_step):
            return [TEXT, AUDIO]
        return [stream for stream, weight in zip((TEXT, AUDIO), self.config.objective.weights, strict=True) if weight]

    def _anchor_of(self, rewards: Sequence[Sequence[Reward | Unscored]]) -> tuple[AnchorConfig | None, float | None]:
        """Return the anchor with its weight in this update, and the share of the policy gradient; None: it has no share."""
        anchor = self.config.objective.anchor
        if anchor is None or anchor.adaptive is None or not anchor.weight:
            return anchor, None
        share = next_rl_share(anchor.adaptive, rewards, self.rl_share)
        return anchor.times(1 - share), share

    def _update(
        self,
        batches: Sequence[MicroBatch],
        padding: Sequence[MicroBatch],
        anchored: tuple[AnchorConfig | None, Sequence[Example]],
        on_policy: bool,
        at_once: int,
        rl_share: float | None,
    ) -> Metrics:
        """Add up the gradient of this rank's micro-batches as if all ranks' were one batch, then step the optimiser.

        `padding` goes through as well, and adds nothing. `at_once` passes run at a time. `rl_share` weighs the policy's loss.
        """
        model, dtype = self.policy.model, self.compute_dtype
        tokens = [token_batch(batch.answers, dtype, self.policy.device).only(self._streams_read) for batch in batches]
        normalizer = self._normalizer(tokens)
        tally = _Tally()
        self.optimiser.zero_grad()
        model.train()
        # Before the passes with a gradient, so that the full weights of copy and policy are never in memory together.
        references = self._reference_logps([*batches, *padding], at_once)
        teachers: Sequence[torch.Tensor | None] = [None] * len(batches)
        if self.config.distilled is not None:
            styled = [replace(batch, prompts=batch.styled) for batch in (*batches, *padding)]
            teachers = self._teacher_logps(styled, at_once)[: len(batches)]

        def pass_of(
            batch: MicroBatch, known: TokenBatch, ref_logp: torch.Tensor, teacher_logp: torch.Tensor | None
        ) -> tuple[torch.Tensor, _Forward]:
            result = self._forward(batch, known, ref_logp, teacher_logp, normalizer)
            # Several devices average their gradients, and the loss is a sum over them.
            factor = self.devices.world * (1.0 if rl_share is None else rl_share)
            return result.objective.loss * factor, result.detached()

        known_references = zip(batches, tokens, references[: len(batches)], teachers, strict=True)
        passes = [partial(pass_of, *known) for known in known_references]
        with self.devices.gathered(self.policy):
            for known, result in zip(tokens, add_gradients(passes, list(model.parameters()), at_once), strict=True):
                tally.add(result, parity(known, result.logp))
            for batch in padding:
                torch.autograd.backward(0.0 * self._logp(batch).sum())
            anchor_losses = self._add_anchor(*anchored)
        metrics = self._checked(tally, on_policy) | self._anchor_metrics(anchored[0], anchor_losses)
        norm = self.devices.clip(model.parameters(), self.config.optimizer.max_grad_norm)
        self._step_optimiser(norm)
        return metrics | {"grad_norm": norm}

    def _step_optimiser(self, norm: float) -> None:
        """Step by the gradient, of `norm` before clipping. Raises PolicyError: it is not finite; nothing was changed."""
        if not np.isfinite(norm):
            raise PolicyError(f"step {self.next_step}: the gradient's norm is {norm}; lower align.optimizer.lr")
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * schedule(self.config, self.next_step)
        self.optimiser.step()
        if self.teacher is not None:
            self.teacher.follow()

    def _add_anchor(self, anchor: AnchorConfig | None, anchored: Sequence[Example]) -> np.ndarray | None:
        """Add the anchor's gradient, where this update has one; return this rank's part of its losses."""
        if anchor is None or not anchored:
            return None
        return add_anchor(self.policy, self.devices, anchor, anchored, self.config.optimizer.micro_batch_size)

    def _anchor_metrics(self, anchor: AnchorConfig | None, losses: np.ndarray | None) -> Metrics:
        """Return the anchor's metrics over all ranks. Raises PolicyError: its loss is not finite."""
        if anchor is None or losses is None:
            return {}
        metrics = anchor_metrics(anchor, self.devices.total(losses))
        if not np.isfinite(metrics["anchor_loss"]):
            raise PolicyError(f"step {self.next_step}: the anchor's loss is {metrics['anchor_loss']}; lower align.optimizer.lr")
        return {**metrics}

    @property
    def compute_dtype(self) -> torch.dtype:
        """Precision of log-probs: float64 for models in it, else float32."""
        return torch.float64 if next(self.policy.model.parameters()).dtype == torch.float64 else torch.float32

    def _reference_logps(self, batches: Sequence[MicroBatch], at_once: int) -> list[torch.Tensor]:
        """Return the reference's log-probs [N, M] of each micro-batch; also at kl_weight 0, for the log."""
        fixed = torch.no_grad()(self._logp)
        with torch.no_grad(), self.devices.gathered_reference(self.policy), self.policy.reference():
            return side_by_side([partial(fixed, batch) for batch in batches], at_once)

    def _teacher_logps(self, batches: Sequence[MicroBatch], at_once: int) -> list[torch.Tensor]:
        """Return the teacher's log-probs [N, M] of each micro-batch, whose prompts give the style: frozen, or averaged."""
        if self.teacher is None:
            return self._reference_logps(batches, at_once)
        fixed = torch.no_grad()(self._logp)
        with torch.no_grad(), self.teacher.in_place():
            return side_by_side([partial(fixed, batch) for batch in batches], at_once)

    def _logp(self, batch: MicroBatch) -> torch.Tensor:
        return flat(self.policy.logprobs(batch.prompts, batch.answers, self.sampling)).to(self.compute_dtype)

    def _forward(
        self,
        batch: MicroBatch,
        known: TokenBatch,
        ref_logp: torch.Tensor,
        teacher_logp: torch.Tensor | None,
        normalizer: LossNormalizer,
    ) -> _Forward:
        logp = self._logp(batch)
        objective, old_logp, importance = self.config.objective, known.behaviour_logp, None
        if objective.tis_cap is not None:
            old_logp = logp.detach()
            importance = truncated_importance(logp, known.behaviour_logp, known.mask, objective.tis_cap)
        advantages = torch.tensor(batch.advantages, dtype=logp.dtype, device=logp.device)
        logps = known.batch(logp, ref_logp, old_logp)
        loss_of, distilled = OBJECTIVES[objective.loss_type], self.config.distilled
        teacher = None if teacher_logp is None or distilled is None else (teacher_logp, distilled)
        max_steps, entropy_weight = self.sampling.max_steps, self.config.sampling.entropy_weight
        loss = loss_of(logps, advantages, objective, max_steps, importance, normalizer, teacher, entropy_weight)
        return _Forward(loss, logp.detach())

    def _normalizer(self, tokens: Sequence[TokenBatch]) -> LossNormalizer:
        parts = [batch.normalizer(self.config.objective) for batch in tokens]
        streams = 1 if self.config.objective.average == "joint" else 2
        added = np.zeros(1 + streams)
        for part in parts:
            added += np.array([part.sequences, *part.units])
        total = self.devices.total(added)
        return LossNormalizer(total[0], tuple(total[1:]))

    def _checked(self, tally: _Tally, on_policy: bool) -> Metrics:
        """Return the step's metrics over all micro-batches and devices.

        Raises:
            PolicyError: the loss is not finite, or sampler and learner give other log-probs under the same weights.
        """
        sums, largest = self.devices.total(tally.sums), self.devices.largest(tally.largest)
        loss, differences = float(sums[0]), sums[1 + len(SUMS) :]
        if not np.isfinite(loss):
            raise PolicyError(f"step {self.next_step}: the loss is {loss}; lower align.optimizer.lr")
        result = ObjectiveResult(torch.tensor(loss), tuple(sums[1 : 1 + len(SUMS)]))
        metrics: Metrics = {"loss": loss, **result.metrics}
        if self.config.distilled is not None:
            metrics["behind_teacher"] = result.behind_teacher
        for number, stream in enumerate(STREAMS):
            apart, tokens = differences[2 * number : 2 * number + 2]
            if not tokens:
                continue
            metrics[f"parity_{stream}_max"], metrics[f"parity_{stream}_mean"] = float(largest[number]), float(apart / tokens)
            if on_policy and apart / tokens > self.config.objective.max_logprob_gap:
                raise PolicyError(
                    f"step {self.next_step}: in the {stream} stream the sampler's log-probs are {apart / tokens:.3f} nats a "
                    f"token from the learner's, more than align.objective.max_logprob_gap = "
                    f"{self.config.objective.max_logprob_gap}: they are not the same policy; sample with the learner's "
                    "precision, or raise the bound and set align.objective.tis_cap"
                )
        return metrics

    # -- weights and files --------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, np.ndarray]:
        """Return the trained weights, or the adapters, in their loaded precision: called on every rank, from rank 0."""
        arrays: dict[str, np.ndarray] = {}
        trained = {name: value.detach() for name, value in self.policy.trainable().items()}
        for name, full in self.devices.full_tensors(trained):
            if self.devices.rank == 0:
                arrays |= to_arrays({name: full.to(self._dtypes[name])})
        return arrays

    def _initial_policy(self) -> Policy:
        """Return the policy that training began with, with adapters where they are trained."""
        assert self._reopen is not None
        policy = self._reopen()
        if self.config.lora is not None:
            policy.add_lora(self.config.lora.rank, self.config.lora.alpha)
        return policy

    @property
    def checkpoint_bytes(self) -> int:
        """Size of a checkpoint."""
        return training_bytes(self.policy) + (0 if self.teacher is None else self.teacher.bytes)

    def save(self, folder: Path) -> None:
        """Write a checkpoint (see `checkpoint.save_training`)."""
        # First: a folder is complete once all else is written.
        if self.teacher is not None:
            self.teacher.save(folder)
        self.devices.save(folder, self.policy, self.optimiser, Position(self.next_step, self.base, self.rl_share))

    def restore(self, folder: Path) -> None:
        """Continue from a checkpoint with the same reference. Raises PolicyError: it does not fit, or has other origins."""
        check_base(folder, self.base)
        self.next_step = self.devices.restore(folder, self.policy, self.optimiser)
        self.rl_share = read_position(folder).rl_share
        if self.teacher is not None:
            self.teacher.restore(folder)

    def export(self, folder: Path) -> None:
        """Write the policy, adapters merged, under the released names. The last thing a learner does."""
        self.devices.export(folder, self.policy, self._initial_policy)
        if self.devices.rank == 0:
            write_position(folder, Position(self.next_step, self.base))


@dataclass(frozen=True)
class _Forward:
    """Result of a forward pass: the loss, and the log-probs [N, M] it was computed from."""

    objective: ObjectiveResult
    logp: torch.Tensor

    def detached(self) -> _Forward:
        """Return the same without the graph that its loss holds."""
        return replace(self, objective=replace(self.objective, loss=self.objective.loss.detach()))


class _Tally:
    """Sums over a step's micro-batches: the loss, the objective's `SUMS`, and sampler against learner by stream."""

    def __init__(self) -> None:
        self.sums = np.zeros(1 + len(SUMS) + 2 * len(STREAMS))
        self.largest = np.zeros(len(STREAMS))

    def add(self, result: _Forward, gaps: dict[str, tuple[float, float, float]]) -> None:
        self.sums[: 1 + len(SUMS)] += [result.objective.loss.item(), *result.objective.sums]
        for number, stream in enumerate(STREAMS):
            if stream in gaps:
                largest, summed, tokens = gaps[stream]
                self.largest[number] = max(self.largest[number], largest)
                start = 1 + len(SUMS) + 2 * number
                self.sums[start : start + 2] += [summed, tokens]


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
