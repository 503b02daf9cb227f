"""Advantages by hand, by source against TRL's own code, and which answers rejection sampling and DPO choose.

GRPO's own are in test_losses.py. Not covered: whether a run that normalises by source learns more.
"""

from __future__ import annotations

import inspect
import math
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paras2s.configs.schema.align import AlignConfig, ObjectiveConfig
from paras2s.errors import ConfigError, JudgeError
from paras2s.train.advantages import ADVANTAGES, MARKS, advantages_of, group_advantages, is_flat, scored_only
from paras2s.train.algorithm import check_algorithm, rule_of
from paras2s.train.batching import top_groups_by_reward_std
from paras2s.types import Reward, Unscored

NOTHING = Unscored("rubric", "silent")


def answers(**parts: list[float | None]) -> list[Reward | Unscored]:
    """A group whose reward is the plain sum of its sources; None: that source left the answer out."""
    rows = [
        {name: value for name, value in zip(parts, row, strict=True) if value is not None}
        for row in zip(*parts.values(), strict=True)
    ]
    return [Reward(sum(row.values()), row) if row else NOTHING for row in rows]


def test_sources_are_scaled_apart_then_summed_then_scaled_over_the_batch() -> None:
    """Deviations 1 and 100 of the first source; the second, of half the weight, takes half of it back in the first group."""
    groups = [answers(a=[1.0, 2.0, 3.0], b=[3.0, 2.0, 1.0]), answers(a=[0.0, 100.0, 200.0], b=[2.0, 2.0, 2.0])]
    found = advantages_of(groups, "sources", {"a": 1.0, "b": 0.5})
    low, high = 0.5 / 1.0001, 100 / 100.0001
    spread = math.sqrt(2 * (low**2 + high**2) / 5) + 1e-4
    expected = [-low / spread, 0, low / spread, -high / spread, 0, high / spread]
    assert found.values == pytest.approx(expected, abs=1e-12)
    assert (found.zero_spread, found.unscored) == (0, 0)


def test_the_scale_of_a_source_does_not_matter_and_its_weight_does() -> None:
    one, wide = (answers(a=[1.0, 2.0, 4.0], b=[factor * 3, factor * 1, factor * 2]) for factor in (0.01, 1.0))
    first, second = (advantages_of([group], "sources", {"a": 1.0, "b": 2.0}).values for group in (one, wide))
    assert first == pytest.approx(second, abs=0.02)
    # By the sum, the narrow source hardly counts.
    summed, other = (advantages_of([group], "group").values for group in (one, wide))
    assert max(abs(x - y) for x, y in zip(summed, other, strict=True)) > 0.3  # type: ignore[operator]
    assert advantages_of([wide], "sources", {"a": 2.0, "b": 1.0}).values != pytest.approx(second, abs=0.1)


def test_a_source_that_was_left_out_has_its_mean_and_an_unscored_answer_has_no_advantage() -> None:
    found = advantages_of([[*answers(a=[1.0, 3.0, 2.0], b=[None, 4.0, 2.0]), NOTHING]], "sources")
    a, b = 1 / 1.0001, 1 / (math.sqrt(2) + 1e-4)
    sums = [-a, a + b, -b]
    mean = sum(sums) / 3
    spread = math.sqrt(sum((value - mean) ** 2 for value in sums) / 2) + 1e-4
    assert found.values[:3] == pytest.approx([(value - mean) / spread for value in sums], abs=1e-12)
    assert (found.values[3], found.unscored) == (None, 1)


def test_flat_and_lone_groups_by_source() -> None:
    flat, lone = answers(a=[2.0, 2.0], b=[1.0, 1.0]), [Reward(3.0, {"a": 3.0}), NOTHING]
    found = advantages_of([flat, lone, answers(a=[1.0, 2.0], b=[1.0, 1.0])], "sources")
    assert found.values[:4] == (pytest.approx(0, abs=1e-15), pytest.approx(0, abs=1e-15), None, None)
    assert found.values[5] > 0  # type: ignore[operator]
    assert (found.zero_spread, found.unscored) == (1, 1)
    # Sources that cancel in the sum are flat by the sum and not by source.
    cancelling = [answers(a=[1.0, 3.0], b=[3.0, 1.0])]
    assert [advantages_of(cancelling, rule).zero_spread for rule in ("group", "sources")] == [1, 0]


@pytest.mark.parametrize(
    ("rule", "below"),
    [("group", [0.0, 0.0, None]), ("none", [0.0, 0.0, None]), ("sources", [0.0, 0.0, None]), ("best", [None] * 3)],
)
def test_a_spread_within_the_judges_noise_teaches_nothing(rule: str, below: list[float | None]) -> None:
    """Rewards of 2.00 and 2.02 deviate by 0.01 from their mean."""
    groups = [[*answers(a=[2.0, 2.02]), NOTHING], answers(a=[1.0, 5.0])]
    found = advantages_of(groups, rule, flat_std=0.011)
    assert (list(found.groups[0]), found.zero_spread) == (below, 1)
    assert (found.groups[1][1] or 0.0) > 0
    assert advantages_of(groups, rule, flat_std=0.009).zero_spread == 0


def trl_advantages(rewards: torch.Tensor, weights: list[float], size: int, how: str, scale: str) -> list[float]:
    """TRL's own lines from rewards a function [N, F] to advantages, cut out of the method that generates as well."""
    trl = pytest.importorskip("trl", reason="the agreement is with trl==1.16.0")
    from trl.trainer.utils import nanstd

    source = textwrap.dedent(inspect.getsource(trl.GRPOTrainer._generate_and_score_completions))
    start = source.index('    if self.multi_objective_aggregation == "sum_then_normalize"')
    stop = source.index("    advantages = torch.nan_to_num(advantages")
    trainer = SimpleNamespace(
        multi_objective_aggregation=how, scale_rewards=scale, reward_weights=torch.tensor(weights, dtype=torch.float64),
        reward_funcs=weights,
    )  # fmt: skip
    names: dict[str, Any] = {
        "torch": torch, "nanstd": nanstd, "self": trainer, "rewards_per_func": rewards, "num_generations": size,
        "device": "cpu", "unscorable_mask": torch.isnan(rewards).all(dim=1),
    }  # fmt: skip
    exec(textwrap.dedent(source[start:stop]), names)
    return list(names["advantages"].tolist())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("rule", "how", "scale"),
    [
        ("sources", "normalize_then_sum", "group"),
        ("group", "sum_then_normalize", "group"),
        ("none", "sum_then_normalize", "none"),
    ],
)
def test_agrees_with_trl(rule: str, how: str, scale: str, seed: int) -> None:
    """Three sources on scales of their own, a flat one, one that leaves answers out, an answer without any score."""
    draw = torch.Generator().manual_seed(seed)
    size, weights = 4, [1.0, 0.5, 2.0]
    rewards = torch.rand(3 * size, 3, generator=draw, dtype=torch.float64) * torch.tensor([1.0, 20.0, 0.1])
    rewards[:size, 1] = 3.0
    rewards[size] = torch.nan
    if rule == "sources":
        rewards[2 * size, 2] = torch.nan
    groups = []
    for start in range(0, len(rewards), size):
        rows = [{f"s{n}": float(v) for n, v in enumerate(row) if not v.isnan()} for row in rewards[start : start + size]]
        named = {f"s{n}": weight for n, weight in enumerate(weights)}
        groups.append([Reward(sum(named[k] * v for k, v in row.items()), row) if row else NOTHING for row in rows])
    found = advantages_of(groups, rule, named).values
    expected = trl_advantages(rewards, weights, size, how, scale)
    assert found[size] is None
    known = [place for place in range(len(found)) if place != size]
    # TRL's n / (n - 1) is in float32.
    assert [found[place] for place in known] == pytest.approx([expected[place] for place in known], abs=1e-6)


CHOICES = [[1.0, 4.0, 4.0], [2.0, None, 3.0], [2.0, 2.0], [5.0, None], [None, None]]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("best", [[None, 1.0, None], [None, None, 1.0], [None, None], [None, None], [None, None]]),
        ("pair", [[-1.0, 1.0, None], [-1.0, None, 1.0], [None, None], [None, None], [None, None]]),
    ],
)
def test_answers_that_are_chosen(rule: str, expected: list[list[float | None]]) -> None:
    """The first of equals; nobody of a flat group, or of one with fewer than two scores."""
    found = group_advantages(CHOICES, rule)
    assert found.groups == expected
    assert (found.zero_spread, found.unscored) == (1, 4)
    # Groups are chosen by their rewards: the first spreads more than the second, the others are none.
    assert top_groups_by_reward_std(found.compared, 1) == [0]
    assert top_groups_by_reward_std(found.compared, 5) == [0, 1]


@pytest.mark.parametrize(
    ("group", "apart", "max_std", "flat"),
    [
        (answers(a=[2.0, 2.0, 2.0]), False, 0.0, True),
        (answers(a=[0.1, 0.1, 0.1]), False, 0.0, True),
        (answers(a=[2.0, 2.1]), False, 0.0, False),
        # A deviation of 0.05.
        (answers(a=[2.0, 2.1]), False, 0.051, True),
        (answers(a=[2.0, 2.1]), False, 0.049, False),
        (answers(a=[1.0, 3.0], b=[3.0, 1.0]), False, 0.0, True),
        (answers(a=[1.0, 3.0], b=[3.0, 1.0]), True, 0.0, False),
        (answers(a=[1.0, 1.0], b=[3.0, 3.0]), True, 0.0, True),
        ([*answers(a=[2.0, 2.0]), NOTHING], False, 0.0, True),
        ([*answers(a=[2.0]), NOTHING], False, 9.0, False),
        ([NOTHING, NOTHING], False, 9.0, False),
    ],
)
def test_flat_groups(group: list[Reward | Unscored], apart: bool, max_std: float, flat: bool) -> None:
    assert is_flat(scored_only([group])[0], apart, max_std) is flat


def test_every_rule_is_reached_from_a_config() -> None:
    settings: list[dict[str, Any]] = [
        {"scale_rewards": "group"}, {"scale_rewards": "none"}, {"scale_rewards": "sources"}, {"loss_type": "rft"},
        {"loss_type": "dpo"}, {"loss_type": "self_distill"},
    ]  # fmt: skip
    assert [rule_of(ObjectiveConfig(**one)) for one in settings] == list(ADVANTAGES)
    assert set(MARKS) < set(ADVANTAGES)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"objective": {"loss_type": "dpo", "kl_weight": 0.0}}, "kl_weight is its beta and must be above 0"),
        ({"objective": {"loss_type": "rft", "tis_cap": 2.0}}, "tis_cap corrects policy gradients"),
        ({"objective": {"loss_type": "dpo"}, "optimizer": {"micro_batch_size": 1}}, "set micro_batch_size to 2"),
    ],
)
def test_mixtures_that_mean_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"align.objective: loss_type {settings['objective']['loss_type']}: .*{said}"):
        check_algorithm(AlignConfig(**settings))


@pytest.mark.parametrize("rule", ["group", "none", "sources", "best", "pair"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused(rule: str, value: float) -> None:
    with pytest.raises(JudgeError, match=r"answer 1 of group 0: a reward of (nan|inf); a missing reward is Unscored"):
        group_advantages([[1.0, value, 2.0]], rule)
