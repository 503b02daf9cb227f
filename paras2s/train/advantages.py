"""From rewards to advantages: which answers of a step are learned from, and how strongly. Pure functions of numbers.

`ADVANTAGES` has one a rule, by `align.objective.scale_rewards`, or by the algorithm where that decides (`algorithm.rule_of`):
"group" and "none" compare the weighted reward within its group (GRPO, Dr. GRPO), "sources" each source of reward by itself
(GDPO), "best" takes the best answer of each group (rejection sampling), "pair" the best and the worst (DPO), "every" each
answer alike, flat groups too (self-distillation, which reads no reward).
Alphabet: B groups, G answers in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paras2s.errors import JudgeError
from paras2s.train.algorithm import MARKS
from paras2s.types import Reward, Unscored

# Added to a standard deviation before it divides, as TRL has it.
EPSILON = 1e-4
# One group's rewards, None for an answer without one.
GroupRewards = Sequence[Reward | None]
Values = list[list[float | None]]


@dataclass(frozen=True)
class Advantages:
    """`groups` [B, G]: None for an answer that nothing is learned from; `zero_spread` counts flat groups.

    `unscored` counts answers without a reward. `compared` [B, G] are the values by whose spread groups are chosen to learn
    from: the advantages, or the rewards where a rule only marks answers.
    """

    groups: Values
    zero_spread: int
    unscored: int
    compared: Values

    @property
    def values(self) -> tuple[float | None, ...]:
        """All answers' in order, [B * G]."""
        return tuple(value for group in self.groups for value in group)


def _known(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([value for value in values if value is not None], dtype=torch.float64)


def _flat(values: Sequence[float | None]) -> bool:
    """Return whether all are equal; their mean may be off by a rounding, so that a deviation from it is not exactly 0."""
    known = [value for value in values if value is not None]
    return bool(known) and min(known) == max(known)


def is_flat(group: GroupRewards, apart: bool = False, max_std: float = 0.0) -> bool:
    """Return whether two or more scored answers teach nothing: their rewards' standard deviation is at most `max_std`.

    `apart`: so is that of each source's scores, not only of their weighted sum.
    """
    scored = [reward for reward in group if reward is not None]
    if len(scored) < 2:
        return False
    columns: list[list[float | None]] = [[reward.value for reward in scored]]
    if apart:
        columns = [[reward.parts.get(name) for reward in scored] for name in _sources([scored])]
    return all(_flat(column) or float(_known(column).std(correction=0)) <= max_std for column in columns if _any_two(column))


def _any_two(column: Sequence[float | None]) -> bool:
    """Return whether two or more have a value."""
    return sum(value is not None for value in column) > 1


def _sources(groups: Sequence[GroupRewards]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for reward in group if reward is not None for name in reward.parts))


def centred(rewards: Sequence[float | None], scaled: bool) -> list[float | None]:
    """Subtract the group's mean, divide by the unbiased deviation if `scaled`; 0 in a flat group, None without a reward."""
    known = _known(rewards)
    if len(known) < 2:
        return [None] * len(rewards)
    if _flat(rewards):
        return [None if reward is None else 0.0 for reward in rewards]
    mean = known.mean().item()
    spread = known.std().item() + EPSILON if scaled else 1.0
    return [None if reward is None else (reward - mean) / spread for reward in rewards]


def by_group(groups: Sequence[GroupRewards], weights: Mapping[str, float]) -> Values:
    """GRPO: (r - mean) / (std + 1e-4) within each group.

    A reward model never gives eight equal scores, so this blows its noise up to full size where all answers are good.
    """
    return [centred([None if reward is None else reward.value for reward in group], True) for group in groups]


def unscaled(groups: Sequence[GroupRewards], weights: Mapping[str, float]) -> Values:
    """Dr. GRPO: r - mean within each group."""
    return [centred([None if reward is None else reward.value for reward in group], False) for group in groups]


def by_source(groups: Sequence[GroupRewards], weights: Mapping[str, float]) -> Values:
    """GDPO: each source scaled within its group, summed by weight, then scaled over the batch.

    So a source with a narrow scale counts by its weight and not by its spread. An answer that an optional source left out has
    that source's mean, which is 0.
    """
    sums: Values = []
    for group in groups:
        total: list[float | None] = [None if reward is None else 0.0 for reward in group]
        if not _any_two(total):
            sums.append([None] * len(group))
            continue
        for name in _sources([group]):
            column = centred([None if reward is None else reward.parts.get(name) for reward in group], True)
            weight = weights.get(name, 1.0)
            total = [
                None if so_far is None else so_far + weight * (value or 0.0)
                for so_far, value in zip(total, column, strict=True)
            ]
        sums.append(total)
    everything = _known([value for group in sums for value in group])
    if len(everything) < 2:
        return sums
    mean, spread = everything.mean().item(), everything.std().item() + EPSILON
    return [[None if value is None else (value - mean) / spread for value in group] for group in sums]


def best_of_group(groups: Sequence[GroupRewards], weights: Mapping[str, float]) -> Values:
    """Rejection sampling: 1 for the best answer of a group, the first of equals; nothing is learned from the others."""
    return [_marked(group, {best: 1.0}) if (best := _ends(group)[1]) is not None else [None] * len(group) for group in groups]


def pair_of_group(groups: Sequence[GroupRewards], weights: Mapping[str, float]) -> Values:
    """DPO: 1 for the best answer of a group and -1 for the worst, the first of equals; nothing is learned from the others."""
    values: Values = []
    for group in groups:
        worst, best = _ends(group)
        values.append([None] * len(group) if best is None or worst is None else _marked(group, {best: 1.0, worst: -1.0}))
    return values


def every_answer(groups: Sequence[GroupRewards], weights: Mapping[str, float]) -> Values:
    """Self-distillation: 1 for every answer with a reward, whatever it is."""
    return [[None if reward is None else 1.0 for reward in group] for group in groups]


def _ends(group: GroupRewards) -> tuple[int | None, int | None]:
    """Return the positions of the lowest and the highest reward; None in a group that is flat or has fewer than two."""
    scored = [(reward.value, position) for position, reward in enumerate(group) if reward is not None]
    if len(scored) < 2 or _flat([value for value, _ in scored]):
        return None, None
    return min(scored)[1], max(scored, key=lambda scored_at: (scored_at[0], -scored_at[1]))[1]


def _marked(group: GroupRewards, marks: Mapping[int, float]) -> list[float | None]:
    return [marks.get(position) for position in range(len(group))]


Rule = Callable[[Sequence[GroupRewards], Mapping[str, float]], Values]
ADVANTAGES: dict[str, Rule] = {
    "group": by_group,
    "none": unscaled,
    "sources": by_source,
    "best": best_of_group,
    "pair": pair_of_group,
    "every": every_answer,
}


def scored_only(rewards: Sequence[Sequence[Reward | Unscored]]) -> list[GroupRewards]:
    """Return rewards [B, G] with None in place of the reasons."""
    return [[reward if isinstance(reward, Reward) else None for reward in row] for row in rewards]


def advantages_of(
    rewards: Sequence[Sequence[Reward | Unscored]], rule: str, weights: Mapping[str, float] | None = None, flat_std: float = 0.0
) -> Advantages:
    """Return advantages of a step's rewards [B, G] by a key of `ADVANTAGES`; `weights` by source, 1 if none is given.

    A flat group, whose rewards' standard deviation is at most `flat_std`, has advantages of 0, or no chosen answer, and is
    counted; an unscored answer has none at all.

    Raises:
        JudgeError: a reward is NaN or infinite.
    """
    groups = scored_only(rewards)
    for number, group in enumerate(groups):
        for answer, reward in enumerate(group):
            if reward is not None and not math.isfinite(reward.value):
                raise JudgeError(f"answer {answer} of group {number}: a reward of {reward.value}; a missing reward is Unscored")
    is_flat_group = [is_flat(group, rule == "sources", flat_std) for group in groups]
    advantages = [
        [None if value is None or rule in MARKS else 0.0 for value in row] if flat and rule != "every" else row
        for row, flat in zip(ADVANTAGES[rule](groups, weights or {}), is_flat_group, strict=True)
    ]
    compared = advantages
    if rule in MARKS:
        marked = [any(value is not None for value in row) for row in advantages]
        values = [[None if reward is None else reward.value for reward in group] for group in groups]
        compared = [row if chosen else [None] * len(row) for row, chosen in zip(values, marked, strict=True)]
    return Advantages(advantages, sum(is_flat_group), sum(reward is None for group in groups for reward in group), compared)


def group_advantages(rewards: Sequence[Sequence[float | None]], scale: str = "group") -> Advantages:
    """Return advantages of rewards [B, G], None if unscored; `scale`: "group", "none", "best" or "pair"."""
    rows: list[list[Reward | Unscored]] = [
        [Unscored("", "") if value is None else Reward(value, {}) for value in row] for row in rewards
    ]
    return advantages_of(rows, scale)
