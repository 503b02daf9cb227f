"""Labels of pairs as points, and votes as labels (AudioJudge, 3.4; StyleSet, 4.1).

Everything here is a pure function of labels. A missing label is never filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import stdev

from paras2s.errors import DataError
from paras2s.types import Label, MatchLabel, PairLabel

# Points of the first answer, where any kind of tie is half a win; of a match, 1 for "same".
POINTS: dict[PairLabel | MatchLabel | Label, float] = {"1": 1.0, "tie": 0.5, "2": 0.0, "same": 1.0, "different": 0.0}
POINTS |= {"both_good": 0.5, "both_bad": 0.5}
# Means of thirds and fifths are not exact, and an even vote is a tie.
NEAR = 1e-9


def swapped(label: PairLabel | MatchLabel) -> PairLabel | MatchLabel:
    """Return the same judgement with the two clips in the other order."""
    others: dict[str, PairLabel] = {"1": "2", "2": "1"}
    return others.get(label, label)


def label_of(points: float, margin: float = 0.0) -> PairLabel:
    """Return the label of a mean of points: a tie within `margin` of 0.5."""
    if abs(points - 0.5) <= margin + NEAR:
        return "tie"
    return "1" if points > 0.5 else "2"


def match_of(points: float) -> MatchLabel:
    """Return whether most votes say that two clips match. Raises DataError: the votes are even."""
    if abs(points - 0.5) <= NEAR:
        raise DataError("as many votes say that the clips match as that they do not")
    return "same" if points > 0.5 else "different"


def spread_of(votes: Sequence[float]) -> float | None:
    """Return the standard deviation of votes; None for a single vote."""
    return stdev(votes) if len(votes) > 1 else None


def prefer(first_score: float, second_score: float) -> PairLabel:
    """Turn two scores into a preference: the higher one wins, equal ones tie (AudioJudge, E.1)."""
    if first_score == second_score:
        return "tie"
    return "1" if first_score > second_score else "2"
