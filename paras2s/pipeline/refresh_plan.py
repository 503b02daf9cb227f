"""The decisions of a refresh of the reward model: which answers are scored, which are kept out, what validation answers get."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paras2s.configs.schema.run import RewardSourceConfig
from paras2s.reward.reward_model.model import RewardModel
from paras2s.reward.sources.composite import combine
from paras2s.types import Reward, Unscored
from paras2s.utils.seeds import Stream

# Share of the RL prompts' sentences, and of the answers, that no refresh learns from.
KEPT_OUT_SHARE = 0.25


@dataclass(frozen=True)
class NewestAnswer:
    """An answer by its step and its row in that step's file, and whether it is kept out of training."""

    step: int
    row: int
    query_id: str
    kept_out: bool


def kept_out_contrasts(contrasts: Iterable[str], seed: int) -> frozenset[str]:
    """Return the contrasts (words) that no refresh learns from: a quarter, at least one of several; none of a single one."""
    names = sorted(set(contrasts))
    if len(names) < 2:
        return frozenset()
    order = np.random.default_rng([seed, Stream.REFRESH_KEPT_OUT]).permutation(len(names))
    return frozenset(names[index] for index in order[: max(1, round(KEPT_OUT_SHARE * len(names)))])


def choose_newest(
    steps: Sequence[tuple[int, Sequence[str]]], kept_out: Collection[str], count: int, seed: int
) -> list[NewestAnswer]:
    """Return the newest answers to be scored, at most `count`, a quarter of them to queries that are `kept_out`.

    `steps` are the kept ones with the query of every answer. Of either kind the newest step's answers come first; which of the
    oldest step that is needed come in is drawn by the seed.
    """
    counts = {True: max(1, round(KEPT_OUT_SHARE * count))}
    counts[False] = count - counts[True]
    chosen: list[NewestAnswer] = []
    for step, queries in sorted(steps, reverse=True):
        order = np.random.default_rng([seed, Stream.REFRESH_NEWEST, step]).permutation(len(queries)).tolist()
        for kind in (False, True):
            rows = [row for row in order if (queries[row] in kept_out) == kind][: counts[kind]]
            chosen += [NewestAnswer(step, row, queries[row], kind) for row in sorted(rows)]
            counts[kind] -= len(rows)
    return chosen


def stays(old: Mapping[str, float | int | None], new: Mapping[str, float | int | None]) -> bool:
    """Return whether to keep the old reward model: on held-out newest answers it agrees better by both measures, knows as many.

    Few answers are kept out, so a new model that is better in anything, or that cannot be compared, is used.
    """

    def gain(key: str) -> float | None:
        before, after = old[key], new[key]
        return None if before is None or after is None else after - before

    pearson, error, known = (gain(key) for key in ("pearson", "mean_absolute_error", "known"))
    if pearson is None or error is None:
        return False
    return pearson < 0 and error > 0 and (known is None or known <= 0)


def rescored(
    paid: Mapping[str, float] | Unscored, value: float | Unscored, sources: Sequence[RewardSourceConfig]
) -> Reward | Unscored | None:
    """Return the reward of an answer that was paid by these parts, where the reward model says `value` of it.

    None if it cannot be known: the reward model left it without a score, and the other sources' scores were not kept.
    """
    own = {source.key for source in sources if source.kind == RewardModel.name}
    others = [source for source in sources if source.key not in own]
    if isinstance(paid, Unscored):
        by_model = paid.judge in {RewardModel.name, *own}
        if others and not by_model and any(source.required for source in others):
            return paid
        if others:
            return None
        paid = {}
    parts = {key: value for key in own} | {
        source.key: paid.get(source.key, Unscored(source.key, "it had no score")) for source in others
    }
    return combine(parts, sources)


def mean_reward(rewards: Sequence[Reward | Unscored | None]) -> float | None:
    """Return the mean over scored answers; None if none is scored, or a score is unknown: no other mean compares with it."""
    scored = [reward.value for reward in rewards if isinstance(reward, Reward)]
    return float(np.mean(scored)) if scored and None not in rewards else None
