"""Checks that a GRPO trainer listens in all three places: other clips must change its log-probs in each of them.

A trainer that is deaf in one place still learns something, from the words of its prompts and from base rates, so its reward
alone does not show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paras2s.errors import JudgeError
from paras2s.unisrm.reward.grpo_trainer import UniSRMGrpoTrainer
from paras2s.unisrm.reward.thinker import Encoded

# Below this, in nats, a difference is rounding.
LEAST_GAP = 1e-6


@dataclass(frozen=True)
class AudioGaps:
    """The largest change of a log-prob by other clips, in nats; `reference` is None without a KL term."""

    generation: float
    policy: float
    reference: float | None

    @property
    def deaf(self) -> tuple[str, ...]:
        """The places that clips do not reach."""
        return tuple(number for number, gap in vars(self).items() if gap is not None and gap < LEAST_GAP)


def check_audio(trainer: UniSRMGrpoTrainer, numbers: Sequence[int]) -> AudioGaps:
    """Compare log-probs with an item's own clips and another's. Raises JudgeError: clips do not reach one of three places."""
    gaps = audio_gaps(trainer, numbers)
    if gaps.deaf:
        raise JudgeError(f"the clips do not reach {', '.join(gaps.deaf)}: training would be deaf there")
    return gaps


def audio_gaps(trainer: UniSRMGrpoTrainer, numbers: Sequence[int]) -> AudioGaps:
    """Return the changes themselves; no weight is changed."""
    inputs = [{"prompt": str(number)} for number in numbers for _ in range(int(trainer.num_generations or 1))]
    own = {number: trainer.encoder[number] for number in numbers}
    exchanged = {
        number: own[number].with_clips_of(own[other]) for number, other in zip(numbers, [*numbers[1:], numbers[0]], strict=True)
    }
    first = _observe(trainer, inputs, own, None)
    second = _observe(trainer, inputs, exchanged, first.completions)
    mask = first.mask.bool()
    return AudioGaps(
        float((first.generation - second.generation).abs().max()),
        float((first.policy - second.policy)[mask].abs().max()),
        None
        if first.reference is None or second.reference is None
        else float((first.reference - second.reference)[mask].abs().max()),
    )


@dataclass(frozen=True)
class _Observed:
    """Log-probs: of the first token over the vocabulary [N, V], of the completions by policy and reference [N, T]."""

    generation: Tensor
    policy: Tensor
    reference: Tensor | None
    mask: Tensor
    completions: list[list[int]]


def _observe(
    trainer: Any, inputs: list[dict[str, str]], encoded: dict[int, Encoded], completions: list[list[int]] | None
) -> _Observed:
    """Run what a step runs up to its loss. Given `completions` take the place of the sampled ones."""
    first_logps: list[Tensor] = []
    policy_logps: list[Tensor] = []
    sampled: list[list[int]] = []
    encode, generate, logps = trainer.encoder.encoded, trainer._generate_single_turn, trainer._get_per_token_logps_and_entropies
    thinker = trainer.accelerator.unwrap_model(trainer.model)
    # Generation of a model with adapters passes by their wrapper.
    thinker = thinker.get_base_model() if hasattr(thinker, "get_base_model") else thinker

    def hook(module: Any, args: Any, output: Any) -> None:
        if not first_logps:
            first_logps.append(output.logits[:, -1].float().log_softmax(-1))

    def generate_observed(*args: Any, **options: Any) -> Any:
        handle = thinker.register_forward_hook(hook)
        try:
            ids, sampling_logps = generate(*args, **options)
        finally:
            handle.remove()
        sampled.extend(completions or ids)
        return sampled, sampling_logps

    def logps_observed(*args: Any, **options: Any) -> Any:
        result = logps(*args, **options)
        policy_logps.append(result[0])
        return result

    trainer.encoder.encoded = encoded.__getitem__
    trainer._generate_single_turn = generate_observed
    was_training = trainer.model.training
    trainer.model.train()
    try:
        batch = trainer._generate_and_score_completions(inputs)
        trainer._get_per_token_logps_and_entropies = logps_observed
        with torch.no_grad():
            trainer.current_gradient_accumulation_steps = 1
            trainer._compute_loss(trainer.model, batch)
    finally:
        trainer.encoder.encoded = encode
        del trainer._generate_single_turn
        vars(trainer).pop("_get_per_token_logps_and_entropies", None)
        trainer._metrics["train"].clear()
        trainer.model.train(was_training)
    return _Observed(first_logps[0], policy_logps[-1], batch.get("ref_per_token_logps"), batch["completion_mask"], sampled)
