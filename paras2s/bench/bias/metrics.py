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

from paras2s.reward.judges.votes import swapped
from paras2s.statistics.correlation import Correlation, correlations
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import percentiles, resample_alike, share_percentiles, sum_by_cluster
from paras2s.statistics.significance import p_equal, p_of_ranks
from paras2s.types import PairLabel

PLACES = ("stable", "first", "second", "other")
AGAINST_ORDER, VERDICT = "order", "verdict"
# Classes of noisy pairs, in the order in which they are shown.
CLASSES = ("chosen", "not chosen", "people's tie", "1", "2", "tie")
# Upper ends of the gaps between two mean opinions that are counted together.
MOS_EDGES = (0.5, 1.0, 1.5, 2.0)

Status = Literal["measured", "by construction", "absent"]


@dataclass(frozen=True)
class ProbeSpec:
    """A probe: what is done, the labels its outcomes have, and the two of them that an unbiased judge gives as often."""

    says: str
    labels: tuple[str, ...]
    compared: tuple[str, str] | None = None

    def labels_of(self, group: tuple[str, ...]) -> tuple[str, ...]:
        """Return the labels of one group: some groups count right and wrong verdicts."""
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
class TrialOutcome:
    """The label of one trial in one group; None: it has no label. `about` names the judged item, in every group."""

    cluster: str
    group: tuple[str, ...]
    label: str | None
    about: str = ""


@dataclass(frozen=True)
class Part:
    """One group's outcomes: label shares, and the p-value of the two of `compared` being equal, or as in group `against`."""

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
        """Return the part of this group."""
        return next((part for part in self.parts if part.group == group), None)


# What labels mean.


def place_of(given: PairLabel | None, exchanged: PairLabel | None) -> str | None:
    """Return the effect of position from both orders' labels: stable, first, second, or other (a tie in one order alone)."""
    if given is None or exchanged is None:
        return None
    if given == swapped(exchanged):
        return "stable"
    if given == exchanged:
        return "first" if given == "1" else "second"
    return "other"


def noise_class(clean: PairLabel, human: PairLabel | None) -> str:
    """Return the class in which a noisy pair is counted, by the clean label: people's choice, the other answer, or a tie.

    A winner where people chose none has a class of its own; without people's label the class is the clean label.
    """
    if human is None or clean == "tie":
        return clean
    if human == "tie":
        return "people's tie"
    return "chosen" if clean == human else "not chosen"


def mos_bin(gap: float) -> str:
    """Return the bin of a gap between two mean opinions; a bin holds its lower end."""
    low = 0.0
    for high in MOS_EDGES:
        # 3.7 - 3.2 is a little less than 0.5 to a computer.
        if round(gap, 6) < high:
            return f"{low:g} to {high:g}"
        low = high
    return f"{low:g} and more"


# Counting.


def noise_order(part: Part) -> tuple[float, int]:
    """Return the sort key of a noisy part: its level, all pairs before their classes."""
    return float(part.group[0].removesuffix(" dB")), CLASSES.index(part.group[1]) + 1 if len(part.group) > 1 else 0


def tell_parts(
    outcomes: Sequence[TrialOutcome],
    labels_of: Callable[[tuple[str, ...]], tuple[str, ...]],
    compared: tuple[str, str] | None,
    seed: int = 0,
) -> tuple[Part, ...]:
    """Return a part for every group, in the order in which they come."""
    groups: dict[tuple[str, ...], list[TrialOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.group, []).append(outcome)
    return tuple(_part(group, members, labels_of(group), compared, seed) for group, members in groups.items())


def _part(
    group: tuple[str, ...],
    outcomes: Sequence[TrialOutcome],
    labels: tuple[str, ...],
    compared: tuple[str, str] | None,
    seed: int,
) -> Part:
    known = [outcome for outcome in outcomes if outcome.label is not None]
    columns = np.array([labels.index(str(outcome.label)) for outcome in known], dtype=np.intp)
    counts = sum_by_cluster(np.eye(len(labels), dtype=np.int64)[columns], [outcome.cluster for outcome in known])
    two = compared if compared and set(compared) <= set(labels) else None
    p_value = None
    if two and known:
        p_value = p_equal(counts[:, labels.index(two[0])] - counts[:, labels.index(two[1])], seed)
    shares = dict(zip(labels, _shares(counts, len(outcomes), seed), strict=True))
    return Part(group, shares, two, p_value, len(counts))


def _shares(counts: np.ndarray, n_asked: int, seed: int) -> list[Share]:
    """Return the share of every column of counts [C, L]."""
    total, n = counts.sum(0), int(counts.sum())
    if not n:
        return [Share(n_asked=n_asked) for _ in total]
    if len(counts) < 2:
        return [Share(count / n, None, None, n, n_asked) for count in total.tolist()]
    drawn = resample_alike(counts.astype(np.float64), seed)
    columns = (drawn / drawn.sum(1, keepdims=True)).T
    return [
        Share(count / n, *share_percentiles(count / n, column, len(counts)), n, n_asked)
        for count, column in zip(total.tolist(), columns, strict=True)
    ]


def against_control(parts: Sequence[Part], outcomes: Sequence[TrialOutcome], control: str, seed: int = 0) -> tuple[Part, ...]:
    """Return the parts, whole levels with the p-value of as many changes as at the control level, of pairs labelled at both."""
    known = [outcome for outcome in outcomes if outcome.label is not None]
    at_control = {outcome.about: outcome.label for outcome in known if outcome.group == (control,)}
    differences: dict[tuple[str, ...], dict[str, int]] = {}
    for outcome in known:
        if len(outcome.group) == 1 and outcome.group != (control,) and outcome.about in at_control:
            of_level = differences.setdefault(outcome.group, {})
            more = (outcome.label == "changed") - (at_control[outcome.about] == "changed")
            of_level[outcome.cluster] = of_level.get(outcome.cluster, 0) + more
    return tuple(
        replace(part, p_value=p_equal(np.array(list(differences[part.group].values())), seed), against=control)
        if part.group in differences
        else part
        for part in parts
    )


def retest_margin(changes: Sequence[float]) -> float | None:
    """Return the size that 95 % of a judge's changes of score on what sounds the same stay within; None without any change."""
    return float(np.quantile(np.abs(changes), 0.95)) if len(changes) else None


def mean_change(group: tuple[str, ...], values: Sequence[float], clusters: Sequence[Hashable], seed: int = 0) -> Change:
    """Return the mean of changes, with its interval over clusters; None for an end where there is only one cluster."""
    if not values:
        return Change(group, None, None, None, 0)
    sums = sum_by_cluster(np.array([values, np.ones(len(values))], dtype=np.float64).T, clusters)
    drawn = resample_alike(sums, seed)
    low, high = percentiles(drawn[:, 0] / drawn[:, 1]) if len(sums) > 1 else (None, None)
    return Change(group, float(np.mean(values)), low, high, len(values))


def gap_correlation(gaps: Sequence[float], stable: Sequence[bool], clusters: Sequence[str], seed: int = 0) -> Correlation:
    """Return Spearman's correlation, over pairs, of the gap in mean opinion with agreement of the orders (`p_of_ranks`)."""
    for what, values in (("gaps", set(gaps)), ("verdicts' stabilities", set(stable))):
        if len(values) < 2:
            return Correlation(why_none=f"the {what} are all the same")
    spearman = correlations(list(zip(gaps, map(float, stable), strict=True)), clusters)[1]
    return spearman if spearman.value is None else replace(spearman, p_value=p_of_ranks(gaps, stable, clusters, seed))
