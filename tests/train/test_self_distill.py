"""Self-distillation: its signals by hand, its gradient against the exact divergence, and updates in which it learns.

Not covered: that a policy that is given the style knows better than one that only hears, which its warm-up decides.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy, small_rollouts
from tiny.learner import GROUP, STEPS, make_prompts, reward, rewards_of
from tiny.settings import align_config
from torch import Tensor

from paras2s.configs.schema.align import AlignConfig, ObjectiveConfig, SelfDistillConfig, WorkersConfig
from paras2s.errors import ConfigError, PolicyError
from paras2s.train.advantages import advantages_of
from paras2s.train.algorithm import check_algorithm
from paras2s.train.algorithms.self_distill import signal
from paras2s.train.averaged_teacher import FILE, AveragedTeacher
from paras2s.train.learner import Learner
from paras2s.train.losses import LogProbBatch, grpo_loss
from paras2s.types import Unscored


def config_of(divergence: str, **more: Any) -> SelfDistillConfig:
    return SelfDistillConfig(divergence=divergence, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        # Of a token that is equally likely to the teacher, twice and a quarter as likely, and beyond the bound of 3 nats.
        ("reverse", [0.0, math.log(2), -math.log(4), 3.0]),
        ("forward", [0.0, 1.0, -0.75, math.exp(3) - 1]),
        ("js", [0.0, 0.5 * math.log(1.5), 0.5 * math.log(0.625), 0.5 * math.log((1 + math.exp(3)) / 2)]),
    ],
)
def test_signals_by_hand(divergence: str, expected: list[float]) -> None:
    ratios = torch.tensor([0.0, math.log(2), -math.log(4), 7.0], dtype=torch.float64)
    assert signal(ratios, config_of(divergence, max_nats=3.0)).tolist() == pytest.approx(expected, abs=1e-12)


def exact(divergence: str, student: Tensor, teacher: Tensor) -> Tensor:
    mixture = (student + teacher) / 2
    forward, reverse = (p * (p / q).log() for p, q in ((teacher, student), (student, teacher)))
    both = 0.5 * (student * (student / mixture).log() + teacher * (teacher / mixture).log())
    return {"forward": forward, "reverse": reverse, "js": both}[divergence].sum()


@pytest.mark.parametrize("divergence", ["forward", "reverse", "js"])
def test_the_expected_gradient_is_the_divergences(divergence: str) -> None:
    """Over all tokens of a vocabulary of 4, each by its probability under the student."""
    scores = torch.tensor([0.3, -1.0, 0.5, 0.1], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([0.1, 0.5, 0.2, 0.2], dtype=torch.float64)
    logp = scores.log_softmax(0)
    known = logp.detach()
    one = torch.ones(4, 1, dtype=torch.float64)
    zero = torch.zeros(4, 1, dtype=torch.long)
    settings = {"loss_type": "self_distill", "average": "joint", "kl_weight": 0.0}
    losses = [
        grpo_loss(
            LogProbBatch(*(part[row][None, None] for part in (logp, known, known)), one[:1], zero[:1], zero[:1]),
            torch.ones(1), ObjectiveConfig(**settings), 1, teacher=(teacher[row].log()[None, None], config_of(divergence)),  # type: ignore[arg-type]
        ).loss
        for row in range(4)
    ]  # fmt: skip
    (found,) = torch.autograd.grad((known.exp() * torch.stack(losses)).sum(), scores)
    (expected,) = torch.autograd.grad(exact(divergence, scores.softmax(0), teacher), scores)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("level", "loss"), [("token", -(1.0 - 2.0 + 0.5) / 3), ("step", -((1.0 - 2.0) + 0.5) / 2)])
def test_its_loss_by_hand(level: str, loss: float) -> None:
    """Log-ratios of 1, -2 and 0.5; the first two are of one step. A token that was not sampled does not count."""
    logp = torch.full((1, 4), -3.0, dtype=torch.float64)
    teacher = logp + torch.tensor([[1.0, -2.0, 0.5, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    batch = LogProbBatch(logp, logp, logp, mask, torch.tensor([[0, 0, 1, 1]]), torch.zeros(1, 4, dtype=torch.long))
    settings = {"loss_type": "self_distill", "average": "joint", "ratio_level": level}
    objective = ObjectiveConfig.model_validate(settings)
    result = grpo_loss(batch, torch.ones(1), objective, 4, teacher=(teacher, SelfDistillConfig(weight=2.0)))
    assert result.loss.item() == pytest.approx(2 * loss)
    assert result.behind_teacher == pytest.approx(loss)
    # Beside GRPO, whose own term is minus the advantage.
    both = ObjectiveConfig.model_validate({**settings, "loss_type": "grpo"})
    assert grpo_loss(
        batch, torch.tensor([3.0]), both, 4, teacher=(teacher, SelfDistillConfig(weight=2.0))
    ).loss.item() == pytest.approx(2 * loss - 3)


def make_learner(**values: Any) -> Learner:
    """Of a policy on which words have five times their weight, so that the teacher knows what the student cannot."""
    policy = small_policy(small_model(small_config()))
    policy.model.model.embed_tokens.weight.data[: policy.config.text_eos_id] *= 5
    settings = {"loss_type": "self_distill", "lr": 0.02, "kl_weight": 0.0, "audio_weight": 1.0, "steps": 100, "warmup_steps": 1}
    return Learner(policy, align_config(**settings | values), STEPS)


def advance(learner: Learner, steps: int, flat: bool = True, size: int = GROUP) -> list[dict[str, Any]]:
    prompts, log = make_prompts(), []
    for _ in range(steps):
        rollouts = small_rollouts(learner.policy, prompts, size, STEPS, learner.next_step)  # type: ignore[arg-type]
        rewards = [[reward(3.0)] * size for _ in prompts] if flat else rewards_of(rollouts)
        log.append(learner.step(prompts, rollouts, rewards, styles=["f a d", "c a b"]))
    return log


@pytest.mark.parametrize("divergence", ["forward", "reverse", "js"])
def test_the_student_learns_what_the_teacher_knows(divergence: str) -> None:
    """No reward differs. The log-ratio of student and teacher on the student's samples estimates their reverse KL."""
    rows = advance(make_learner(self_distill={"divergence": divergence}), 12, size=16)
    first, last = (float(np.mean([row["behind_teacher"] for row in part])) for part in (rows[:3], rows[-3:]))
    assert first > 0.15
    assert last < 0.6 * first


def test_beside_grpo_and_in_micro_batches_it_is_the_same() -> None:
    complete, parts = (make_learner(loss_type="grpo", self_distill={}, micro_batch_size=size) for size in (None, 2))
    for one, other in zip(advance(parts, 2, flat=False), advance(complete, 2, flat=False), strict=True):
        assert one == pytest.approx(other, abs=1e-9)
    left, right = parts.weights(), complete.weights()
    for name, value in left.items():
        np.testing.assert_allclose(value, right[name], atol=1e-9, err_msg=name)


def test_every_answer_teaches_but_those_without_a_reward() -> None:
    rewards = [[reward(2.0), reward(2.0)], [reward(1.0), Unscored("j", "")]]
    found = advantages_of(rewards, "every")
    assert found.groups == [[1.0, 1.0], [1.0, None]]
    assert (found.zero_spread, found.unscored) == (1, 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss_type": "dpo", "self_distill": {}}, r"align.self_distill: dpo learns from pairs"),
        ({"loss_type": "self_distill", "resample": {}}, r"self_distill: sampling.resample replaces groups by their rewards"),
        (
            {"loss_type": "self_distill", "curriculum": {}},
            r"sampling.curriculum replaces groups by their rewards",
        ),
    ],
    ids=["pairs", "resample", "curriculum"],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    config: AlignConfig = align_config(**settings)
    with pytest.raises(ConfigError, match=said):
        check_algorithm(config)


# -- the averaged teacher -----------------------------------------------------------------------------------------------


def test_averages_by_hand() -> None:
    """Of a weight of 1 that becomes 3 and then 0: 0.75 + 0.25 x 3 = 1.5, then 0.75 x 1.5 = 1.125."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    teacher = AveragedTeacher({"w": weight}, 0.75)
    seen = []
    for value in (3.0, 0.0):
        weight.data[0] = value
        teacher.follow()
        with teacher.in_place():
            seen.append(weight.tolist())
        assert weight.tolist() == [value, -2.0]
    assert seen == [[1.5, -2.0], [1.125, -2.0]]


def test_an_averaged_teacher_begins_as_the_frozen_one_and_follows() -> None:
    frozen, averaged = make_learner(), make_learner(self_distill={"average": 0.9})
    start = {name: value.copy() for name, value in averaged.weights().items()}
    first, second = (advance(learner, 1)[0] for learner in (frozen, averaged))
    assert first == second
    assert averaged.teacher is not None
    for name, value in averaged.weights().items():
        np.testing.assert_allclose(averaged.teacher.weights[name].numpy(), 0.9 * start[name] + 0.1 * value, atol=1e-12)
    # The student goes towards the teacher, and the teacher comes to meet it.
    assert advance(averaged, 4)[-1]["behind_teacher"] < advance(frozen, 4)[-1]["behind_teacher"]


def test_a_resumed_run_has_the_teacher_of_an_uninterrupted_one(tmp_path: Path) -> None:
    complete, stopped, resumed = (make_learner(self_distill={"average": 0.5}) for _ in range(3))
    expected = advance(complete, 3)
    log = advance(stopped, 2)
    stopped.save(tmp_path)
    resumed.restore(tmp_path)
    assert log + advance(resumed, 1) == expected
    assert stopped.checkpoint_bytes == make_learner().checkpoint_bytes * 4 // 3
    (tmp_path / FILE).unlink()
    with pytest.raises(PolicyError, match=r"teacher.safetensors: no averaged teacher; set align.self_distill.average to null"):
        make_learner(self_distill={"average": 0.5}).restore(tmp_path)


def test_ranks_keep_no_average() -> None:
    with pytest.raises(ValueError, match=r"self_distill.average: ranks keep no average"):
        align_config(self_distill={"average": 0.9}, workers=WorkersConfig.model_validate({"learner": {"count": 2}}))
