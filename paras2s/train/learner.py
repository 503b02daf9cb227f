"""The learner: one GRPO step from rollouts and rewards, and checkpoints that continue to the same weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from paras2s.configs.schema.run import AlignConfig
from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.types import Prompt, Sampling
from paras2s.policy.weights import to_arrays
from paras2s.train.batching import MicroBatch, TokenBatch, flat, micro_batches, parity, token_batch, top_groups_by_reward_std
from paras2s.train.losses import (
    SUMS,
    LossNormalizer,
    Objective,
    ObjectiveResult,
    group_advantages,
    grpo_loss,
    truncated_importance,
)
from paras2s.train.single_device import Devices
from paras2s.types import Reward, Rollout, Unscored
from paras2s.utils.io import write_json

STREAMS = ("text", "audio")
Metrics = dict[str, float | int | None]


def schedule(config: AlignConfig, step: int) -> float:
    """Factor on the learning rates: rises over `warmup_steps`, and falls linearly to a tenth at the end of the run."""
    return min(1.0, (step + 1) / config.warmup_steps) * (1 - 0.9 * step / config.steps)


def objective_of(config: AlignConfig, max_steps: int) -> Objective:
    """The objective that a config asks for."""
    return Objective(
        loss_type=config.loss_type,
        ratio_level=config.ratio_level,
        average=config.average,
        kl_form=config.kl_form,
        kl_weight=config.kl_weight,
        kl_bias_correction=config.kl_bias_correction,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        ratio_cap=config.ratio_cap,
        text_weight=config.text_weight,
        audio_weight=config.audio_weight,
        max_steps=max_steps,
    )


class Learner:
    """Holds the policy under training, its frozen reference, and the optimiser; on one device, or as one rank of several."""

    def __init__(
        self,
        policy: Policy,
        config: AlignConfig,
        max_steps: int,
        devices: Devices | None = None,
        reopen: Callable[[], Policy] | None = None,
    ) -> None:
        self.policy, self.config, self.devices, self._reopen = policy, config, devices or Devices(), reopen
        if config.checkpoint_layers:
            policy.checkpoint_layers()
        if config.lora is not None:
            policy.add_lora(config.lora.rank, config.lora.alpha)
        else:
            policy.freeze_reference()
        # Sharded, they are kept in float32.
        self._dtypes = {name: value.dtype for name, value in policy.trainable().items()}
        self.devices.spread(policy)
        self.objective = objective_of(config, max_steps)
        self.sampling = Sampling(config.temperature, config.temperature, max_steps)
        trainable = policy.trainable()
        hears = re.compile(policy.spec.adaptor_parameters)
        hearing = [p for name, p in trainable.items() if hears.fullmatch(name)]
        speaking = [p for name, p in trainable.items() if not hears.fullmatch(name)]
        groups = [{"params": speaking, "peak": config.learning_rate}]
        groups += [{"params": hearing, "peak": config.hearing_learning_rate}] if hearing else []
        self.optimiser = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.99), fused=True)
        self.next_step = 0

    def step(
        self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]
    ) -> Metrics:
        """One update on G answers to each of B queries; returns the numbers for the log. Every rank is given all of them.

        Raises:
            PolicyError: too many answers are unscored, sampler and learner have drifted apart, or loss or gradient is not
                finite; nothing was changed.
        """
        values = [[r.value if isinstance(r, Reward) else None for r in group] for group in rewards]
        advantages = group_advantages(values, self.config.scale_rewards)
        asked = sum(map(len, values))
        if advantages.unscored > self.config.max_unscored_share * asked or advantages.unscored == asked:
            reason = next((r.reason for group in rewards for r in group if isinstance(r, Unscored)), "a lone answer")
            raise PolicyError(f"step {self.next_step}: {advantages.unscored} of {asked} answers are unscored ({reason})")
        scored = [value for group in values for value in group if value is not None]
        metrics: Metrics = {
            "step": self.next_step,
            "reward_mean": float(np.mean(scored)),
            "reward_std": float(np.std(scored)),
            "zero_spread_groups": advantages.zero_spread,
            "unscored": advantages.unscored,
            "length_steps": float(np.mean([r.blocks[0].sampled.any(2).sum(1).mean() for r in rollouts])),
            "truncated": sum(reason == "length" for rollout in rollouts for reason in rollout.finish_reason),
            "staleness": float(np.mean([self.next_step - rollout.policy_version for rollout in rollouts])),
        }
        ends = np.cumsum([rollout.size for rollout in rollouts])
        groups = [advantages.values[end - rollout.size : end] for end, rollout in zip(ends, rollouts, strict=True)]
        if chosen := top_groups_by_reward_std(groups, self.config.learned_queries):
            held = micro_batches(prompts, rollouts, groups, self.devices.share(chosen), self.config.answers_at_once)
            on_policy = all(rollouts[number].policy_version == self.next_step for number in chosen)
            metrics |= self._update(held, on_policy)
        self.next_step += 1
        return metrics

    def _update(self, held: Sequence[MicroBatch], on_policy: bool) -> Metrics:
        """Gradient of this rank's portions, added up as if all ranks' were one batch, then one step of the optimiser."""
        model, dtype = self.policy.model, self.compute_dtype
        entries = [token_batch(portion.answers, dtype, self.policy.device) for portion in held]
        whole = self._whole(entries)
        tally = _Tally()
        self.optimiser.zero_grad()
        model.train()
        # Before the passes with a gradient, so that the copy's weights are never whole beside the policy's own.
        references = self._references(held)
        with self.devices.gathered(self.policy):
            for portion, known, ref_logp in zip(held, entries, references, strict=True):
                result = self._pass(portion, known, ref_logp, whole)
                tally.add(result, parity(known, result.logp))
                # Several devices average their gradients, and the loss is a sum over them.
                torch.autograd.backward(result.objective.loss * self.devices.world)
        metrics = self._checked(tally, on_policy)
        norm = self.devices.clip(model.parameters(), self.config.max_grad_norm)
        if not np.isfinite(norm):
            raise PolicyError(f"step {self.next_step}: the gradient's norm is {norm}; lower align.learning_rate")
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * schedule(self.config, self.next_step)
        self.optimiser.step()
        return metrics | {"grad_norm": norm}

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of log-probs: float64 for models in it, else float32."""
        return torch.float64 if next(self.policy.model.parameters()).dtype == torch.float64 else torch.float32

    def _references(self, held: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """The reference's log-probs [N, M] of each portion. Without a leash too: one wants to know how far the policy went."""
        with torch.no_grad(), self.devices.gathered_reference(self.policy), self.policy.reference():
            return [self._logp(portion) for portion in held]

    def _logp(self, portion: MicroBatch) -> torch.Tensor:
        return flat(self.policy.logprobs(portion.prompts, portion.answers, self.sampling)).to(self.compute_dtype)

    def _pass(self, portion: MicroBatch, known: TokenBatch, ref_logp: torch.Tensor, whole: LossNormalizer) -> _Passed:
        logp = self._logp(portion)
        old_logp, importance = known.behaviour_logp, None
        if self.config.importance_cap is not None:
            old_logp = logp.detach()
            importance = truncated_importance(logp, known.behaviour_logp, known.mask, self.config.importance_cap)
        advantages = torch.tensor(portion.advantages, dtype=logp.dtype, device=logp.device)
        batch = known.batch(logp, ref_logp, old_logp)
        return _Passed(grpo_loss(batch, advantages, self.objective, importance, whole), logp.detach())

    def _whole(self, entries: Sequence[TokenBatch]) -> LossNormalizer:
        parts = [one.whole(self.objective) for one in entries]
        streams = 1 if self.objective.average == "joint" else 2
        added = np.zeros(1 + streams)
        for part in parts:
            added += np.array([part.sequences, *part.units])
        total = self.devices.total(added)
        return LossNormalizer(total[0], tuple(total[1:]))

    def _checked(self, tally: _Tally, on_policy: bool) -> Metrics:
        """The step's numbers over all portions and devices.

        Raises:
            PolicyError: the loss is not finite, or sampler and learner disagree about what the same policy thinks.
        """
        sums, largest = self.devices.total(tally.sums), self.devices.largest(tally.largest)
        loss, differences = float(sums[0]), sums[1 + len(SUMS) :]
        if not np.isfinite(loss):
            raise PolicyError(f"step {self.next_step}: the loss is {loss}; lower align.learning_rate")
        metrics: Metrics = {"loss": loss, **ObjectiveResult(torch.tensor(loss), tuple(sums[1 : 1 + len(SUMS)])).metrics}
        for number, stream in enumerate(STREAMS):
            apart, tokens = differences[2 * number : 2 * number + 2]
            if not tokens:
                continue
            metrics[f"parity_{stream}_max"], metrics[f"parity_{stream}_mean"] = float(largest[number]), float(apart / tokens)
            if on_policy and apart / tokens > self.config.max_drift:
                raise PolicyError(
                    f"step {self.next_step}: in the {stream} stream the sampler's log-probs are {apart / tokens:.3f} nats a "
                    f"token from the learner's, more than align.max_drift = {self.config.max_drift}: they are not the same "
                    "policy; sample with the learner's precision, or raise the bound and set align.importance_cap"
                )
        return metrics

    # -- weights and files --------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, np.ndarray]:
        """What was trained, for the rollout workers: all weights, or the adapters alone, in the precision they came in.

        Every rank must ask; rank 0 has the answer. One tensor is whole at a time.
        """
        found: dict[str, np.ndarray] = {}
        for name, value in self.policy.trainable().items():
            whole = self.devices.whole(value.detach())
            if self.devices.rank == 0:
                found |= to_arrays({name: whole.to(self._dtypes[name])})
        return found

    def _first(self) -> Policy:
        """The policy that training began with, with adapters where it learns them."""
        assert self._reopen is not None
        policy = self._reopen()
        if self.config.lora is not None:
            policy.add_lora(self.config.lora.rank, self.config.lora.alpha)
        return policy

    def save(self, folder: Path) -> None:
        """Write a checkpoint (see `checkpoint.save_training`)."""
        self.devices.save(folder, self.policy, self.optimiser, self.next_step)

    def restore(self, folder: Path) -> None:
        """Continue from a checkpoint; the reference stays the policy this learner was made with."""
        self.next_step = self.devices.restore(folder, self.policy, self.optimiser)

    def export(self, folder: Path) -> None:
        """Write the policy itself, adapters folded in, under the released names. The last thing a learner does."""
        self.devices.export(folder, self.policy, self._first)
        if self.devices.rank == 0:
            write_json(folder / "trainer.json", {"next_step": self.next_step})


@dataclass(frozen=True)
class _Passed:
    """What a forward pass gives: the loss, and the log-probs [N, M] it is of."""

    objective: ObjectiveResult
    logp: torch.Tensor


class _Tally:
    """Sums over a step's portions: the loss, the objective's `SUMS`, and sampler against learner by stream."""

    def __init__(self) -> None:
        self.sums = np.zeros(1 + len(SUMS) + 2 * len(STREAMS))
        self.largest = np.zeros(len(STREAMS))

    def add(self, passed: _Passed, apart: dict[str, tuple[float, float, float]]) -> None:
        self.sums[: 1 + len(SUMS)] += [passed.objective.loss.item(), *passed.objective.sums]
        for number, stream in enumerate(STREAMS):
            if stream in apart:
                largest, summed, tokens = apart[stream]
                self.largest[number] = max(self.largest[number], largest)
                start = 1 + len(SUMS) + 2 * number
                self.sums[start : start + 2] += [summed, tokens]
