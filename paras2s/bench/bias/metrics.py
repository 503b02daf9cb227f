"""Computes shares with intervals and p-values from a judge's labels on probes. Pure functions of outcomes.

A share's interval is a percentile bootstrap over clusters, at 0 and 1 Wilson's. A p-value is a wild cluster bootstrap of the
hypothesis that two outcomes are equally likely: each cluster's difference keeps its size and gets a random sign, so that
three pairs that all say the same prove nothing. With one pair a cluster it is the exact sign test, but for the drawing.
An outcome that cannot be told is left out of a share and stays in its `n_asked`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from paras2s.bench.human_correlation import Correlation, correlations
from paras2s.bench.speakbench.metrics import RESAMPLES, Share
from paras2s.bench.stats import ends_of_share
from paras2s.reward.judges.votes import swapped
from paras2s.types import PairLabel

PLACES = ("stable", "first", "second", "other")
AGAINST_ORDER, VERDICT = "order", "verdict"
# Classes of noisy pairs, in the order in which they are shown.
CLASSES = ("chosen", "not chosen", "people's tie", "1", "2", "tie")
# Upper ends of the gaps between two mean opinions that are counted together.
MOS_EDGES = (0.5, 1.0, 1.5, 2.0)
# Numbers held at once by a bootstrap.
BLOCK_CELLS = 10_000_000

Status = Literal["measured", "by construction", "absent"]


@dataclass(frozen=True)
class ProbeSpec:
    """A probe: what is done, the labels its outcomes have, and the two of them that an unbiased judge gives as often."""

    says: str
    labels: tuple[str, ...]
    compared: tuple[str, str] | None = None

    def labels_of(self, group: tuple[str, ...]) -> tuple[str, ...]:
        """The labels of one group: some groups count right and wrong verdicts."""
        return ("right", "wrong") if group[-1] == VERDICT else self.labels


PROBES: dict[str, ProbeSpec] = {
    "position": ProbeSpec(
        "Each pair in both orders. Stable: the same verdict. First or second: whatever is heard there wins in both orders. "
        "Other: a tie in one order alone.",
        PLACES,
        ("first", "second"),
    ),
    "identical": ProbeSpec("Each clip against itself.", ("tie", "first", "second"), ("first", "second")),
    "verbosity": ProbeSpec(
        "Pairs rated a tie whose transcripts differ by 5 words or more, each in both orders.",
        ("tie", "longer", "shorter"),
        ("longer", "shorter"),
    ),
    "noise": ProbeSpec(
        "White noise on both answers: whether the verdict is still that on the clean pair, by what the clean verdict was. At "
        "80 dB no noise can be heard: what changes there is the judge's own unrest. A level's p-value says whether it "
        "changes as many verdicts as 80 dB does.",
        ("unchanged", "changed"),
    ),
    "loudness": ProbeSpec(
        "Each clip against itself 6 dB louder, and 6 dB quieter.", ("tie", "louder", "quieter"), ("louder", "quieter")
    ),
    "speaker": ProbeSpec(
        "The same words in the clip's own voice and in another one, both taken apart and put together by a vocoder.",
        ("tie", "original", "other"),
        ("original", "other"),
    ),
    "mos_gap": ProbeSpec(
        "Each pair in both orders, by how far people's mean opinions of the two are apart. A verdict is right that names the "
        "one people find better; a tie is wrong.",
        PLACES,
        ("first", "second"),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """The label of one trial in one group; None: it has no label. `about` names the judged item, in every group."""

    cluster: str
    group: tuple[str, ...]
    label: str | None
    about: str = ""


@dataclass(frozen=True)
class Part:
    """The outcomes of one group: the share of each label, and whether the two of `compared` are equally likely.

    Where `against` names another group, the p-value is instead that of changes as likely as there.
    """

    group: tuple[str, ...]
    shares: dict[str, Share]
    compared: tuple[str, str] | None
    p_value: float | None
    clusters: int
    against: str | None = None


@dataclass(frozen=True)
class Change:
    """By how much scores of a group change on average, with a 95 % interval over clusters."""

    group: tuple[str, ...]
    mean: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class ProbeResult:
    """One probe of one judge. `why` says why it was not asked; `unscored` counts trials without a label by their reason."""

    name: str
    status: Status
    why: str = ""
    n_asked: int = 0
    n_scored: int = 0
    unscored: dict[str, int] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    changes: tuple[Change, ...] = ()
    correlation: Correlation | None = None
    notes: tuple[str, ...] = ()

    def part(self, *group: str) -> Part | None:
        """The part of this group."""
        return next((one for one in self.parts if one.group == group), None)


# What labels mean.


def place_of(given: PairLabel | None, exchanged: PairLabel | None) -> str | None:
    """Returns the effect of position from the labels of both orders, as given: stable, first, second, or other.

    Other: a tie in one order alone.
    """
    if given is None or exchanged is None:
        return None
    if given == swapped(exchanged):
        return "stable"
    if given == exchanged:
        return "first" if given == "1" else "second"
    return "other"


def noise_class(clean: PairLabel, human: PairLabel | None) -> str:
    """The class in which a noisy pair is counted, by the clean label: people's choice, the other answer, or a tie.

    A winner where people chose none has a class of its own; without people's label the class is the clean label.
    """
    if human is None or clean == "tie":
        return clean
    if human == "tie":
        return "people's tie"
    return "chosen" if clean == human else "not chosen"


def mos_bin(gap: float) -> str:
    """The bin of a gap between two mean opinions; a bin holds its lower end."""
    low = 0.0
    for high in MOS_EDGES:
        # 3.7 - 3.2 is a little less than 0.5 to a computer.
        if round(gap, 6) < high:
            return f"{low:g} to {high:g}"
        low = high
    return f"{low:g} and more"


# Counting.


def noise_order(part: Part) -> tuple[float, int]:
    """Returns the sort key of a noisy part: its level, all pairs before their classes."""
    return float(part.group[0].removesuffix(" dB")), CLASSES.index(part.group[1]) + 1 if len(part.group) > 1 else 0


def tell_parts(
    outcomes: Sequence[Outcome],
    labels_of: Callable[[tuple[str, ...]], tuple[str, ...]],
    compared: tuple[str, str] | None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[Part, ...]:
    """A part for every group, in the order in which they come."""
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.group, []).append(outcome)
    return tuple(_part(group, found, labels_of(group), compared, seed, resamples) for group, found in groups.items())


def _part(
    group: tuple[str, ...],
    outcomes: Sequence[Outcome],
    labels: tuple[str, ...],
    compared: tuple[str, str] | None,
    seed: int,
    resamples: int,
) -> Part:
    known = [one for one in outcomes if one.label is not None]
    rows = {name: place for place, name in enumerate(dict.fromkeys(one.cluster for one in known))}
    counts = np.zeros((len(rows), len(labels)), dtype=np.int64)
    for one in known:
        counts[rows[one.cluster], labels.index(str(one.label))] += 1
    two = compared if compared and set(compared) <= set(labels) else None
    p_value = None
    if two and known:
        p_value = p_equal(counts[:, labels.index(two[0])] - counts[:, labels.index(two[1])], seed, resamples)
    shares = dict(zip(labels, _shares(counts, len(outcomes), seed, resamples), strict=True))
    return Part(group, shares, two, p_value, len(rows))


def _shares(counts: np.ndarray, n_asked: int, seed: int, resamples: int) -> list[Share]:
    """The share of every column of counts [C, L]."""
    total, n = counts.sum(0), int(counts.sum())
    if not n:
        return [Share(None, None, None, 0, n_asked) for _ in total]
    ends = np.full((2, len(total)), np.nan)
    if len(counts) > 1:
        drawn = draw_clusters(counts.astype(np.float64), seed, resamples)
        ends = np.percentile(drawn / drawn.sum(1, keepdims=True), [2.5, 97.5], axis=0)
    shares = []
    for count, low, high in zip(total.tolist(), *ends.tolist(), strict=True):
        if len(counts) > 1:
            shares.append(Share(count / n, *ends_of_share(count / n, low, high, len(counts)), n, n_asked))
        else:
            shares.append(Share(count / n, None, None, n, n_asked))
    return shares


def draw_clusters(values: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Sums [R, V] of values [C, V] over clusters drawn with replacement.

    Clusters with equal values are drawn together, which changes no probability and saves nearly all of the work.
    """
    rng = np.random.default_rng(seed)
    rows, many = np.unique(values, axis=0, return_counts=True)
    blocks = np.array_split(np.arange(resamples), resamples * len(rows) // BLOCK_CELLS + 1)
    chance = many / many.sum()
    return np.concatenate([rng.multinomial(len(values), chance, size=len(block)) @ rows for block in blocks])


def p_equal(differences: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value that each cluster's difference [C] might as well have had the other sign."""
    rng = np.random.default_rng(seed)
    sizes, many = np.unique(np.abs(differences), return_counts=True)
    drawn = (2 * rng.binomial(many, 0.5, size=(resamples, len(many))) - many) @ sizes
    # The data itself is one of the possible draws, so that no p-value is 0.
    return float((1 + np.count_nonzero(np.abs(drawn) >= abs(differences.sum()))) / (1 + resamples))


def against_control(parts: Sequence[Part], outcomes: Sequence[Outcome], control: str, seed: int = 0) -> tuple[Part, ...]:
    """The parts, those of whole levels with the p-value of as many changes as at the control level, of the same pairs.

    A pair without a label at either of the two levels is left out of a comparison.
    """
    at_control = {one.about: one.label for one in outcomes if one.group == (control,) and one.label is not None}
    differences: dict[tuple[str, ...], dict[str, int]] = {}
    for one in outcomes:
        if len(one.group) == 1 and one.group != (control,) and one.label is not None and one.about in at_control:
            of_level = differences.setdefault(one.group, {})
            more = (one.label == "changed") - (at_control[one.about] == "changed")
            of_level[one.cluster] = of_level.get(one.cluster, 0) + more
    return tuple(
        replace(part, p_value=p_equal(np.array(list(differences[part.group].values())), seed), against=control)
        if part.group in differences
        else part
        for part in parts
    )


def retest_margin(changes: Sequence[float]) -> float | None:
    """The size that 95 % of a judge's changes of score on what sounds the same stay within; None without any change."""
    return float(np.quantile(np.abs(changes), 0.95)) if len(changes) else None


def mean_change(
    group: tuple[str, ...], values: Sequence[float], clusters: Sequence[Hashable], seed: int = 0, resamples: int = RESAMPLES
) -> Change:
    """The mean of changes, with its interval over clusters; None for an end where there is one cluster alone."""
    if not values:
        return Change(group, None, None, None, 0)
    rows = {name: place for place, name in enumerate(dict.fromkeys(clusters))}
    sums = np.zeros((len(rows), 2))
    for value, name in zip(values, clusters, strict=True):
        sums[rows[name]] += (value, 1)
    low = high = None
    if len(rows) > 1:
        drawn = draw_clusters(sums, seed, resamples)
        low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5]).tolist()
    return Change(group, float(np.mean(values)), low, high, len(values))


def gap_correlation(
    gaps: Sequence[float], stable: Sequence[bool], clusters: Sequence[str], seed: int = 0, resamples: int = RESAMPLES
) -> Correlation:
    """Spearman's correlation of the gap between two mean opinions with whether both orders agree, over pairs.

    Its p-value is of clusters: see `p_of_clusters`.
    """
    for what, values in (("gaps", set(gaps)), ("verdicts' stabilities", set(stable))):
        if len(values) < 2:
            return Correlation(why_none=f"the {what} are all the same")
    found = correlations(list(zip(gaps, map(float, stable), strict=True)), clusters)[1]
    return found if found.value is None else replace(found, p_value=p_of_clusters(gaps, stable, clusters, seed, resamples))


def p_of_clusters(
    gaps: Sequence[float], stable: Sequence[bool], clusters: Sequence[str], seed: int = 0, resamples: int = RESAMPLES
) -> float | None:
    """Two-sided p-value that clusters' mean stabilities go with any other cluster's mean gap, by rank; None for one cluster."""
    from scipy.stats import rankdata

    places = {name: place for place, name in enumerate(dict.fromkeys(clusters))}
    if len(places) < 2:
        return None
    sums = np.zeros((len(places), 3))
    for gap, same, name in zip(gaps, stable, clusters, strict=True):
        sums[places[name]] += (gap, same, 1)
    # Rounded: clusters of different sizes reach equal means by sums that differ in the last digit.
    sides = [rankdata(np.round(sums[:, column] / sums[:, 2], 9)) for column in (0, 1)]
    first, second = (side - side.mean() for side in sides)
    rng, found = np.random.default_rng(seed), abs(first @ second) - 1e-9
    blocks = np.array_split(np.arange(resamples), resamples * len(places) // BLOCK_CELLS + 1)
    drawn = [rng.permuted(np.tile(second, (len(block), 1)), axis=1) @ first for block in blocks]
    return (1 + sum(int(np.count_nonzero(np.abs(one) >= found)) for one in drawn)) / (1 + resamples)
