"""The objective against golden vectors (docs/experiments/policies.md), TRL's own loss, and advantages by hand.

Not covered: whether a run with these losses learns anything, and float32 rounding.
"""

from __future__ import annotations

import importlib.util
import math
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.train.advantages import group_advantages
from paras2s.train.losses import (
    AUDIO,
    OBJECTIVES,
    TEXT,
    LogProbBatch,
    ObjectiveResult,
    grpo_loss,
    k3,
    loss_normalizer,
)

LOSSES = [name for name, loss in OBJECTIVES.items() if loss is grpo_loss]

LOGP = [[-0.5, -1.2, -0.3, -2, -0.7], [-1, -0.4, -0.9, -0.2, -1.5], [-0.8, -0.6, -1.1, -0.5, -0.1],
        [-2.2, -0.3, -0.7, -1.4, -0.9]]  # fmt: skip
OLD = [[-0.6, -1, -0.3, -1.5, -0.7], [-1.3, -0.4, -0.5, -0.2, -1.5], [-0.8, -0.9, -1.1, -0.4, -0.1],
       [-2, -0.3, -1, -1.4, -0.9]]  # fmt: skip
REF = [[-0.7, -1.1, -0.5, -1.8, -0.7], [-1.1, -0.5, -0.9, -0.4, -1.5], [-0.9, -0.6, -1, -0.6, -0.1],
       [-2, -0.5, -0.7, -1.2, -0.9]]  # fmt: skip
MASK = [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
# Half of the last of ten printed digits.
PRINTED = 5.1e-11
TRL_STEPS = 20


def objective_of(**settings: Any) -> ObjectiveConfig:
    """The paper's averages (joint, streams of one weight), where the config's defaults differ."""
    return ObjectiveConfig(**{"average": "joint", "audio_weight": 1.0, "kl_weight": 0.04, **settings})


def wide(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def golden_advantages() -> Tensor:
    return wide(group_advantages([[3.0, 1.0, 4.0, 4.0]]).values)


def one_stream() -> LogProbBatch:
    steps = torch.arange(5).expand(4, 5)
    return LogProbBatch(wide(LOGP).requires_grad_(), wide(OLD), wide(REF), wide(MASK), steps, torch.zeros(4, 5).long())


def two_streams(audio_mask: list[list[int]] | None = None) -> LogProbBatch:
    """Text is the golden arrays; audio is the same with its rows reversed."""

    def both(values: Any) -> Tensor:
        return torch.cat([wide(values), wide(values).flip(0)], dim=1)

    mask = both(MASK)
    if audio_mask is not None:
        mask[:, 5:] = wide(audio_mask)
    steps = torch.arange(5).repeat(2).expand(4, 10)
    stream = torch.tensor([TEXT] * 5 + [AUDIO] * 5).expand(4, 10)
    return LogProbBatch(both(LOGP).requires_grad_(), both(OLD), both(REF), mask, steps, stream)


def golden(batch: LogProbBatch, importance: Tensor | None = None, **settings: Any) -> tuple[ObjectiveResult, Tensor]:
    objective = objective_of(**{"ratio_level": "token", "kl_weight": 0.0, **settings})
    result = grpo_loss(batch, golden_advantages(), objective, 8, importance)
    (gradient,) = torch.autograd.grad(result.loss, batch.logp)
    return result, gradient


def test_golden_advantages() -> None:
    expected = [0, -1.4141135694, 0.7070567847, 0.7070567847]
    assert golden_advantages().tolist() == pytest.approx(expected, abs=PRINTED)


@pytest.mark.parametrize("level", ["token", "step"])
@pytest.mark.parametrize(
    ("loss_type", "kl_weight", "loss", "gradient_sum"),
    [
        ("grpo", 0.0, -0.0081841931, 0.1120154603),
        ("grpo", 0.04, -0.0078093285, 0.1131905957),
        ("bnpo", 0.0, 0.2566104453, 0.2970136901),
        ("bnpo", 0.04, 0.2570030501, 0.2983353710),
        ("dr_grpo", 0.0, 0.1122670698, 0.1299434894),
        ("dr_grpo", 0.04, 0.1124388344, 0.1305217248),
        ("cispo", 0.0, -0.1742526088, 0.2283747627),
        ("cispo", 0.04, -0.1738600040, 0.2296964436),
        ("sapo", 0.0, -0.0726517024, None),
        ("sapo", 0.04, -0.0722768378, None),
    ],
)
def test_golden_losses_of_one_stream(
    loss_type: str, kl_weight: float, loss: float, gradient_sum: float | None, level: str
) -> None:
    high = 5.0 if loss_type == "cispo" else 0.2
    result, gradient = golden(one_stream(), loss_type=loss_type, kl_weight=kl_weight, clip_high=high, ratio_level=level)
    assert result.loss.item() == pytest.approx(loss, abs=PRINTED)
    if gradient_sum is not None:
        assert gradient.sum().item() == pytest.approx(gradient_sum, abs=PRINTED)


@pytest.mark.parametrize(
    ("settings", "importance", "expected", "tolerance"),
    [
        (
            {"kl_weight": 0.04, "ratio_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
            None,
            0.00012739472,
            5e-12,
        ),
        ({"loss_type": "bnpo", "clip_high": 0.28}, None, 0.2485297963, PRINTED),
        ({"ratio_cap": 1.3}, None, -0.0117094939, PRINTED),
        ({"kl_weight": 0.04, "kl_bias_correction": True}, None, -0.0078373477, PRINTED),
        ({"kl_weight": 0.04}, [1.1, 0, 0.9, 1.0], -0.3524895280, PRINTED),
    ],
    ids=["sequence level", "clip high 0.28", "ratio cap 1.3", "bias-corrected KL", "importance"],
)
def test_golden_options(settings: dict[str, Any], importance: Any, expected: float, tolerance: float) -> None:
    result, _ = golden(one_stream(), None if importance is None else wide(importance), **settings)
    assert result.loss.item() == pytest.approx(expected, abs=tolerance)


def test_golden_gradient_of_the_first_row() -> None:
    _, gradient = golden(one_stream(), kl_weight=0.04)
    expected = [0.00045317, -0.00026293, 0.00045317, -0.00055351, 0]
    assert gradient[0].tolist() == pytest.approx(expected, abs=5.1e-9)


def test_golden_numbers_for_the_log() -> None:
    result, _ = golden(one_stream(), kl_weight=0.04)
    assert result.metrics["kl"] == pytest.approx(0.00981512, abs=5.1e-9)
    assert result.metrics["kl_text"] == pytest.approx(result.metrics["kl"], abs=1e-15)
    # No audio token was read, which is not a divergence of 0.
    assert "kl_audio" not in result.metrics
    assert result.metrics["clipped_share"] == pytest.approx(3 / 14)


@pytest.mark.parametrize(
    ("level", "loss_type", "without_kl", "with_kl"),
    [
        ("step", "grpo", 0.0536122854, 0.0542661009),
        ("step", "bnpo", 0.0942355994, 0.0948463181),
        ("step", "dr_grpo", 0.0530075247, 0.0533510539),
        ("token", "grpo", 0.0348465891, 0.0352391940),
        ("token", "bnpo", 0.0348465891, 0.0352391940),
        ("token", "dr_grpo", 0.0304907655, 0.0308342947),
    ],
)
def test_golden_losses_of_two_streams(level: str, loss_type: str, without_kl: float, with_kl: float) -> None:
    plain, _ = golden(two_streams(), ratio_level=level, loss_type=loss_type)
    held, _ = golden(two_streams(), ratio_level=level, loss_type=loss_type, kl_weight=0.04)
    assert plain.loss.item() == pytest.approx(without_kl, abs=PRINTED)
    assert held.loss.item() == pytest.approx(with_kl, abs=PRINTED)


@pytest.mark.parametrize(("form", "expected"), [("sum", 0.015267966757), ("joint", 0.009696650385)])
def test_golden_kl_of_a_step_in_both_forms(form: str, expected: float) -> None:
    with_kl, _ = golden(two_streams(), ratio_level="step", loss_type="bnpo", kl_form=form, kl_weight=1.0)
    without, _ = golden(two_streams(), ratio_level="step", loss_type="bnpo")
    assert with_kl.metrics["kl"] == pytest.approx(expected, abs=5.1e-13)
    assert (with_kl.loss - without.loss).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("form", ["sum", "joint"])
@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_silent_audio_stream_is_one_stream(loss_type: str, form: str) -> None:
    settings = {"ratio_level": "step", "loss_type": loss_type, "kl_weight": 0.04, "kl_form": form}
    both, gradient = golden(two_streams(audio_mask=[[0] * 5] * 4), **settings)
    alone, expected = golden(one_stream(), **settings)
    assert both.loss.item() == pytest.approx(alone.loss.item(), abs=1e-15)
    torch.testing.assert_close(gradient[:, :5], expected, atol=1e-15, rtol=0)
    assert not gradient[:, 5:].any()


def test_streams_averaged_apart_add_up_with_their_weights() -> None:
    batch = two_streams()
    apart, _ = golden(batch, average="per_stream", text_weight=0.25, audio_weight=2.0, kl_weight=0.04)
    parts = []
    for stream in (slice(0, 5), slice(5, 10)):
        alone = LogProbBatch(*(part[:, stream] for part in vars(batch).values()))
        objective = objective_of(ratio_level="token", kl_weight=0.04)
        parts.append(grpo_loss(alone, golden_advantages(), objective, 52).loss.item())
    assert apart.loss.item() == pytest.approx(0.25 * parts[0] + 2.0 * parts[1], abs=1e-14)


def test_masked_entries_neither_count_nor_learn() -> None:
    batch = one_stream()
    moved = LogProbBatch(**{**vars(batch), "old_logp": batch.old_logp - 3 * (1 - batch.mask)})
    for level in ("token", "step", "sequence"):
        first, _ = golden(batch, ratio_level=level, kl_weight=0.04)
        second, gradient = golden(moved, ratio_level=level, kl_weight=0.04)
        assert first.loss.item() == second.loss.item()
        assert not gradient[batch.mask == 0].any()


def test_k3_by_hand() -> None:
    found = k3(wide([-1.0, -1.0, 0.0]), wide([-1.0, -2.0, -math.log(2)]))
    assert found.tolist() == pytest.approx([0, math.e - 2, 1 - math.log(2)], abs=1e-15)


@pytest.mark.parametrize(
    ("rewards", "values", "zero_spread", "unscored"),
    [
        ([[1.0, 3.0]], [-1 / (math.sqrt(2) + 1e-4), 1 / (math.sqrt(2) + 1e-4)], 0, 0),
        ([[1.0, None, 3.0]], [-1 / (math.sqrt(2) + 1e-4), None, 1 / (math.sqrt(2) + 1e-4)], 0, 1),
        ([[1.0, 2.0, 3.0], [5.0, 5.0]], [-1 / 1.0001, 0.0, 1 / 1.0001, 0.0, 0.0], 1, 0),
        ([[2.0, None, 2.0]], [0.0, None, 0.0], 1, 1),
        ([[4.0]], [None], 0, 0),
        ([[4.0, None], [None, None]], [None, None, None, None], 0, 3),
        ([[]], [], 0, 0),
        ([], [], 0, 0),
    ],
    ids=["two", "one unscored", "groups apart, one flat", "flat and unscored", "group of one", "one left or none",
         "empty group", "nothing"],
)  # fmt: skip
def test_advantages_by_hand(
    rewards: list[list[float | None]], values: list[float | None], zero_spread: int, unscored: int
) -> None:
    found = group_advantages(rewards)
    assert [value is None for value in found.values] == [value is None for value in values]
    assert [v for v in found.values if v is not None] == pytest.approx([v for v in values if v is not None], abs=1e-12)
    assert (found.zero_spread, found.unscored) == (zero_spread, unscored)


@pytest.mark.parametrize("size", [2, 3, 6, 7, 8])
@pytest.mark.parametrize("reward", [0.1, 1.1, 3.3, 4.7])
def test_equal_rewards_are_flat_whatever_their_rounding(reward: float, size: int) -> None:
    found = group_advantages([[reward] * size])
    assert found.zero_spread == 1
    assert found.values == (0.0,) * size


def trl_loss(batch: LogProbBatch, advantages: Tensor, objective: ObjectiveConfig, importance: Tensor | None) -> Any:
    """TRL's `_compute_loss` on a stand-in trainer whose model gives our log-probs."""
    trl = pytest.importorskip("trl", reason="the agreement is with trl==1.16.0")
    entropies = torch.zeros_like(batch.logp)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (batch.logp, entropies, None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=objective.ratio_level,
        beta=objective.kl_weight,
        loss_type=objective.loss_type,
        epsilon_low=objective.clip_low,
        epsilon_high=objective.clip_high,
        max_completion_length=TRL_STEPS,
        use_vllm=importance is not None,
        vllm_importance_sampling_correction=importance is not None,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(
            use_bias_correction_kl=objective.kl_bias_correction, delta=objective.ratio_cap, sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05, steps_per_generation=1,
        ),
        accelerator=SimpleNamespace(reduce=lambda x, **_: x, gather=lambda x: x, num_processes=1),
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )  # fmt: skip
    inputs = {
        "prompt_ids": torch.zeros(len(advantages), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(advantages), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(batch.mask, dtype=torch.long),
        "completion_mask": batch.mask,
        "advantages": advantages,
        "old_per_token_logps": batch.old_logp,
        "ref_per_token_logps": batch.ref_logp,
        "num_items_in_batch": batch.mask.sum(),
    }
    if importance is not None:
        inputs["importance_sampling_ratio"] = importance[:, None]
    loss = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss, torch.autograd.grad(loss, batch.logp)[0], trainer._metrics["train"]


@pytest.mark.parametrize("kl_weight", [0.0, 0.1])
@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "grpo"},
        {"loss_type": "bnpo"},
        {"loss_type": "dr_grpo"},
        {"loss_type": "cispo", "clip_high": 1.5},
        {"loss_type": "grpo", "ratio_level": "sequence", "clip_high": 0.1},
        {"loss_type": "grpo", "ratio_cap": 1.2, "clip_high": 0.4, "kl_bias_correction": True},
        {"loss_type": "bnpo", "importance": True},
    ],
    ids=["grpo", "bnpo", "dr_grpo", "cispo", "sequence", "cap and bias", "importance"],
)
def test_agrees_with_trl(settings: dict[str, Any], kl_weight: float) -> None:
    settings = dict(settings)
    weighed = settings.pop("importance", False)
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        logp, old, ref = (-2 * torch.rand(6, 11, generator=draw, dtype=torch.float64) for _ in range(3))
        lengths = torch.randint(1, 12, (6,), generator=draw)
        mask = (torch.arange(11)[None] < lengths[:, None]).double()
        # Old and reference stay near, so that entries fall on both sides of the clip.
        old, ref = logp + 0.3 * (old + 1), logp + 0.5 * (ref + 1)
        steps, streams = torch.arange(11).expand(6, 11), torch.zeros(6, 11, dtype=torch.long)
        batch = LogProbBatch(logp.requires_grad_(), old, ref, mask, steps, streams)
        advantages = torch.randn(6, generator=draw, dtype=torch.float64)
        importance = torch.rand(6, generator=draw, dtype=torch.float64) * 2 if weighed else None
        objective = objective_of(**{"ratio_level": "token", "kl_weight": kl_weight, **settings})
        ours = grpo_loss(batch, advantages, objective, TRL_STEPS, importance)
        (gradient,) = torch.autograd.grad(ours.loss, batch.logp)
        loss, expected, logged = trl_loss(batch, advantages, objective, importance)
        assert ours.loss.item() == pytest.approx(loss.item(), abs=1e-9)
        torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=0)
        assert gradient.abs().max() > 1e-3
        if kl_weight and not objective.kl_bias_correction:
            assert ours.metrics["kl"] == pytest.approx(logged["kl"][0], abs=1e-6)
        if objective.loss_type != "cispo" and objective.ratio_cap is None and objective.ratio_level == "token":
            assert ours.metrics["clipped_share"] == pytest.approx(logged["clip_ratio/region_mean"][0], abs=1e-6)


def test_unscaled_advantages_are_differences_from_the_mean() -> None:
    found = group_advantages([[1.0, 4.0, None, 4.0], [2.0, 2.0]], scale="none")
    assert found.values == (pytest.approx(-2.0), pytest.approx(1.0), None, pytest.approx(1.0), 0.0, 0.0)
    assert (found.zero_spread, found.unscored) == (1, 1)


# -- losses that learn from chosen answers ------------------------------------------------------------------------------


def loss_of(batch: LogProbBatch, advantages: list[float], **settings: Any) -> ObjectiveResult:
    objective = objective_of(**{"ratio_level": "token", "kl_weight": 0.0, **settings})
    return OBJECTIVES[objective.loss_type](batch, wide(advantages), objective, 8, None, None)


def test_rejection_sampling_is_the_mean_likelihood_of_what_was_chosen() -> None:
    """Sums of the golden rows: -4.0, -4.0, -1.4, -3.2 over 4, 5, 2 and 3 tokens."""
    found = loss_of(one_stream(), [1.0] * 4, loss_type="rft")
    assert found.loss.item() == pytest.approx(12.6 / 14, abs=1e-12)
    apart = loss_of(two_streams(), [1.0] * 4, loss_type="rft", average="per_stream", text_weight=0.5, audio_weight=2.0)
    # The audio stream has the same rows in another order.
    assert apart.loss.item() == pytest.approx(2.5 * 12.6 / 14, abs=1e-12)
    with_kl = loss_of(one_stream(), [1.0] * 4, loss_type="rft", kl_weight=0.04)
    assert with_kl.loss.item() - found.loss.item() == pytest.approx(0.04 * 0.00981512, abs=1e-9)


def test_dpo_by_hand() -> None:
    """Log-ratios of the golden rows to their reference: 0.1, 0.4, 0.1, 0.0; the first and the last are preferred."""
    found = loss_of(one_stream(), [1.0, -1.0, -1.0, 1.0], loss_type="dpo", kl_weight=0.5)
    assert found.loss.item() == pytest.approx((math.log1p(math.exp(0.15)) + math.log1p(math.exp(0.05))) / 2, abs=1e-12)
    assert found.metrics["kl_text"] == pytest.approx(0.00981512, abs=5.1e-9)
    assert found.metrics["clipped_share"] == 0


def test_dpo_sums_both_streams_by_their_weights() -> None:
    """Audio has the rows reversed: log-ratios 0.0, 0.1, 0.4, 0.1. Jointly 0.1, 0.5, 0.5, 0.1."""
    signs = [1.0, -1.0, -1.0, 1.0]
    joint = loss_of(two_streams(), signs, loss_type="dpo", kl_weight=0.5)
    assert joint.loss.item() == pytest.approx(math.log1p(math.exp(0.2)), abs=1e-12)
    apart = loss_of(
        two_streams(), signs, loss_type="dpo", kl_weight=0.5, average="per_stream", text_weight=1.0, audio_weight=3.0
    )
    # 0.1, 0.7, 1.3, 0.3.
    expected = (math.log1p(math.exp(0.3)) + math.log1p(math.exp(0.5))) / 2
    assert apart.loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loss_type", ["rft", "dpo"])
def test_parts_of_a_batch_add_up_to_its_loss(loss_type: str) -> None:
    signs, settings = [1.0, -1.0, -1.0, 1.0], {"loss_type": loss_type, "kl_weight": 0.5}
    objective = objective_of(**{"ratio_level": "token", **settings})
    batch = two_streams()
    normalizer = loss_normalizer(batch.mask, batch.step_id, batch.stream_id, objective)
    parts = 0.0
    for rows in (slice(0, 2), slice(2, 4)):
        one = LogProbBatch(*(part[rows] for part in vars(batch).values()))
        parts += OBJECTIVES[loss_type](one, wide(signs[rows]), objective, 8, None, normalizer).loss.item()
    assert parts == pytest.approx(loss_of(batch, signs, **settings).loss.item(), abs=1e-12)


def trl_dpo(logp: Tensor, ref: Tensor, mask: Tensor, beta: float) -> Tensor:
    """The lines of TRL's online DPO from log-probs of two halves, of which the first is preferred, to the loss."""
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("the agreement is with trl==1.16.0")
    source = (Path(found.origin).parent / "experimental/online_dpo/online_dpo_trainer.py").read_text()
    lines = source[source.index("        cr_indices = torch.cat(") : source.index("        # Log everything")]
    pairs = len(logp) // 2
    names: dict[str, Any] = {
        "torch": torch, "F": torch.nn.functional, "logprobs": logp, "ref_logprobs": ref, "completion_mask": mask,
        "batch_size": pairs, "chosen_indices": torch.arange(pairs), "rejected_indices": torch.arange(pairs, 2 * pairs),
        "self": SimpleNamespace(args=SimpleNamespace(loss_type="sigmoid"), beta=beta),
    }  # fmt: skip
    exec(textwrap.dedent(lines), names)
    loss: Tensor = names["loss"]
    return loss


@pytest.mark.parametrize("seed", range(3))
def test_dpo_agrees_with_trl(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logp, ref = (-2 * torch.rand(6, 11, generator=draw, dtype=torch.float64) for _ in range(2))
    mask = (torch.arange(11)[None] < torch.randint(1, 12, (6,), generator=draw)[:, None]).double()
    batch = LogProbBatch(
        logp.requires_grad_(), logp.detach(), ref, mask, torch.arange(11).expand(6, 11), torch.zeros(6, 11).long()
    )
    ours = loss_of(batch, [1.0, -1.0] * 3, loss_type="dpo", kl_weight=0.3).loss
    (gradient,) = torch.autograd.grad(ours, batch.logp)
    # TRL has all preferred answers first.
    order = [0, 2, 4, 1, 3, 5]
    theirs = trl_dpo(batch.logp[order], ref[order], mask[order], 0.3)
    (expected,) = torch.autograd.grad(theirs, batch.logp)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
