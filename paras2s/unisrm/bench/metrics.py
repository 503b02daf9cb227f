"""Figures of UniSRM-Bench: accuracy, correlation, both by dimension, and whether a judge depends on the sound at all.

Pure functions of items and rows. Intervals are of 95 %, by a bootstrap over texts, whose items belong together. What has no
judgement is left out of a figure and stays in `n_asked`. A tie is half right.
Alphabet: N items, R resamples, C clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from paras2s.bench.human_correlation import weighted_pearson
from paras2s.bench.speakbench.metrics import Share
from paras2s.bench.stats import ends_of_share
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
    """A score as a whole number, a half upwards, as the targets of training are."""
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
    """The share that is right."""
    return mean_share([points(item, rows.get(item.id)) for item in items], [item.text_id for item in items])


def mean_share(values: Values, clusters: Sequence[str]) -> Figure:
    """The mean of the values that there are, with its interval; without any it is absent."""
    known = [(value, cluster) for value, cluster in zip(values, clusters, strict=True) if value is not None]
    if not known:
        return Absent("nothing has a judgement")
    numbers, names = np.array([value for value, _ in known]), [cluster for _, cluster in known]
    weights = _resamples(names)
    mean = float(numbers.mean())
    low, high = _percentiles((weights * numbers).sum(1) / weights.sum(1)) if len(set(names)) > 1 else (None, None)
    if low is not None and high is not None:
        low, high = ends_of_share(mean, low, high, len(set(names)))
    return Share(mean, low, high, len(known), len(values))


def correlation(scores: Values, labels: Sequence[float], clusters: Sequence[str]) -> Figure:
    """Pearson's correlation of the scores that there are with the labels; absent where a side does not vary."""
    known = [one for one in zip(scores, labels, clusters, strict=True) if one[0] is not None]
    if len(known) < MIN_CORRELATED:
        return Absent(f"{len(known)} scores are too few to correlate")
    first, second = (np.array([one[side] for one in known], dtype=np.float64) for side in (0, 1))
    found = weighted_pearson(np.ones((1, len(known))), first, second)[0]
    if not np.isfinite(found):
        return Absent("all scores are alike" if np.ptp(first) == 0 else "all labels are alike")
    names = [one[2] for one in known]
    ends = _percentiles(weighted_pearson(_resamples(names), first, second)) if len(set(names)) > 1 else (None, None)
    return Share(float(found), *ends, len(known), len(scores))


def _resamples(clusters: Sequence[str]) -> np.ndarray:
    """Draws clusters with replacement: the number of times that each of N items stands in each of R resamples [R, N]."""
    place = np.unique(clusters, return_inverse=True)[1]
    count = int(place.max()) + 1
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return drawn[:, place].astype(np.float64)


def _percentiles(drawn: np.ndarray) -> tuple[float | None, float | None]:
    finite = drawn[np.isfinite(drawn)]
    if not len(finite):
        return None, None
    low, high = np.percentile(finite, [2.5, 97.5]).tolist()
    return low, high


# T2.


def overall_correlation(items: Sequence[Item], rows: Mapping[str, BenchRow]) -> Figure:
    """PCC of overall scores with the labels as they are, decimals included."""
    scores = [None if (row := rows.get(item.id)) is None else row.overall for item in items]
    return correlation(scores, [_label(item, -1) for item in items], [item.text_id for item in items])


def _label(item: Item, place: int) -> float:
    assert isinstance(item.record, QualityRecord)
    return float(item.record.scores[place])


# Dimensions (Tables 3 to 6).


def by_dimension(items: Sequence[Item], rows: Mapping[str, BenchRow]) -> dict[str, Figure]:
    """Returns the share of pairs whose comparison in a dimension has the label's sign (equation 10); of T2 an aspect's PCC."""
    if not items:
        return {}
    task = TASKS[items[0].task]
    figures: dict[str, Figure] = {}
    for place, key in enumerate(task.keys):
        given = [None if (row := rows.get(item.id)) is None else row.dimensions.get(key) for item in items]
        clusters = [item.text_id for item in items]
        if not any(one is not None for one in given):
            figures[key] = Absent("the judge gives no dimensions")
        elif task.pairwise:
            figures[key] = _signs(items, given, place)
        elif any(len(item.record.scores) == 1 for item in items if isinstance(item.record, QualityRecord)):
            figures[key] = Absent("the labels have no aspects")
        else:
            figures[key] = correlation(given, [_label(item, place) for item in items], clusters)
    return figures


def _signs(items: Sequence[Item], given: Values, place: int) -> Figure:
    values: list[float | None] = []
    clusters = []
    for item, sign in zip(items, given, strict=True):
        assert isinstance(item.record, PairRecord)
        # A preference by people has no scores of dimensions.
        if item.record.sides is not None:
            values.append(None if sign is None else float(sign == preferences(item.record)[place]))
            clusters.append(item.text_id)
    return mean_share(values, clusters) if values else Absent("the labels have no dimensions")


# Controls.


def majority(items: Sequence[Item]) -> Figure:
    """The accuracy of the commonest label of these very items, given to each."""
    labels = [
        item.record.better if isinstance(item.record, PairRecord) else str(rounded(item.record.scores[-1])) for item in items
    ]
    if not labels:
        return Absent("there is no item")
    commonest = Counter(labels).most_common(1)[0][0]
    return mean_share([float(label == commonest) for label in labels], [item.text_id for item in items])


def order_consistency(items: Sequence[Item], own: Mapping[str, BenchRow], swapped: Mapping[str, BenchRow]) -> Figure:
    """The share of pairs of which the same candidate is preferred in both orders."""
    values = [
        None if (one := own.get(item.id)) is None or (two := swapped.get(item.id)) is None or one.unscored or two.unscored
        else float(one.better == two.better)
        for item in items
    ]  # fmt: skip
    return mean_share(values, [item.text_id for item in items])


def parsed_share(items: Sequence[Item], rows: Mapping[str, BenchRow]) -> Figure:
    """The share of replies that give a record, of those that were given."""
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
    """Tests on the items that are judged in both ways. Of T2 the gain is in PCC; a score that never varies is deaf."""
    both = [
        item for item in items
        if (one := own.get(item.id)) and (two := shuffled.get(item.id)) and one.unscored is None and two.unscored is None
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
        share = mean_gain(gains, clusters, len(items))
    else:
        gain, drawn = _correlation_gain(both, own, shuffled)
        share = Share(gain, *_percentiles(drawn), len(both), len(items))
    return SoundTest(share, measure, "uses the sound" if share.low is not None and share.low > 0 else "deaf")


def mean_gain(gains: Sequence[float], clusters: Sequence[str], n_asked: int) -> Share:
    """The mean of paired differences, with its interval."""
    weights, values = _resamples(clusters), np.array(gains)
    return Share(float(values.mean()), *_percentiles((weights * values).sum(1) / weights.sum(1)), len(gains), n_asked)


def _correlation_gain(
    items: Sequence[Item], own: Mapping[str, BenchRow], shuffled: Mapping[str, BenchRow]
) -> tuple[float, np.ndarray]:
    """The gain in PCC, and that of each resample; a side that does not vary correlates with nothing."""
    labels = np.array([_label(item, -1) for item in items])
    scores = [np.array([rows[item.id].overall for item in items], dtype=np.float64) for rows in (own, shuffled)]
    correlate: Callable[[np.ndarray], np.ndarray] = lambda weights: np.subtract(  # noqa: E731
        *(np.nan_to_num(weighted_pearson(weights, one, labels)) for one in scores)
    )
    return float(correlate(np.ones((1, len(items))))[0]), correlate(_resamples([item.text_id for item in items]))
