"""The anchor of the update: its value, its gradient, what a step learns from, and that it is off where it is 0.

Not covered: several ranks (test_fsdp.py), the files of demonstrations (tests/rollout/test_demonstrations.py), and whether it
keeps answers intelligible, which the benchmark measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny.dual_stream import small_config, small_model, small_policy, small_rollouts
from tiny.learner import GROUP, STEPS, Demonstrations, examples, make_prompts, rewards_of
from tiny.settings import align_config
from torch import Tensor

from paras2s.configs.schema.align import AdaptiveConfig, AnchorConfig, ObjectiveConfig
from paras2s.configs.schema.base import parse_config
from paras2s.errors import ConfigError, PolicyError
from paras2s.policy.types import Prompt, Sampling
from paras2s.train.anchor import anchor_metrics, batch_of_step, next_rl_share
from paras2s.train.learner import Learner
from paras2s.train.sft import Example, stream_losses
from paras2s.train.single_device import Devices
from paras2s.types import TEXT, Reward, Unscored
from paras2s.utils.io import read_json


class Watched(Devices):
    """Notes the gradients of each update before they are clipped."""

    def __init__(self) -> None:
        self.gradients: list[list[Tensor]] = []

    def clip(self, parameters: Iterable[Tensor], norm: float) -> float:
        held = list(parameters)
        self.gradients.append([torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in held])
        return super().clip(held, norm)


def make_learner(anchor: dict[str, Any] | None, **values: Any) -> Learner:
    policy = small_policy(small_model(small_config()))
    settings = {"lr": 0.01, "kl_weight": 0.05, "anchor": anchor, **values}
    return Learner(policy, align_config(**settings), STEPS, Watched())


def advance(learner: Learner, steps: int = 1) -> list[dict[str, Any]]:
    prompts, demonstrations, log = make_prompts(), Demonstrations(examples(learner.policy, 5)), []
    for _ in range(steps):
        rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, learner.next_step)
        anchored = batch_of_step(learner.config.objective.anchor, demonstrations, 0, learner.next_step)
        log.append(learner.step(prompts, rollouts, rewards_of(rollouts), anchored))
    return log


def assert_same_weights(one: Learner, other: Learner) -> None:
    left, right = one.weights(), other.weights()
    assert all(np.array_equal(left[name], right[name]) for name in left)


# -- its value and its gradient ---------------------------------------------------------------------------------------


def test_its_value_by_hand() -> None:
    """Token by token: the mean of -log p over all text tokens of the batch, and over all its codes."""
    learner = make_learner({"weight": 0.25, "streams": "both", "demonstrations": 3})
    anchored = batch_of_step(learner.config.objective.anchor, Demonstrations(examples(learner.policy, 5)), 0, 0)
    surprise: dict[bool, list[float]] = {True: [], False: []}
    for one in anchored:
        logp = learner.policy.logprobs([one.prompt], [one.target], Sampling())[0].detach().numpy()
        block = one.target[0]
        for _, step, slot in np.argwhere(block.sampled):
            surprise[bool(block.streams[0, step, slot] == TEXT)].append(-float(logp[0, step, slot]))
    text, audio = (float(np.mean(surprise[is_text])) for is_text in (True, False))
    row = advance(learner)[0]
    assert row["anchor_loss_text"] == pytest.approx(text, abs=1e-10)
    assert row["anchor_loss_audio"] == pytest.approx(audio, abs=1e-10)
    assert row["anchor_loss"] == pytest.approx(0.25 * (text + audio), abs=1e-10)


def test_a_weight_of_the_text_by_hand() -> None:
    config = AnchorConfig(weight=3.0, streams="both", text_weight=0.75)
    assert config.weights == (0.75, 3.0)
    assert config.times(0.5).weights == (0.375, 1.5)
    assert AnchorConfig(weight=3.0, streams="both").times(0.5).weights == (1.5, 1.5)
    # Off is off for both.
    assert AnchorConfig(weight=0.0, streams="both", text_weight=0.75).weights == (0.0, 0.0)


@pytest.mark.parametrize("streams", ["audio", "text"])
def test_a_weight_of_the_text_that_nothing_would_read_is_refused(streams: Any) -> None:
    with pytest.raises(ValidationError, match=f"text_weight is for `streams: both`; set it to null for `streams: {streams}`"):
        AnchorConfig(text_weight=0.75, streams=streams)


@pytest.mark.parametrize(
    ("streams", "weights"), [("audio", (0.0, 0.5)), ("text", (0.5, 0.0)), ("both", (0.5, 0.5))], ids=["audio", "text", "both"]
)
def test_its_weights_by_hand(streams: Any, weights: tuple[float, float]) -> None:
    config = AnchorConfig(weight=0.5, streams=streams)
    assert config.weights == weights
    found = anchor_metrics(config, np.array([2.0, 6.0]))
    expected = weights[0] * 2 + weights[1] * 6
    assert found == {"anchor_loss": expected, "anchor_loss_text": 2.0, "anchor_loss_audio": 6.0}


@pytest.mark.parametrize("streams", ["audio", "text", "both"])
@pytest.mark.parametrize("loss_type", ["grpo", "rft"])
def test_the_gradient_of_an_update_is_the_sum_of_both(streams: str, loss_type: str) -> None:
    plain, anchored = (make_learner(one, loss_type=loss_type) for one in (None, {"streams": streams, "weight": 0.3}))
    config = anchored.config.objective.anchor
    assert config is not None
    batch = batch_of_step(config, Demonstrations(examples(plain.policy, 5)), 0, 0)
    losses = stream_losses(small_policy(plain.policy.model), batch, 1.0)
    alone = torch.autograd.grad(torch.tensor(config.weights) @ losses.float(), list(plain.policy.model.parameters()),
                                allow_unused=True)  # fmt: skip
    rows = advance(plain), advance(anchored)
    (of_policy,), (of_both,) = plain.devices.gradients, anchored.devices.gradients  # type: ignore[attr-defined]
    for one, other, both in zip(of_policy, alone, of_both, strict=True):
        torch.testing.assert_close(both, one + (0.0 if other is None else other), atol=1e-6, rtol=0)
    # What the log says of the policy gradient is untouched.
    assert {key: rows[1][0][key] for key in rows[0][0] if key != "grad_norm"} == {
        key: value for key, value in rows[0][0].items() if key != "grad_norm"
    }


@pytest.mark.parametrize("size", [1, 2, 4])
def test_in_micro_batches_it_is_the_same(size: int) -> None:
    complete, parts = (make_learner({"streams": "both"}, micro_batch_size=one) for one in (None, size))
    for one, other in zip(advance(parts, 3), advance(complete, 3), strict=True):
        assert one == pytest.approx(other, abs=1e-9)
    left, right = parts.weights(), complete.weights()
    for name, value in left.items():
        np.testing.assert_allclose(value, right[name], atol=1e-9, err_msg=name)


def test_it_teaches_what_is_demonstrated() -> None:
    """With nothing but the anchor to learn from, the demonstrations' audio becomes likelier."""
    rows = advance(make_learner({"weight": 20.0, "demonstrations": 5}, kl_weight=0.0, steps=100), 25)
    assert rows[-1]["anchor_loss_audio"] < 0.7 * rows[0]["anchor_loss_audio"]


# -- the adaptive anchor ----------------------------------------------------------------------------------------------


def groups_of(*rows: list[float | None]) -> list[list[Reward | Unscored]]:
    return [[Unscored("j", "") if value is None else Reward(value, {}) for value in row] for row in rows]


@pytest.mark.parametrize(
    ("rows", "before", "share"),
    [
        # 0.8 x sigmoid(5 x (5 - 3)) x (8 / 3) / 4, with nothing before it.
        ([[5, 1, 3]], None, 0.8 * 0.9999546021312976 * (8 / 3) / 4),
        # Half open at the threshold: 0.8 x 0.5 x 1 / 4; a flat group counts as 0, a group without a score not at all.
        ([[3, 1], [5, 5], [None, None], [3, None, 1]], None, (0.1 + 0 + 0.1) / 3),
        # Smoothed: a tenth of the new value (the variance of 16 counts as 4) and nine tenths of the old one.
        ([[11, 3]], 0.5, 0.1 * 0.8 + 0.9 * 0.5),
        ([[1, 1]], 0.5, 0.45),
        # Without any reward the last share stays.
        ([[None, None]], 0.5, 0.5),
        ([[None, None]], None, 0.0),
    ],
    ids=["one group", "several", "smoothed", "nothing to learn", "no reward", "no reward at first"],
)
def test_the_share_of_the_policy_gradient_by_hand(rows: Any, before: float | None, share: float) -> None:
    assert next_rl_share(AdaptiveConfig(), groups_of(*rows), before) == pytest.approx(share, abs=1e-12)


def test_an_adaptive_update_is_shared_out() -> None:
    """Its gradient is the share of the policy's, and the rest of 1 times the weight of the anchor's."""
    adaptive: dict[str, Any] = {"weight": 0.5, "adaptive": {"threshold": 0.0}}
    plain, fixed, shared = (make_learner(one) for one in (None, {"weight": 1.0}, adaptive))
    rows = [advance(learner)[0] for learner in (plain, fixed, shared)]
    share = rows[2]["rl_share"]
    assert 0 < share < 0.8
    assert "rl_share" not in rows[1]
    (of_policy,), (of_both,), (found,) = (one.devices.gradients for one in (plain, fixed, shared))  # type: ignore[attr-defined]
    for policy, both, one in zip(of_policy, of_both, found, strict=True):
        torch.testing.assert_close(one, share * policy + (1 - share) * 0.5 * (both - policy), atol=1e-6, rtol=0)
    assert rows[2]["anchor_loss"] == pytest.approx((1 - share) * 0.5 * rows[1]["anchor_loss"])


def test_its_share_is_resumed(tmp_path: Path) -> None:
    complete, first, second, plain = (make_learner({"adaptive": {}} if n < 3 else {}) for n in range(4))
    expected = advance(complete, 4)
    log = advance(first, 2)
    first.save(tmp_path / "adaptive")
    second.restore(tmp_path / "adaptive")
    assert log + advance(second, 2) == expected
    assert_same_weights(complete, second)
    advance(plain)
    plain.save(tmp_path / "plain")
    assert set(read_json(tmp_path / "plain" / "trainer.json")) == {"version", "next_step", "base"}


def test_named_objectives_lie_beneath_what_is_given() -> None:
    anchored = ObjectiveConfig.model_validate({"named": "anchored", "kl_weight": 0.1})
    assert (anchored.average, anchored.audio_weight, anchored.kl_weight, anchored.anchor) == (
        "per_stream", 0.0, 0.1, AnchorConfig(weight=3.0),
    )  # fmt: skip
    given = ObjectiveConfig.model_validate({"named": "adaptive", "audio_weight": 0.3, "anchor": {"weight": 2}})
    assert (given.audio_weight, given.anchor) == (0.3, AnchorConfig(weight=2, adaptive=AdaptiveConfig()))
    assert ObjectiveConfig.model_validate(given.model_dump()) == given
    with pytest.raises(ConfigError, match=r"no objective is named 'joined'; there are anchored, adaptive"):
        parse_config({"named": "joined"}, "x", ObjectiveConfig)
    with pytest.raises(ConfigError, match="adaptive shares out every update"):
        parse_config({"anchor": {"every": 2, "adaptive": {}}}, "x", ObjectiveConfig)


# -- where it is off, and what a step learns from ---------------------------------------------------------------------


def test_a_weight_of_0_is_no_anchor_to_the_bit() -> None:
    plain, zero = make_learner(None), make_learner({"weight": 0.0})
    assert advance(plain, 3) == advance(zero, 3)
    assert_same_weights(plain, zero)


def test_a_step_learns_from_what_seed_and_step_say() -> None:
    held = Demonstrations(examples(small_policy(small_model(small_config())), 7))
    number = {id(one.target): row for row, one in enumerate(held.rows)}

    def rows(seed: int, step: int) -> list[int]:
        batch = batch_of_step(AnchorConfig(every=2, demonstrations=3), held, seed, step)
        return [number[id(one.target)] for one in batch]

    backwards = {step: rows(4, step) for step in reversed(range(14))}
    assert [len(backwards[step]) for step in range(4)] == [3, 0, 3, 0]
    assert {step: rows(4, step) for step in range(14)} == backwards
    assert [rows(5, step) for step in range(14)] != [backwards[step] for step in range(14)]
    # Seven such steps are three epochs.
    assert sorted(row for step in backwards.values() for row in step) == sorted(3 * list(range(7)))


def test_prompts_are_augmented_again_in_every_step() -> None:
    def noise(prompt: Prompt, rng: np.random.Generator) -> Prompt:
        return replace(prompt, text_ids=prompt.text_ids + rng.integers(1, 1000))

    rows = examples(small_policy(small_model(small_config())), 2)
    held = Demonstrations(rows, noise)
    config = AnchorConfig(demonstrations=2)
    first, second = ([one.prompt.text_ids[0] for one in batch_of_step(config, held, 0, step)] for step in (0, 1))
    assert len({*first, *second}) == 4
    assert first == [one.prompt.text_ids[0] for one in batch_of_step(config, held, 0, 0)]


def test_a_resumed_learner_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    anchor = {"every": 2, "streams": "both", "demonstrations": 2}
    complete, first, second = (make_learner(anchor) for _ in range(3))
    expected = advance(complete, 6)
    log = advance(first, 3)
    first.save(tmp_path)
    second.restore(tmp_path)
    assert log + advance(second, 3) == expected
    assert_same_weights(complete, second)


# -- errors -----------------------------------------------------------------------------------------------------------


def without_text(batch: Sequence[Example]) -> list[Example]:
    return [replace(one, target=(replace(one.target[0], sampled=one.target[0].sampled & (one.target[0].streams != TEXT)),))
            for one in batch]  # fmt: skip


def test_a_stream_that_no_demonstration_has_is_named() -> None:
    learner = make_learner({"streams": "text"})
    prompts = make_prompts()
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    with pytest.raises(PolicyError, match=r"anchor.streams: the demonstrations have no token of the text stream"):
        learner.step(prompts, rollouts, rewards_of(rollouts), without_text(examples(learner.policy, 2)))


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    learner = make_learner({"weight": 1.0})
    before = learner.weights()
    bad = examples(learner.policy, 1)
    bad[0].prompt.features[:] = np.nan  # type: ignore[index]
    prompts = make_prompts()
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    with pytest.raises(PolicyError, match=r"step 0: the anchor's loss is nan; lower align.optimizer.lr"):
        learner.step(prompts, rollouts, rewards_of(rollouts), bad)
    assert all(np.array_equal(value, learner.weights()[name]) for name, value in before.items())
