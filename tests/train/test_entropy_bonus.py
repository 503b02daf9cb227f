"""The entropy bonus: its loss by hand, its gradient against the exact entropy, updates that keep it up, and refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy, small_rollouts
from tiny.learner import GROUP, STEPS, make_prompts, rewards_of
from tiny.settings import align_config

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.errors import ConfigError
from paras2s.train.algorithm import check_algorithm
from paras2s.train.learner import Learner
from paras2s.train.losses import LogProbBatch, grpo_loss


@pytest.mark.parametrize(
    ("level", "loss"),
    [
        # Log-probs -1, -3 and -0.5; the first two are of one step, and the third is twice as likely as when it was sampled.
        ("token", (-1.0 - 3.0 - 2 * 0.5) / 3),
        ("step", (-4.0 - 2 * 0.5) / 2),
    ],
)
def test_its_loss_by_hand(level: str, loss: float) -> None:
    logp = torch.tensor([[-1.0, -3.0, -0.5, -9.0]], dtype=torch.float64)
    old = logp - torch.tensor([[0.0, 0.0, math.log(2), 5.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    batch = LogProbBatch(logp, old, logp, mask, torch.tensor([[0, 0, 1, 1]]), torch.zeros(1, 4, dtype=torch.long))
    objective = ObjectiveConfig.model_validate({"average": "joint", "ratio_level": level})
    found = grpo_loss(batch, torch.zeros(1), objective, 4, entropy_weight=0.1)
    assert found.loss.item() == pytest.approx(0.1 * loss)


def test_the_expected_gradient_is_that_of_the_negative_entropy() -> None:
    """Over all tokens of a vocabulary of 4, each by its probability."""
    scores = torch.tensor([0.3, -1.0, 0.5, 0.1], dtype=torch.float64, requires_grad=True)
    logp = scores.log_softmax(0)
    known = logp.detach()
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.long)
    objective = ObjectiveConfig(average="joint", kl_weight=0.0)
    losses = [
        grpo_loss(
            LogProbBatch(*(part[row][None, None] for part in (logp, known, known)), one, zero, zero),
            torch.zeros(1), objective, 1, entropy_weight=1.0,
        ).loss
        for row in range(4)
    ]  # fmt: skip
    (found,) = torch.autograd.grad((known.exp() * torch.stack(losses)).sum(), scores, retain_graph=True)
    (expected,) = torch.autograd.grad((logp.exp() * logp).sum(), scores)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_answers_stay_more_diverse_than_without_it() -> None:
    def entropy_after(steps: int, **settings: Any) -> float:
        policy = small_policy(small_model(small_config()))
        policy.model.model.embed_tokens.weight.data *= 5
        config = align_config(lr=0.02, kl_weight=0.0, steps=100, warmup_steps=1, **settings)
        learner, prompts, row = Learner(policy, config, STEPS), make_prompts(), {}
        for _ in range(steps):
            rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, learner.next_step)
            row = learner.step(prompts, rollouts, rewards_of(rollouts))
        return float(np.mean([row["entropy_text"], row["entropy_audio"]]))

    assert entropy_after(10, entropy_weight=1.0) > 1.05 * entropy_after(10)


@pytest.mark.parametrize("name", ["dpo", "rft"])
def test_algorithms_of_chosen_answers_refuse_it(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"align.sampling.entropy_weight: {name} learns from chosen answers"):
        check_algorithm(align_config(loss_type=name, entropy_weight=0.1))
