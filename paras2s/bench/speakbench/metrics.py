"""Agreement of a judge's typed-tie labels with people's (TRACE, 3.4, 4.1, 4.2 and appendix F).

Every figure comes from counts of (people's label, judge's label), so that a bootstrap resamples counts and nothing else.
A pair that the judge could not score has no label: it is left out of the figure and stays in `n_asked`.
Alphabet here: L labels, C clusters (the pairs of one instruction, or single pairs), R resamples.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from paras2s.bench.stats import ends_of_kappa, ends_of_share
from paras2s.errors import DataError
from paras2s.reward.fusion import WINNERS, FusionRule
from paras2s.types import DIMENSIONS, LABELS, Dimension, Label

Ways = Literal[4, 3, 2]
Labels = dict[Dimension, Label]
RESAMPLES = 10_000
# Fewer discordant pairs than this and McNemar's chi-square is too coarse (the usual rule).
EXACT_BELOW = 25


@dataclass(frozen=True)
class Share:
    """A share with its 95 % interval, bootstrap or at 0 and 1 Wilson's; None of nothing. `n` of `n_asked` were counted."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    n_asked: int


def collapse(label: Label, ways: Ways) -> str | None:
    """A label with 4, 3 (one kind of tie) or 2 (winners only; a tie has none) values (TRACE, Table 2)."""
    if ways == 4 or label in WINNERS:
        return label
    return "tie" if ways == 3 else None


def _alphabet(ways: Ways) -> list[str]:
    return list(dict.fromkeys(one for label in LABELS if (one := collapse(label, ways)) is not None))


def cluster_counts(
    truth: Sequence[Label], guess: Sequence[Label | None], clusters: Sequence[Hashable] | None = None, ways: Ways = 4
) -> np.ndarray:
    """Counts [C, L, L] of (truth, guess) in each cluster; without clusters each pair is its own.

    Pairs without a guess, or without a collapsed label on either side, count nowhere.

    Raises:
        DataError: the lengths differ.
    """
    groups = range(len(truth)) if clusters is None else clusters
    if not len(truth) == len(guess) == len(groups):
        raise DataError(f"{len(truth)} labels, {len(guess)} verdicts and {len(groups)} clusters do not belong together")
    names = {name: place for place, name in enumerate(_alphabet(ways))}
    rows = {name: place for place, name in enumerate(dict.fromkeys(groups))}
    counts = np.zeros((len(rows), len(names), len(names)), dtype=np.int64)
    for people, judge, group in zip(truth, guess, groups, strict=True):
        one, other = collapse(people, ways), None if judge is None else collapse(judge, ways)
        if one is not None and other is not None:
            counts[rows[group], names[one], names[other]] += 1
    return counts


def resample(counts: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Tables [R, ...] summed over clusters drawn with replacement from counts [C, ...]; the same seed draws the same ones."""
    clusters = len(counts)
    weights = np.random.default_rng(seed).multinomial(clusters, np.full(clusters, 1 / clusters), size=resamples)
    drawn = weights.astype(np.float64) @ counts.reshape(clusters, -1).astype(np.float64)
    return drawn.reshape(resamples, *counts.shape[1:])


def _interval(
    statistic: Callable[[np.ndarray], np.ndarray], counts: np.ndarray, n_asked: int, seed: int = 0, share: bool = False
) -> Share:
    """A statistic of a table [..., L, L] with its percentile interval; resamples on which it is not defined are left out.

    A `share` of 0 or 1 has Wilson's interval over clusters instead. Clusters of which one alone counts have no interval.
    """
    n = int(counts.sum())
    value = statistic(counts.sum(0)[None])[0] if n else np.nan
    if not np.isfinite(value):
        return Share(None, None, None, n, n_asked)
    counted = int(counts.reshape(len(counts), -1).any(1).sum())
    if counted < 2:
        return Share(float(value), None, None, n, n_asked)
    drawn = statistic(resample(counts, seed=seed))
    low, high = np.percentile(drawn[np.isfinite(drawn)], [2.5, 97.5]).tolist()
    if share:
        low, high = ends_of_share(float(value), low, high, counted)
    return Share(float(value), low, high, n, n_asked)


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.asarray(np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom > 0))


def _agree(tables: np.ndarray) -> np.ndarray:
    return _ratio(np.trace(tables, axis1=-2, axis2=-1).astype(np.float64), tables.sum((-2, -1)).astype(np.float64))


def _by_chance(tables: np.ndarray) -> np.ndarray:
    total = tables.sum((-2, -1)).astype(np.float64)
    return _ratio((tables.sum(-1) * tables.sum(-2)).sum(-1).astype(np.float64), total**2)


def _kappa(tables: np.ndarray) -> np.ndarray:
    by_chance = _by_chance(tables)
    return _ratio(_agree(tables) - by_chance, 1 - by_chance)


def accuracy(
    truth: Sequence[Label], guess: Sequence[Label | None], clusters: Sequence[Hashable] | None = None, ways: Ways = 4
) -> Share:
    """Share of the scored pairs on which judge and people agree (TRACE, 3.4)."""
    return _interval(_agree, cluster_counts(truth, guess, clusters, ways), len(truth), share=True)


def cohen_kappa(truth: Sequence[Label], guess: Sequence[Label | None], clusters: Sequence[Hashable] | None = None) -> Share:
    """Agreement beyond chance, over the four labels; None where chance alone agrees always (Cohen 1960)."""
    counts = cluster_counts(truth, guess, clusters)
    found = _interval(_kappa, counts, len(truth))
    if found.low is None or found.low < 1:
        return found
    agreement, by_chance = _interval(_agree, counts, len(truth), share=True), float(_by_chance(counts.sum(0)[None])[0])
    low, high = ends_of_kappa(agreement.low or 0.0, by_chance)
    return replace(found, low=low, high=high)


def majority_class(truth: Sequence[Label]) -> tuple[Label, float]:
    """The label people gave most often, and the accuracy of always giving it.

    Raises:
        DataError: there are no labels.
    """
    if not truth:
        raise DataError("no labels: there is no majority class")
    label, count = Counter(truth).most_common(1)[0]
    return label, count / len(truth)


@dataclass(frozen=True)
class Comparison:
    """Two judges on the pairs that both scored: accuracy of the first less that of the second, and McNemar's test.

    `first_only` and `second_only` count the pairs that only one of them got right; `test` names what gave `p_value`.
    """

    difference: Share
    first_only: int
    second_only: int
    p_value: float
    test: Literal["exact", "chi-square with continuity correction"]


def compare(
    truth: Sequence[Label],
    first: Sequence[Label | None],
    second: Sequence[Label | None],
    clusters: Sequence[Hashable] | None = None,
) -> Comparison:
    """Paired bootstrap of the difference in accuracy, and McNemar's two-sided test (TRACE, 4.2)."""
    both = [place for place in range(len(truth)) if first[place] is not None and second[place] is not None]
    right = np.array([[first[at] == truth[at], second[at] == truth[at]] for at in both], dtype=bool).reshape(-1, 2)
    groups = list(range(len(truth))) if clusters is None else list(clusters)
    rows = {name: place for place, name in enumerate(dict.fromkeys(groups[at] for at in both))}
    # A table [2, 2] of (first right, second right) a cluster.
    counts = np.zeros((max(1, len(rows)), 2, 2), dtype=np.int64)
    for at, (one, other) in zip(both, right.astype(int).tolist(), strict=True):
        counts[rows[groups[at]], one, other] += 1
    table = counts.sum(0)
    first_only, second_only = int(table[1, 0]), int(table[0, 1])
    difference = _interval(
        lambda tables: _ratio((tables[..., 1, 0] - tables[..., 0, 1]).astype(np.float64), tables.sum((-2, -1)).astype(float)),
        counts,
        len(truth),
    )
    exact = first_only + second_only < EXACT_BELOW
    p_value = mcnemar(first_only, second_only, exact)
    return Comparison(
        difference, first_only, second_only, p_value, "exact" if exact else "chi-square with continuity correction"
    )


def mcnemar(first_only: int, second_only: int, exact: bool) -> float:
    """Two-sided p-value of two counts of discordant pairs; 1 where there are none (McNemar 1947)."""
    from scipy import stats

    discordant = first_only + second_only
    if discordant == 0:
        return 1.0
    if exact:
        return float(stats.binomtest(first_only, discordant, 0.5).pvalue)
    return float(stats.chi2.sf(max(0, abs(first_only - second_only) - 1) ** 2 / discordant, 1))


@dataclass(frozen=True)
class Confusion:
    """Counts [L, L] of (people's, judge's) label, in the order of `labels`.

    Precision and recall are weighted by people's class frequencies (TRACE, Fig. 9); a class the judge never gives counts
    with a precision of 0, as scikit-learn has it.
    """

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    weighted_precision: float | None
    weighted_recall: float | None
    n_asked: int


def confusion(truth: Sequence[Label], guess: Sequence[Label | None]) -> Confusion:
    """The confusion matrix of the scored pairs."""
    table = cluster_counts(truth, guess).sum(0)
    people, judge, right = table.sum(1), table.sum(0), np.diag(table)
    precision = recall = None
    if table.sum():
        share = people / table.sum()
        precision = float((share * np.nan_to_num(_ratio(right.astype(float), judge.astype(float)))).sum())
        recall = float((share * np.nan_to_num(_ratio(right.astype(float), people.astype(float)))).sum())
    rows = tuple(tuple(int(cell) for cell in row) for row in table)
    return Confusion(LABELS, rows, precision, recall, len(truth))


Clusters = Sequence[Hashable] | None


def _share_of(flags: Sequence[bool | None], clusters: Clusters) -> Share:
    """Share of true flags among those that are not None, over clusters of pairs or single ones."""
    groups = range(len(flags)) if clusters is None else clusters
    rows = {name: place for place, name in enumerate(dict.fromkeys(groups))}
    counts = np.zeros((max(1, len(rows)), 2), dtype=np.int64)
    for flag, group in zip(flags, groups, strict=True):
        if flag is not None:
            counts[rows[group], int(flag)] += 1
    return _interval(
        lambda tables: _ratio(tables[..., 1].astype(float), tables.sum(-1).astype(float)), counts, len(flags), share=True
    )


def _among(clusters: Clusters, chosen: Sequence[bool]) -> Clusters:
    return None if clusters is None else [group for group, wanted in zip(clusters, chosen, strict=True) if wanted]


def content_controlled(
    guess: Sequence[Labels | None], truth: Sequence[Label], rule: FusionRule, clusters: Clusters = None
) -> tuple[dict[str, Share], dict[str, Share]]:
    """Probe P1: content forced to both_good, what resolves the tie? Shares by resolver, and how often it is right.

    A resolver is "paralinguistics" or "voice_quality" (the first of them, in the rule's order, with a winner), or the tie
    that remains. Its accuracy is against people's overall label.
    """
    order = [name for name in rule.order if name != "content"] or ["paralinguistics", "voice_quality"]
    resolved: list[str | None] = []
    right: list[bool | None] = []
    for labels, people in zip(guess, truth, strict=True):
        if labels is None:
            resolved.append(None)
            right.append(None)
            continue
        overall = rule.fuse({**labels, "content": "both_good"})
        won = overall in WINNERS
        resolved.append(next((name for name in order if labels[name] in WINNERS), order[-1]) if won else overall)
        right.append(overall == people if won else None)
    names = ("paralinguistics", "voice_quality", "both_good", "both_bad")
    shares = {name: _share_of([None if one is None else one == name for one in resolved], clusters) for name in names}
    accuracies = {
        name: _share_of([flag if one == name else None for one, flag in zip(resolved, right, strict=True)], clusters)
        for name in ("paralinguistics", "voice_quality")
    }
    return shares, accuracies


def flip_rates(guess: Sequence[Labels | None], rule: FusionRule, clusters: Clusters = None) -> dict[str, Share]:
    """Probe P2: how often the overall label changes when one dimension is replaced by both_good."""

    def flips(labels: Labels | None, dimension: Dimension) -> bool | None:
        if labels is None:
            return None
        return rule.fuse(cast(Labels, {**labels, dimension: "both_good"})) != rule.fuse(labels)

    return {name: _share_of([flips(labels, name) for labels in guess], clusters) for name in DIMENSIONS}


def winner_on_bad(truth: Sequence[Label], guess: Sequence[Label | None], clusters: Clusters = None) -> Share:
    """Probe P3: winners named where people call both bad (lower is better)."""
    chosen = [people == "both_bad" for people in truth]
    flags = [None if judge is None else judge in WINNERS for judge, bad in zip(guess, chosen, strict=True) if bad]
    return _share_of(flags, _among(clusters, chosen))


def winner_slice(truth: Sequence[Label], guess: Sequence[Label | None], clusters: Clusters = None) -> Share:
    """Probe P3: accuracy where people name a winner (higher is better)."""
    chosen = [people in WINNERS for people in truth]
    pairs = [(people, judge) for people, judge in zip(truth, guess, strict=True) if people in WINNERS]
    return _share_of([None if judge is None else judge == people for people, judge in pairs], _among(clusters, chosen))


def coherence(labels: Sequence[Labels], overall: Sequence[Label], clusters: Sequence[Hashable]) -> dict[str, Any]:
    """Measures how well a multinomial logistic model rebuilds the overall label from the three dimensions (TRACE, 4.1).

    `fitted` is its accuracy on the pairs it was fitted on, as in the paper; `held_out` over five folds that keep an
    instruction's pairs together, None where there are fewer than five instructions.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict

    one_hot = np.array([[row[dimension] == label for dimension in DIMENSIONS for label in LABELS] for row in labels], float)
    wanted = np.asarray(overall)
    if len(set(overall)) < 2:
        raise DataError("coherence: the overall labels are all alike, there is nothing to rebuild")
    model = LogisticRegression(C=1.0, max_iter=1000)
    fitted = float((model.fit(one_hot, wanted).predict(one_hot) == wanted).mean())
    held_out = None
    if len(set(clusters)) >= 5:
        names = {name: place for place, name in enumerate(dict.fromkeys(clusters))}
        groups = np.array([names[one] for one in clusters])
        # Few instructions may leave a fold with one label alone, of which nothing can be learned.
        with contextlib.suppress(ValueError):
            guessed = cross_val_predict(model, one_hot, wanted, cv=GroupKFold(5), groups=groups)
            held_out = float((guessed == wanted).mean())
    return {"fitted": fitted, "held_out": held_out, "n": len(wanted)}
