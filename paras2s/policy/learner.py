"""The learner: one GRPO step from rollouts and rewards, and checkpoints that continue to the same weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paras2s.config import AlignConfig
from paras2s.errors import PolicyError
from paras2s.policy.checkpoint import restore_training, save_training
from paras2s.policy.dual_policy import DualStreamPolicy
from paras2s.policy.interface import Prompt, Sampling
from paras2s.policy.objective import (
    AUDIO,
    TEXT,
    LogProbBatch,
    Objective,
    ObjectiveResult,
    group_advantages,
    grpo_loss,
)
from paras2s.records import Block, Reward, Rollout, Unscored


def select_answers(block: Block, keep: Sequence[bool]) -> Block:
    """The block with only the answers that have an advantage."""
    rows = np.asarray(keep, dtype=bool)
    return Block(block.slots, block.tokens[rows], block.sampled[rows], block.behaviour_logp[rows])


def flatten(blocks: Sequence[Block], logp: Tensor, ref_logp: Tensor) -> LogProbBatch:
    """Blocks and log-probs [N, T, S] as flat entries [N, T*S]; the mask is what the sampler wrote."""
    rows, steps, slots = logp.shape
    mask = torch.zeros(logp.shape, dtype=logp.dtype)
    old = torch.zeros(logp.shape, dtype=logp.dtype)
    row = 0
    for block in blocks:
        count, length = block.tokens.shape[:2]
        mask[row : row + count, :length] = torch.from_numpy(block.sampled).to(logp.dtype)
        old[row : row + count, :length] = torch.from_numpy(block.behaviour_logp).to(logp.dtype)
        row += count
    step_id = torch.arange(steps)[:, None].expand(steps, slots).reshape(-1).expand(rows, -1)
    stream_id = torch.tensor([TEXT] + [AUDIO] * (slots - 1)).expand(steps, slots).reshape(-1).expand(rows, -1)
    return LogProbBatch(
        logp=logp.reshape(rows, -1),
        old_logp=old.reshape(rows, -1),
        ref_logp=ref_logp.reshape(rows, -1),
        mask=mask.reshape(rows, -1),
        step_id=step_id,
        stream_id=stream_id,
    )


def parity(batch: LogProbBatch) -> dict[str, float | None]:
    """How far the sampler's log-probs are from the learner's, per stream; a correlation needs some spread."""
    found: dict[str, float | None] = {}
    for name, stream in (("text", TEXT), ("audio", AUDIO)):
        chosen = (batch.mask > 0) & (batch.stream_id == stream)
        sampler, learner = batch.old_logp[chosen], batch.logp.detach()[chosen]
        if not len(sampler):
            continue
        found[f"parity_{name}_max"] = float((sampler - learner).abs().max())
        spread = len(sampler) > 2 and float(sampler.std()) > 0
        found[f"parity_{name}_correlation"] = float(torch.corrcoef(torch.stack([sampler, learner]))[0, 1]) if spread else None
    return found


def widest_groups(advantages: Sequence[Sequence[float | None]], count: int) -> list[int]:
    """The `count` groups whose advantages differ most, in their order; the rest would move little (after DAPO, section 3.2).

    A group without two advantages has nothing to say and is never among them.
    """
    spread = {}
    for number, group in enumerate(advantages):
        known = [value for value in group if value is not None]
        if len(known) > 1:
            spread[number] = float(np.std(known))
    return sorted(sorted(spread, key=lambda number: -spread[number])[:count])


def schedule(config: AlignConfig, step: int) -> float:
    """Factor on the learning rates: rises over `warmup_steps`, and falls linearly to a tenth at the end of the run."""
    return min(1.0, (step + 1) / config.warmup_steps) * (1 - 0.9 * step / config.steps)


class Learner:
    """Holds the policy under training, its frozen reference, and the optimiser."""

    def __init__(self, policy: DualStreamPolicy, config: AlignConfig, max_steps: int) -> None:
        self.policy, self.config = policy, config
        policy.freeze_reference()
        self.objective = Objective(
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
        self.sampling = Sampling(config.temperature, config.temperature, max_steps)
        trainable = [(name, p) for name, p in policy.model.named_parameters() if p.requires_grad]
        hears = re.compile(policy.spec.hearing_parameters)
        hearing = [p for name, p in trainable if hears.fullmatch(name)]
        speaking = [p for name, p in trainable if not hears.fullmatch(name)]
        groups = [{"params": speaking, "peak": config.learning_rate}]
        groups += [{"params": hearing, "peak": config.hearing_learning_rate}] if hearing else []
        self.optimiser = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.99), fused=True)
        self.next_step = 0

    def step(
        self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]
    ) -> dict[str, float | int | None]:
        """One update on G answers to each of B queries; returns the numbers for the log.

        Raises:
            PolicyError: too many answers are unscored, or loss or gradient is not finite; nothing was changed.
        """
        values = [[r.value if isinstance(r, Reward) else None for r in group] for group in rewards]
        advantages = group_advantages(values, self.config.scale_rewards)
        asked = sum(map(len, values))
        if advantages.unscored > self.config.max_unscored_share * asked or advantages.unscored == asked:
            reason = next((r.reason for group in rewards for r in group if isinstance(r, Unscored)), "a lone answer")
            raise PolicyError(f"step {self.next_step}: {advantages.unscored} of {asked} answers are unscored ({reason})")
        scored = [value for group in values for value in group if value is not None]
        metrics: dict[str, float | int | None] = {
            "step": self.next_step,
            "reward_mean": float(np.mean(scored)),
            "reward_std": float(np.std(scored)),
            "zero_spread_groups": advantages.zero_spread,
            "unscored": advantages.unscored,
            "length_steps": float(np.mean([r.blocks[0].sampled.any(2).sum(1).mean() for r in rollouts])),
            "truncated": sum(reason == "length" for rollout in rollouts for reason in rollout.finish_reason),
        }
        result = self._update(prompts, rollouts, advantages.values, metrics)
        if result is not None:
            metrics |= {
                "loss": result.loss.item(),
                "kl": result.kl,
                "kl_text": result.kl_text,
                "kl_audio": result.kl_audio,
                "clipped_share": result.clipped_share,
            }
        self.next_step += 1
        return metrics

    def _update(
        self,
        prompts: Sequence[Prompt],
        rollouts: Sequence[Rollout],
        advantages: Sequence[float | None],
        metrics: dict[str, float | int | None],
    ) -> ObjectiveResult | None:
        ends = np.cumsum([rollout.size for rollout in rollouts])
        groups = [advantages[end - rollout.size : end] for end, rollout in zip(ends, rollouts, strict=True)]
        kept_prompts, blocks, kept_advantages = [], [], []
        for number in widest_groups(groups, self.config.learned_queries):
            kept_prompts.append(prompts[number])
            blocks.append(select_answers(rollouts[number].blocks[0], [value is not None for value in groups[number]]))
            kept_advantages += [value for value in groups[number] if value is not None]
        if not blocks:
            return None
        self.policy.model.train()
        logp = self.policy.logprobs(kept_prompts, blocks, self.sampling)
        with torch.no_grad(), self.policy.reference():
            # Without a leash too: how far the policy went is what one wants to know then.
            ref_logp = self.policy.logprobs(kept_prompts, blocks, self.sampling)
        batch = flatten(blocks, logp, ref_logp)
        metrics |= parity(batch)
        importance = None
        if self.config.importance_cap is not None:
            drift = ((batch.logp.detach() - batch.old_logp) * batch.mask).sum(1)
            importance = drift.exp().clamp(max=self.config.importance_cap)
        result = grpo_loss(batch, torch.tensor(kept_advantages, dtype=logp.dtype), self.objective, importance)
        if not torch.isfinite(result.loss):
            raise PolicyError(f"step {self.next_step}: the loss is {result.loss.item()}; lower align.learning_rate")
        self.optimiser.zero_grad()
        torch.autograd.backward(result.loss)
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.config.max_grad_norm)
        if not torch.isfinite(norm):
            raise PolicyError(f"step {self.next_step}: the gradient's norm is {norm.item()}; lower align.learning_rate")
        metrics["grad_norm"] = float(norm)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * schedule(self.config, self.next_step)
        self.optimiser.step()
        return result

    def weights(self) -> dict[str, np.ndarray]:
        """The present weights, for the rollout workers."""
        return {name: value.detach().numpy().copy() for name, value in self.policy.model.state_dict().items()}

    def save(self, folder: Path) -> None:
        """Write a checkpoint (see `checkpoint.save_training`)."""
        save_training(folder, self.policy, self.optimiser, self.next_step)

    def restore(self, folder: Path) -> None:
        """Continue from a checkpoint; the reference stays the policy this learner was made with."""
        self.next_step = restore_training(folder, self.policy, self.optimiser)
