"""Figures of UniSRM-Bench: accuracy, correlation, both by dimension, and whether a judge depends on the sound at all.

Pure functions of items and rows. Intervals are of 95 %, by a bootstrap over texts, whose items belong together. An item
without judgement is left out of a figure and stays in `n_asked`. A tie is half right.
Alphabet: N items, R resamples, C clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from paras2s.statistics.correlation import weighted_pearson
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import draw, mean_by_cluster, percentiles
from paras2s.types import Absent
from paras2s.unisrm.bench.results import BenchRow
from paras2s.unisrm.reward.rewards import preferences
from paras2s.unisrm.reward.tasks import TASKS, Item, PairRecord, QualityRecord

RESAMPLES = 2_000
# Fewer than this and a correlation says nothing.
MIN_CORRELATED = 4
Figure = Share | Absent
Values = Sequence[float | None]


def rounded(score: float) -> float:
    """Return a score as a whole number, a half upwards, as the targets of training are."""
    return float(int(score + 0.5))


def points(item: Item, row: BenchRow | None) -> float | None:
    """1 right, 0 wrong, 0.5 a tie; of T2 whether the rounded overall scores agree. None without a judgement."""
    if row is None or row.unscored is not None:
        return None
    if isinstance(item.record, PairRecord):
        return 0.5 if row.better == "tie" else float(row.better == item.record.better)
    assert row.overall is not None
    return float(rounded(row.overall) == rounded(item.record.scores[-1]))


def accuracy(items: Sequence[Item], rows: Mapping[str, BenchRow]) -> Figure:
    """Return the share that is right."""
    return mean_share([points(item, rows.get(item.id)) for item in items], [item.text_id for item in items])


def mean_share(values: Values, clusters: Sequence[str]) -> Figure:
    """Return the mean of the values that are not None, with its interval; without any it is absent."""
    share = mean_by_cluster(values, clusters, resamples=RESAMPLES)
    return share if share.n else Absent("nothing has a judgement")


def correlation(scores: Values, labels: Sequence[float], clusters: Sequence[str]) -> Figure:
    """Return Pearson's correlation of the scores that are not None with the labels; absent where a side does not vary."""
    known = [row for row in zip(scores, labels, clusters, strict=True) if row[0] is not None]
    if len(known) < MIN_CORRELATED:
        return Absent(f"{len(known)} scores are too few to correlate")
    first, second = (np.array([row[side] for row in known], dtype=np.float64) for side in (0, 1))
    value = weighted_pearson(np.ones((1, len(known))), first, second)[0]
    if not np.isfinite(value):
        return Absent("all scores are alike" if np.ptp(first) == 0 else "all labels are alike")
    names = [row[2] for row in known]
    ends = percentiles(weighted_pearson(_resamples(names), first, second)) if len(set(names)) > 1 else (None, None)
    return Share(float(value), *ends, len(known), len(scores))


def _resamples(clusters: Sequence[str]) -> np.ndarray:
    """Return how often each resample draws each item [R, N]: as often as its cluster, of those in sorted order."""
    numbers = np.unique(clusters, return_inverse=True)[1]
    return draw(int(numbers.max()) + 1, RESAMPLES)[:, numbers]


# T2.


def overall_correlation(items: Sequence[Item], rows: Mapping[str, BenchRow]) -> Figure:
    """Return PCC of overall scores with the labels as they are, decimals included."""
    scores = [None if (row := rows.get(item.id)) is None else row.overall for item in items]
    return correlation(scores, [_label(item, -1) for item in items], [item.text_id for item in items])


def _label(item: Item, index: int) -> float:
    assert isinstance(item.record, QualityRecord)
    return float(item.record.scores[index])


# Dimensions (Tables 3 to 6).


def by_dimension(items: Sequence[Item], rows: Mapping[str, BenchRow]) -> dict[str, Figure]:
    """Return the share of pairs whose comparison in a dimension has the label's sign (equation 10); of T2 an aspect's PCC."""
    if not items:
        return {}
    task = TASKS[items[0].task]
    figures: dict[str, Figure] = {}
    for index, key in enumerate(task.keys):
        given = [None if (row := rows.get(item.id)) is None else row.dimensions.get(key) for item in items]
        clusters = [item.text_id for item in items]
        if not any(value is not None for value in given):
            figures[key] = Absent("the judge gives no dimensions")
        elif task.pairwise:
            figures[key] = _signs(items, given, index)
        elif any(len(item.record.scores) == 1 for item in items if isinstance(item.record, QualityRecord)):
            figures[key] = Absent("the labels have no aspects")
        else:
            figures[key] = correlation(given, [_label(item, index) for item in items], clusters)
    return figures


def _signs(items: Sequence[Item], given: Values, index: int) -> Figure:
    values: list[float | None] = []
    clusters = []
    for item, sign in zip(items, given, strict=True):
        assert isinstance(item.record, PairRecord)
        # A preference by people has no scores of dimensions.
        if item.record.sides is not None:
            values.append(None if sign is None else float(sign == preferences(item.record)[index]))
            clusters.append(item.text_id)
    return mean_share(values, clusters) if values else Absent("the labels have no dimensions")


# Controls.


def majority(items: Sequence[Item]) -> Figure:
    """Return the accuracy of giving each item the commonest label of these items."""
    labels = [
        item.record.better if isinstance(item.record, PairRecord) else str(rounded(item.record.scores[-1])) for item in items
    ]
    if not labels:
        return Absent("there is no item")
    commonest = Counter(labels).most_common(1)[0][0]
    return mean_share([float(label == commonest) for label in labels], [item.text_id for item in items])


def order_consistency(items: Sequence[Item], own: Mapping[str, BenchRow], swapped: Mapping[str, BenchRow]) -> Figure:
    """Return the share of pairs whose preferred candidate is the same in both orders."""
    values = [
        None if (first := own.get(item.id)) is None or (two := swapped.get(item.id)) is None or first.unscored or two.unscored
        else float(first.better == two.better)
        for item in items
    ]  # fmt: skip
    return mean_share(values, [item.text_id for item in items])


def parsed_share(items: Sequence[Item], rows: Mapping[str, BenchRow]) -> Figure:
    """Return the share of replies that give a record, of those that were given."""
    known = [(item, row) for item in items if (row := rows.get(item.id)) is not None]
    given = [(item, row) for item, row in known if row.reply or row.malformed or not row.unscored]
    return mean_share([float(not row.unscored) for _, row in given], [item.text_id for item, _ in given])


@dataclass(frozen=True)
class SoundTest:
    """Whether a judge is better with an item's own clips than with another's: the gain, its interval, and what it says."""

    gain: Figure
    measure: Literal["ACC", "PCC"]
    verdict: Literal["uses the sound", "deaf", "not tested"]


def sound_test(items: Sequence[Item], own: Mapping[str, BenchRow], shuffled: Mapping[str, BenchRow]) -> SoundTest:
    """Test on the items that are judged in both ways. Of T2 the gain is in PCC; a score that never varies is deaf."""
    both = [
        item for item in items
        if (first := own.get(item.id)) and (two := shuffled.get(item.id)) and first.unscored is None and two.unscored is None
    ]  # fmt: skip
    pairwise = bool(items) and TASKS[items[0].task].pairwise
    measure: Literal["ACC", "PCC"] = "ACC" if pairwise else "PCC"
    if len(both) < MIN_CORRELATED:
        return SoundTest(Absent(f"{len(both)} items are judged in both ways"), measure, "not tested")
    clusters = [item.text_id for item in both]
    # Resamples of few texts differ too little for an interval to say anything.
    if len(set(clusters)) < MIN_CORRELATED:
        return SoundTest(Absent(f"the items judged in both ways have {len(set(clusters))} texts"), measure, "not tested")
    if pairwise:
        gains = [(points(item, own[item.id]) or 0.0) - (points(item, shuffled[item.id]) or 0.0) for item in both]
        share = replace(mean_gain(gains, clusters), n_asked=len(items))
    else:
        gain, drawn = _correlation_gain(both, own, shuffled)
        share = Share(gain, *percentiles(drawn), len(both), len(items))
    return SoundTest(share, measure, "uses the sound" if share.low is not None and share.low > 0 else "deaf")


def mean_gain(gains: Values, clusters: Sequence[str]) -> Share:
    """Return the mean of the paired differences that are not None, with its interval."""
    return mean_by_cluster(gains, clusters, resamples=RESAMPLES, is_share=False)


def _correlation_gain(
    items: Sequence[Item], own: Mapping[str, BenchRow], shuffled: Mapping[str, BenchRow]
) -> tuple[float, np.ndarray]:
    """Return the gain in PCC, and that of each resample; a side that does not vary correlates with nothing."""
    labels = np.array([_label(item, -1) for item in items])
    scores = [np.array([rows[item.id].overall for item in items], dtype=np.float64) for rows in (own, shuffled)]
    correlate: Callable[[np.ndarray], np.ndarray] = lambda weights: np.subtract(  # noqa: E731
        *(np.nan_to_num(weighted_pearson(weights, side, labels)) for side in scores)
    )
    return float(correlate(np.ones((1, len(items))))[0]), correlate(_resamples([item.text_id for item in items]))
