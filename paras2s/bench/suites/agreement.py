"""Agreement of judges of the same answers, preference by a pair's order, and systems that change places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from paras2s.bench.suites.base import OVERALL, SuiteRow, Table
from paras2s.reward.judges.votes import label_of
from paras2s.statistics.correlation import correlations
from paras2s.statistics.intervals import Share
from paras2s.statistics.labels import kappa_of, label_counts
from paras2s.statistics.resampling import mean_by_cluster
from paras2s.types import PAIR_LABELS

RESAMPLES = 2_000


def compare_judges(rows: Mapping[str, Sequence[SuiteRow]], tables: Mapping[str, Table]) -> list[dict[str, Any]]:
    """Return the agreement of every two judges, measure by measure, and the systems that change places."""
    compared = []
    for first, second in combinations(rows, 2):
        sides = [{row.key[1:]: row for row in rows[name] if row.score is not None} for name in (first, second)]
        common = [key for key in sides[0] if key in sides[1]]
        metrics = dict.fromkeys(key[-1] for key in common)
        compared.append(
            {
                "judges": [first, second],
                "measures": {
                    metric: _agreement([(sides[0][key], sides[1][key]) for key in common if key[-1] == metric])
                    for metric in metrics
                },
                "change_places": changed_places(tables[first], tables[second]),
            }
        )
    return compared


def _agreement(pairs: Sequence[tuple[SuiteRow, SuiteRow]]) -> dict[str, Any]:
    """Return kappa of the labels of pairs, or Spearman's correlation of scores, with the interval over items."""
    clusters = [first.cluster or first.item for first, _ in pairs]
    if any(first.baseline for first, _ in pairs):
        labels = [
            (label_of(a.parts[name]), label_of(b.parts[name]), a) for a, b in pairs for name in a.parts if name in b.parts
        ]
        counts = label_counts(
            [first for first, _, _ in labels], [second for _, second, _ in labels], PAIR_LABELS,
            [row.cluster or row.item for _, _, row in labels],
        )  # fmt: skip
        return {"statistic": "kappa", **asdict(kappa_of(counts, len(labels)))}
    spearman = correlations([(a.score or 0.0, b.score or 0.0) for a, b in pairs], clusters, RESAMPLES)[1]
    return {"statistic": "Spearman", **asdict(spearman), "n": len(pairs), "n_asked": len(pairs)}


def changed_places(first: Table, second: Table) -> list[list[str]]:
    """Return the pairs of systems, the better one by the first judge before, that the second judge orders otherwise."""
    scores = [{name: columns[headline(columns)].value for name, columns in table.items()} for table in (first, second)]
    known = [name for name, score in scores[0].items() if score is not None and scores[1].get(name) is not None]
    ordered = sorted(known, key=lambda name: -(scores[0][name] or 0.0))
    return [
        [a, b]
        for a, b in combinations(ordered, 2)
        if (scores[0][a] or 0.0) > (scores[0][b] or 0.0) and (scores[1][a] or 0.0) < (scores[1][b] or 0.0)
    ]


def headline(columns: Mapping[str, Any]) -> str:
    """Return the column that systems are ordered by."""
    return OVERALL if OVERALL in columns else next(iter(columns))


def by_position(rows: Sequence[SuiteRow]) -> dict[str, Share] | None:
    """Return how often the clip that came first wins, of decided verdicts of one order, and the share of equal orders."""
    placed = [row for row in rows if row.position is not None and row.score is not None]
    if not placed:
        return None
    wins = [
        (None if label_of(points) == "tie" else float((points > 0.5) == (row.position == 1)), row.cluster or row.item)
        for row in placed
        if row.consistent is None
        for points in row.parts.values()
    ]
    same = [(float(row.consistent), row.cluster or row.item) for row in placed if row.consistent is not None]
    return {"first_wins": _share(wins), "consistent": _share(same)}


def _share(values: Sequence[tuple[float | None, str]]) -> Share:
    return mean_by_cluster([value for value, _ in values], [cluster for _, cluster in values], resamples=RESAMPLES)
