"""Agreement among annotators: hand-computed numbers, Krippendorff's published example, statsmodels' Fleiss' kappa.

Not covered: the coverage of the intervals.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from statsmodels.stats.inter_rater import aggregate_raters
from statsmodels.stats.inter_rater import fleiss_kappa as reference_kappa

from paras2s.statistics.annotators import (
    fleiss_kappa,
    krippendorff,
    majority,
    observed_agreement,
    split_half_labels,
    split_half_scores,
)

# Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), four observers and twelve units.
OBSERVERS = ("123321412...", "12332241 25.3".replace(" ", ""), ".3332342251.", "12332441251.")


def units_of(rows: tuple[str, ...]) -> list[dict[str, str]]:
    return [{str(n): row[at] for n, row in enumerate(rows) if row[at] != "."} for at in range(len(rows[0]))]


EXAMPLE = units_of(OBSERVERS)
APART = [str(number) for number in range(12)]


@pytest.mark.parametrize(("distance", "alpha"), [("nominal", 0.743), ("interval", 0.849)])
def test_alpha_of_the_published_example(distance: str, alpha: float) -> None:
    found = krippendorff(EXAMPLE, APART, distance)  # type: ignore[arg-type]
    assert found.value == pytest.approx(alpha, abs=5e-4)
    # The unit with one value says nothing.
    assert found.n == 11
    assert found.low is not None
    assert found.low < alpha < (found.high or 0)


def alpha_by_variances(given: list[list[float]]) -> float:
    """Krippendorff's alpha for interval data without a table: squared differences of m values sum to 2 m^2 variances."""
    units = [np.array(values) for values in given if len(values) > 1]
    every = np.concatenate(units)
    observed = sum(2 * len(values) ** 2 * values.var() / (len(values) - 1) for values in units) / len(every)
    return float(1 - observed / (2 * len(every) * every.var() / (len(every) - 1)))


def test_alpha_is_that_of_another_formula() -> None:
    rng = random.Random(3)
    units = [{str(n): str(rng.randint(1, 5)) for n in range(rng.randint(1, 4))} for _ in range(30)]
    other = alpha_by_variances([[float(value) for value in unit.values()] for unit in units])
    assert krippendorff(units, range(30), "interval").value == pytest.approx(other)
    # Decimals, as means of several questions are, and no cluster but one.
    scores = [{n: rng.uniform(1, 5) for n in range(rng.randint(1, 4))} for _ in range(30)]
    found = krippendorff(scores, [""] * 30, "interval")
    assert found.value == pytest.approx(alpha_by_variances([list(unit.values()) for unit in scores]))
    assert found.low is None


def test_fleiss_kappa_is_that_of_statsmodels() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 3, (20, 4))
    units = [{str(n): str(value) for n, value in enumerate(row)} for row in table]
    assert fleiss_kappa(units, range(20)).value == pytest.approx(reference_kappa(aggregate_raters(table)[0]))


def test_fleiss_kappa_by_hand() -> None:
    """Three annotators, two units: aab and bbb. P = (1/3 + 1) / 2, chance = (2/6)^2 + (4/6)^2 = 5/9; so (2/3 - 5/9) / (4/9)."""
    units = [{"x": "a", "y": "a", "z": "b"}, {"x": "b", "y": "b", "z": "b"}, {"x": "a", "y": "a"}]
    found = fleiss_kappa(units, "pqr")
    assert found.value == pytest.approx(0.25)
    # The unit with two annotators is left out.
    assert found.n == 2


def test_observed_agreement_by_hand() -> None:
    """Of aab one pair of three agrees, of bb the only one: 2 of 4 pairs."""
    units = [{"x": "a", "y": "a", "z": "b"}, {"x": "b", "y": "b"}, {"x": "a"}]
    found = observed_agreement(units, "pqr")
    assert (found.value, found.n) == (0.5, 2)


def test_two_halves_of_two_annotators_are_the_annotators() -> None:
    units = [{"x": "a", "y": "a"}, {"x": "a", "y": "b"}, {"x": "b", "y": "b"}, {"x": "a", "y": "a"}]
    assert split_half_labels(units, "pqrs").value == observed_agreement(units, "pqrs").value == 0.75


def test_a_half_without_a_majority_does_not_count() -> None:
    """Of four, aabb: halves are ab and ab (no majority), or aa and bb (apart)."""
    assert split_half_labels([{"w": "a", "x": "a", "y": "b", "z": "b"}], "p").value == 0.0
    assert split_half_labels([{"x": "a", "y": "a"}], "p").low is None


def test_a_share_of_all_or_none_has_wilsons_interval() -> None:
    # By hand, z = 1.96: four of four reach down to 4 / (4 + z^2) = 0.510, none of four up to z^2 / (4 + z^2) = 0.490.
    for labels, ends in (("aaaa", (0.5101, 1.0)), ("abab", (0.0, 0.4899))):
        units = [{"x": labels[0], "y": labels[1]}] * 4
        for one in (observed_agreement, split_half_labels):
            found = one(units, "pqrs")
            assert (found.low, found.high) == pytest.approx(ends, abs=1e-4)
    assert observed_agreement([{"x": "a", "y": "a"}] * 4, "pppp").low is None


def test_split_half_reliability_of_scores() -> None:
    same = [{"x": str(n), "y": str(n)} for n in (1, 2, 3, 4, 5)]
    assert split_half_scores(same, "abcde").value == pytest.approx(1.0)
    # Halves whose means are r = 0.5 apart step up to 2 r / (1 + r); here one annotator is a constant for each half.
    assert split_half_scores(same[:2], "ab").why_none is not None
    flat = [{"x": "3", "y": "3"} for _ in range(5)]
    assert split_half_scores(flat, "abcde").value is None


def test_split_half_reliability_is_spearman_and_brown_of_pearson() -> None:
    """Two annotators whose order within a unit is all that halving can change: means over halvings of r, then 2 r / (1 + r)."""
    units = [{"x": "1", "y": "2"}, {"x": "2", "y": "1"}, {"x": "4", "y": "4"}, {"x": "5", "y": "3"}]
    found = split_half_scores(units, "abcd").value
    # Pearson's r is one of few values; the smallest and the largest over all 16 ways bound the average.
    ways = []
    for way in range(16):
        sides = [(a, b) if way >> at & 1 else (b, a) for at, (a, b) in enumerate([(1, 2), (2, 1), (4, 4), (5, 3)])]
        ways.append(np.corrcoef(np.array(sides).T)[0, 1])
    assert found is not None
    assert 2 * min(ways) / (1 + min(ways)) <= found <= 2 * max(ways) / (1 + max(ways))


def test_what_is_not_defined_says_why() -> None:
    alone = [{"x": "a"}, {"y": "b"}]
    for one in (observed_agreement, fleiss_kappa, split_half_labels, split_half_scores):
        found = one(alone, "pq")
        assert (found.value, found.why_none is None) == (None, False)
    same = [{"x": "a", "y": "a"}, {"x": "a", "y": "a"}]
    assert krippendorff(same, "pq", "nominal").why_none == "all values are the same"
    assert fleiss_kappa(same, "pq").why_none == "all values are the same"


@pytest.mark.parametrize(("values", "label"), [("aab", "a"), ("ab", None), ("", None), ("a", "a"), ("aabb", None)])
def test_majority(values: str, label: str | None) -> None:
    assert majority(list(values)) == label


def test_agreement_in_all_has_wilsons_interval_above_chance() -> None:
    """Four items, two labels each given as often: agreement reaches down to 4 / (4 + z^2) = 0.5101.

    Fleiss' chance is 0.5: (0.5101 - 0.5) / 0.5 = 0.0202. Krippendorff's is that of pairs without replacement, of eight values
    1 - 2 * 4 * 4 / (8 * 7) = 3/7: (0.5101 - 0.4286) / 0.5714 = 0.1427.
    """
    units = [{"x": label, "y": label} for label in "abab"]
    assert (fleiss_kappa(units, "pqrs").low, fleiss_kappa(units, "pqrs").high) == (pytest.approx(0.0202, abs=1e-3), 1.0)
    alpha = krippendorff(units, "pqrs", "nominal")
    assert (alpha.low, alpha.high) == (pytest.approx(0.1427, abs=1e-3), 1.0)
    # Two instructions are two trials: 2 / (2 + z^2) = 0.3424.
    assert fleiss_kappa(units, "ppqq").low == pytest.approx((0.3424 - 0.5) / 0.5, abs=1e-3)


def test_scores_that_are_all_the_same_by_two_people_have_no_interval() -> None:
    """By how much two people differ, where they do, is nowhere in scores on which they never do."""
    same = [{"x": str(n), "y": str(n)} for n in (1, 2, 3, 4, 5)]
    for found in (krippendorff(same, "abcde", "interval"), split_half_scores(same, "abcde")):
        assert (found.value, found.low, found.high) == (pytest.approx(1.0), None, None)
