"""Agreement of a judge's typed-tie labels with people's (TRACE, 3.4, 4.1, 4.2 and appendix F).

Every figure comes from counts of (people's label, judge's label), so that a bootstrap resamples counts and nothing else.
A pair that the judge could not score has no label: it is left out of the figure and stays in `n_asked`.
Clusters are the pairs of one instruction, or single pairs.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from paras2s.errors import DataError
from paras2s.reward.fusion import WINNERS, FusionRule
from paras2s.statistics.intervals import Share
from paras2s.statistics.labels import accuracy_of, kappa_of, label_counts, share_of_counts
from paras2s.statistics.resampling import cluster_rows, ratio, sum_by_cluster
from paras2s.statistics.significance import mcnemar
from paras2s.types import DIMENSIONS, LABELS, Dimension, Label

Ways = Literal[4, 3, 2]
Labels = dict[Dimension, Label]
Clusters = Sequence[Hashable] | None
# Fewer discordant pairs than this and McNemar's chi-square is too coarse (the usual rule).
EXACT_BELOW = 25


def collapse(label: Label, ways: Ways) -> str | None:
    """Return a label with 4, 3 (one kind of tie) or 2 (winners only; a tie has none) values (TRACE, Table 2)."""
    if ways == 4 or label in WINNERS:
        return label
    return "tie" if ways == 3 else None


def cluster_counts(
    truth: Sequence[Label], guess: Sequence[Label | None], clusters: Clusters = None, ways: Ways = 4
) -> np.ndarray:
    """Return counts [C, L, L] of (truth, guess) in each cluster; without clusters each pair is its own.

    Pairs without a guess, or without a collapsed label on either side, count nowhere.

    Raises:
        DataError: the lengths differ.
    """
    groups = range(len(truth)) if clusters is None else clusters
    if not len(truth) == len(guess) == len(groups):
        raise DataError(f"{len(truth)} labels, {len(guess)} verdicts and {len(groups)} clusters do not belong together")
    labels = list(dict.fromkeys(name for label in LABELS if (name := collapse(label, ways)) is not None))
    people, judge = ([None if label is None else collapse(label, ways) for label in side] for side in (truth, guess))
    return label_counts(people, judge, labels, groups)


def accuracy(truth: Sequence[Label], guess: Sequence[Label | None], clusters: Clusters = None, ways: Ways = 4) -> Share:
    """Return the share of the scored pairs on which judge and people agree (TRACE, 3.4)."""
    return accuracy_of(cluster_counts(truth, guess, clusters, ways), len(truth))


def cohen_kappa(truth: Sequence[Label], guess: Sequence[Label | None], clusters: Clusters = None) -> Share:
    """Return the agreement beyond chance, over the four labels; None if chance alone agrees always (Cohen 1960)."""
    return kappa_of(cluster_counts(truth, guess, clusters), len(truth))


def majority_class(truth: Sequence[Label]) -> tuple[Label, float]:
    """Return the label people gave most often, and the accuracy of always giving it. Raises DataError: there are no labels."""
    if not truth:
        raise DataError("no labels: there is no majority class")
    label, count = Counter(truth).most_common(1)[0]
    return label, count / len(truth)


@dataclass(frozen=True)
class JudgeComparison:
    """Two judges on the pairs that both scored: accuracy of the first less that of the second, and McNemar's test.

    `first_only` and `second_only` count the pairs that only one of them got right; `test` names what gave `p_value`.
    """

    difference: Share
    first_only: int
    second_only: int
    p_value: float
    test: Literal["exact", "chi-square with continuity correction"]


def compare(
    truth: Sequence[Label], first: Sequence[Label | None], second: Sequence[Label | None], clusters: Clusters = None
) -> JudgeComparison:
    """Compare by a paired bootstrap of the difference in accuracy, and McNemar's two-sided test (TRACE, 4.2)."""
    both = [number for number in range(len(truth)) if first[number] is not None and second[number] is not None]
    groups = range(len(truth)) if clusters is None else clusters
    right = np.array([(first[number] == truth[number], second[number] == truth[number]) for number in both], dtype=np.int64)
    # A cluster's pairs that neither, the second only, the first only, and both got right.
    outcomes = np.eye(4, dtype=np.int64)[right.reshape(-1, 2) @ np.array([2, 1])]
    counts = sum_by_cluster(outcomes, [groups[number] for number in both])
    _, second_only, first_only, _ = counts.sum(0).tolist()
    difference = share_of_counts(lambda sums: ratio(sums[:, 2] - sums[:, 1], sums.sum(-1)), counts, len(truth))
    exact = first_only + second_only < EXACT_BELOW
    p_value = mcnemar(first_only, second_only, exact)
    return JudgeComparison(
        difference, first_only, second_only, p_value, "exact" if exact else "chi-square with continuity correction"
    )


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
    """Return the confusion matrix of the scored pairs."""
    table = cluster_counts(truth, guess).sum(0)
    people, judge, right = table.sum(1), table.sum(0), np.diag(table)
    precision = recall = None
    if table.sum():
        share = people / table.sum()
        precision = float((share * np.nan_to_num(ratio(right, judge))).sum())
        recall = float((share * np.nan_to_num(ratio(right, people))).sum())
    rows = tuple(tuple(int(cell) for cell in row) for row in table)
    return Confusion(LABELS, rows, precision, recall, len(truth))


def _share_of(flags: Sequence[bool | None], clusters: Clusters) -> Share:
    """Return the share of true flags among those that are not None, over clusters of pairs or single ones."""
    table = np.array([(flag is False, flag is True) for flag in flags], dtype=np.int64).reshape(-1, 2)
    counts = sum_by_cluster(table, range(len(flags)) if clusters is None else clusters)
    return share_of_counts(lambda sums: ratio(sums[:, 1], sums.sum(-1)), counts, len(flags), is_share=True)


def _among(clusters: Clusters, chosen: Sequence[bool]) -> Clusters:
    return None if clusters is None else [group for group, is_chosen in zip(clusters, chosen, strict=True) if is_chosen]


def content_controlled(
    guess: Sequence[Labels | None], truth: Sequence[Label], rule: FusionRule, clusters: Clusters = None
) -> tuple[dict[str, Share], dict[str, Share]]:
    """Probe P1: content forced to both_good, what resolves the tie? Return shares by resolver, and how often it is right.

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
    shares = {
        name: _share_of([None if resolver is None else resolver == name for resolver in resolved], clusters) for name in names
    }
    accuracies = {
        name: _share_of([flag if resolver == name else None for resolver, flag in zip(resolved, right, strict=True)], clusters)
        for name in ("paralinguistics", "voice_quality")
    }
    return shares, accuracies


def flip_rates(guess: Sequence[Labels | None], rule: FusionRule, clusters: Clusters = None) -> dict[str, Share]:
    """Probe P2: return how often the overall label changes when one dimension is replaced by both_good."""

    def flips(labels: Labels | None, dimension: Dimension) -> bool | None:
        if labels is None:
            return None
        return rule.fuse(cast(Labels, {**labels, dimension: "both_good"})) != rule.fuse(labels)

    return {name: _share_of([flips(labels, name) for labels in guess], clusters) for name in DIMENSIONS}


def winner_on_bad(truth: Sequence[Label], guess: Sequence[Label | None], clusters: Clusters = None) -> Share:
    """Probe P3: return the share of winners named where people call both bad (lower is better)."""
    chosen = [people == "both_bad" for people in truth]
    flags = [None if judge is None else judge in WINNERS for judge, bad in zip(guess, chosen, strict=True) if bad]
    return _share_of(flags, _among(clusters, chosen))


def winner_slice(truth: Sequence[Label], guess: Sequence[Label | None], clusters: Clusters = None) -> Share:
    """Probe P3: return the accuracy where people name a winner (higher is better)."""
    chosen = [people in WINNERS for people in truth]
    pairs = [(people, judge) for people, judge in zip(truth, guess, strict=True) if people in WINNERS]
    return _share_of([None if judge is None else judge == people for people, judge in pairs], _among(clusters, chosen))


def coherence(labels: Sequence[Labels], overall: Sequence[Label], clusters: Sequence[Hashable]) -> dict[str, Any]:
    """Measure how well a multinomial logistic model rebuilds the overall label from the three dimensions (TRACE, 4.1).

    `fitted` is its accuracy on the pairs it was fitted on, as in the paper; `held_out` over five folds that keep an
    instruction's pairs together, None if there are fewer than five instructions.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict

    one_hot = np.array([[row[dimension] == label for dimension in DIMENSIONS for label in LABELS] for row in labels], float)
    labels_overall = np.asarray(overall)
    if len(set(overall)) < 2:
        raise DataError("coherence: the overall labels are all alike, there is nothing to rebuild")
    model = LogisticRegression(C=1.0, max_iter=1000)
    fitted = float((model.fit(one_hot, labels_overall).predict(one_hot) == labels_overall).mean())
    held_out = None
    if len(set(clusters)) >= 5:
        # Few instructions may leave a fold with one label alone, which teaches nothing.
        with contextlib.suppress(ValueError):
            guessed = cross_val_predict(model, one_hot, labels_overall, cv=GroupKFold(5), groups=cluster_rows(clusters))
            held_out = float((guessed == labels_overall).mean())
    return {"fitted": fitted, "held_out": held_out, "n": len(labels_overall)}
