"""Learning from recorded preferences: DPO (Rafailov et al., 2023) and KTO (Ethayarajh et al., 2024), as TRL computes them.

An answer's log-ratio is log p - log p of the reference, summed over its tokens, those of each stream by its weight. DPO is
-log sigmoid(beta (log-ratio of the chosen answer - log-ratio of the rejected one)), the mean over pairs. KTO is
1 - sigmoid(beta (log-ratio - z)) of a good answer and 1 - sigmoid(beta (z - log-ratio)) of a bad one, by their weights, the
mean over answers; z is the mean log-ratio of answers to other questions, at least 0: each question of an update with the
answer of the row before.
Alphabet: N answers, M flat tokens an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from paras2s.configs.schema.align import PreferencesConfig
from paras2s.errors import PolicyError
from paras2s.policy.types import Sampling
from paras2s.train.anchor import add_anchor, anchor_metrics
from paras2s.train.batching import MicroBatch, TokenBatch, token_batch
from paras2s.train.learner import STREAMS, Learner, Metrics
from paras2s.train.passes import add_gradients, passes_at_once, side_by_side
from paras2s.train.sft import Example
from paras2s.types import AUDIO, TEXT


@dataclass(frozen=True)
class PreferenceBatch:
    """The recorded answers of an update [N] with their prompts, and whether each is good.

    Of `pairs`, answer 2n is the chosen and 2n + 1 the rejected one, and DPO learns from them; else KTO does.
    """

    examples: tuple[Example, ...]
    good: tuple[bool, ...]
    pairs: bool

    def part(self, rows: Sequence[int], shift: int = 0) -> MicroBatch:
        """Return the input of a pass: the prompts of these rows, and the answers of the rows `shift` before them."""
        answers = tuple(self.examples[row - shift].target for row in rows)
        return MicroBatch(
            tuple(self.examples[row].prompt for row in rows), answers, tuple(1.0 if self.good[row] else -1.0 for row in rows)
        )


def stream_log_ratios(known: TokenBatch, logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Return each answer's log-ratio to the reference, summed over the tokens of text and of audio, [N, 2]."""
    ratio = (logp - ref_logp) * known.mask
    return torch.stack([(ratio * (known.stream_id == stream)).sum(1) for stream in (TEXT, AUDIO)], 1)


def dpo_losses(log_ratios: Tensor, beta: float) -> Tensor:
    """Return the loss of each pair [N / 2], from log-ratios [N] of chosen and rejected answers in turn."""
    return -logsigmoid(beta * (log_ratios[0::2] - log_ratios[1::2]))


def kto_losses(log_ratios: Tensor, good: Tensor, z: float, config: PreferencesConfig) -> Tensor:
    """Return the loss of each answer [N]; `good` [N] is bool, `z` the reference point of the update."""
    gain = torch.sigmoid(config.beta * torch.where(good, log_ratios - z, z - log_ratios))
    weights = gain.new_tensor([config.undesirable_weight, config.desirable_weight])
    return weights[good.long()] * (1 - gain)


class PreferenceLearner(Learner):
    """The learner of recorded answers. Their log-probs are at temperature 1, as a warm-up's: another model may have spoken."""

    @property
    def _preferences(self) -> PreferencesConfig:
        assert self.config.preferences is not None
        return self.config.preferences

    def learn(self, batch: PreferenceBatch, anchored: Sequence[Example] = ()) -> Metrics:
        """Make one update on recorded answers, all to every rank; return its metrics. Raises PolicyError: not finite."""
        self.sampling = Sampling()
        unit, count = 2 if batch.pairs else 1, len(batch.examples)
        own, size = self.devices.share(range(0, count, unit)), self.config.optimizer.micro_batch_size
        at_once = passes_at_once(self.policy, self.devices.sharded, size)
        # A rank may have no answers, and a pass has at least one pair.
        in_pass = max(1, size // unit if size else -(-len(own) // at_once))
        rows = [[row for first in own[at : at + in_pass] for row in range(first, first + unit)]
                for at in range(0, len(own), in_pass)]  # fmt: skip
        # Passes that are made only so that other ranks need not wait for this one.
        passes = [*rows, *[list(range(unit))] * (self.devices.passes(len(rows)) - len(rows))]
        parts = [batch.part(part) for part in passes]
        others = [] if batch.pairs else [batch.part(part, shift=1) for part in passes]
        self.optimiser.zero_grad()
        self.policy.model.train()
        references = self._reference_logps([*parts, *others], at_once)
        with self.devices.gathered(self.policy):
            z = self._reference_point(others, references[len(parts) :], len(rows), count, at_once) if others else 0.0
            compute = partial(self._pass_of, pairs=batch.pairs, z=z, units=count // unit)
            learned = list(self.policy.model.parameters())
            known = zip(parts[: len(rows)], references, strict=False)
            results = add_gradients([partial(compute, part, ref_logp) for part, ref_logp in known], learned, at_once)
            sums = sum(results, np.zeros(8))
            for part in parts[len(rows) :]:
                torch.autograd.backward(0.0 * self._logp(part).sum())
            held = None
            if (anchor := self.config.objective.anchor) is not None and anchored:
                held = add_anchor(self.policy, self.devices, anchor, anchored, size)
        metrics = self._metrics_of(self.devices.total(sums), count // unit)
        if anchor is not None and held is not None:
            metrics |= anchor_metrics(anchor, self.devices.total(held))
        norm = self.devices.clip(self.policy.model.parameters(), self.config.optimizer.max_grad_norm)
        self._step_optimiser(norm)
        self.next_step += 1
        return metrics | {"grad_norm": norm} | ({} if batch.pairs else {"kto_reference_point": z})

    def _log_ratios(self, part: MicroBatch, ref_logp: Tensor) -> Tensor:
        known = token_batch(part.answers, self.compute_dtype, self.policy.device)
        return stream_log_ratios(known, self._logp(part), ref_logp)

    @property
    def _weights(self) -> Tensor:
        return torch.tensor(self.config.objective.weights, dtype=self.compute_dtype, device=self.policy.device)

    def _reference_point(
        self, others: Sequence[MicroBatch], references: Sequence[Tensor], own: int, count: int, at_once: int
    ) -> float:
        """Return KTO's z from answers to other questions, the same on all ranks; the first `own` parts are this rank's."""
        fixed = torch.no_grad()(self._log_ratios)
        ratios = side_by_side([partial(fixed, *known) for known in zip(others, references, strict=True)], at_once)
        total = sum(float((ratio @ self._weights).sum()) for ratio in ratios[:own])
        return max(0.0, float(self.devices.total(np.array([total]))[0]) / count)

    def _pass_of(self, part: MicroBatch, ref_logp: Tensor, pairs: bool, z: float, units: int) -> tuple[Tensor, np.ndarray]:
        """Return the loss of a pass, for all ranks, and its sums for the log."""
        by_stream = self._log_ratios(part, ref_logp)
        ratios, good = by_stream @ self._weights, torch.tensor(part.advantages, device=by_stream.device) > 0
        if pairs:
            losses, right = dpo_losses(ratios, self._preferences.beta), ratios[0::2] > ratios[1::2]
        else:
            losses, right = kto_losses(ratios, good, z, self._preferences), (ratios > z) == good
        sides = [by_stream[side].detach().sum(0).tolist() for side in (good, ~good)]
        sums = [losses.sum().item(), right.sum().item(), good.sum().item(), (~good).sum().item(), *sides[0], *sides[1]]
        # Several devices average their gradients, and the loss is a sum over them.
        return losses.sum() / units * self.devices.world, np.array(sums)

    def _metrics_of(self, sums: np.ndarray, units: int) -> Metrics:
        """Return an update's metrics: implicit rewards are beta times the weighted log-ratios, log-ratios are nats an answer.

        Raises:
            PolicyError: the loss is not finite.
        """
        loss = float(sums[0]) / units
        if not np.isfinite(loss):
            raise PolicyError(f"step {self.next_step}: the loss is {loss}; lower align.optimizer.lr")
        metrics: Metrics = {"step": self.next_step, "loss": loss, "preference_accuracy": float(sums[1]) / units}
        rewards = {}
        for side, (name, answers) in enumerate(zip(("chosen", "rejected"), sums[2:4], strict=True)):
            ratios = sums[4 + 2 * side : 6 + 2 * side] / max(answers, 1.0)
            metrics |= {f"log_ratio_{name}_{stream}": float(ratio) for stream, ratio in zip(STREAMS, ratios, strict=True)}
            rewards[name] = self._preferences.beta * float(np.dot(self.config.objective.weights, ratios))
            metrics[f"{name}_reward"] = rewards[name] if answers else None
        if all(sums[2:4]):
            metrics["reward_margin"] = rewards["chosen"] - rewards["rejected"]
        return metrics
