"""Statistics beside those of SciPy, scikit-learn and statsmodels.

Not covered here: figures of single benchmarks, which their own tests work out by hand.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.proportion import proportion_confint

from paras2s.statistics.intervals import Share, ends_of_share
from paras2s.statistics.labels import accuracy_of, kappa_of, label_counts
from paras2s.statistics.resampling import cluster_rows, draw, interval_of, mean_by_cluster, percentiles, ratio, sum_by_cluster
from paras2s.statistics.significance import p_equal, p_of_ranks


@pytest.mark.parametrize(("count", "clusters"), [(0, 4), (4, 4), (0, 37), (37, 37)])
def test_wilsons_interval_is_that_of_statsmodels(count: int, clusters: int) -> None:
    value = count / clusters
    assert ends_of_share(value, value, value, clusters) == pytest.approx(
        proportion_confint(count, clusters, method="wilson"), abs=1e-9
    )


def test_other_shares_keep_their_ends() -> None:
    assert ends_of_share(0.5, 0.5, 0.5, 8) == (0.5, 0.5)
    assert ends_of_share(1.0, 0.9, 1.0, 8) == (0.9, 1.0)
    assert ends_of_share(1.0, 1.0, 1.0, 0) == (1.0, 1.0)


def test_kappa_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    first, second = (["abc"[n] for n in rng.integers(3, size=80)] for _ in range(2))
    counts = label_counts(first, second, "abc", range(80))
    assert kappa_of(counts, 80).value == pytest.approx(cohen_kappa_score(first, second))
    assert accuracy_of(counts, 80).value == np.mean(np.array(first) == np.array(second))
    # An item that lacks a label on either side is asked, and not counted.
    lacking = kappa_of(label_counts([None, *first[1:]], second, "abc", range(80)), 80)
    assert (lacking.n, lacking.n_asked) == (79, 80)
    assert lacking.value == pytest.approx(cohen_kappa_score(first[1:], second[1:]))


def test_clusters_are_numbered_as_they_come_and_summed() -> None:
    assert cluster_rows("bab").tolist() == [0, 1, 0]
    assert sum_by_cluster(np.array([[1, 2], [10, 20], [100, 200]]), "bab").tolist() == [[101, 202], [10, 20]]
    assert sum_by_cluster(np.zeros((0, 2)), []).shape == (0, 2)


def test_an_interval_is_scipys_bootstrap_of_the_same_clusters() -> None:
    values = np.random.default_rng(2).normal(size=60)
    ours = mean_by_cluster(values.tolist(), is_share=False)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=0).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert (ours.value, ours.n, ours.n_asked) == (pytest.approx(values.mean()), 60, 60)


def test_a_mean_leaves_out_what_is_missing_and_has_no_interval_over_one_cluster() -> None:
    assert mean_by_cluster([None, None]) == Share(n_asked=2)
    assert mean_by_cluster([1.0, None, 0.0], ["a", "b", "a"]) == Share(0.5, None, None, 2, 3)
    # Two sums of two items each.
    assert mean_by_cluster([3.0, 1.0], size=2, is_share=False).value == 1.0
    # All alike: Wilson's for a share, and the value itself for another figure.
    assert mean_by_cluster([1.0] * 4).low == pytest.approx(proportion_confint(4, 4, method="wilson")[0])
    assert mean_by_cluster([1.0] * 4, is_share=False).low == 1.0


def test_what_is_not_defined_is_none() -> None:
    assert percentiles(np.array([np.nan, np.nan])) == percentiles(None) == (None, None)
    assert np.isnan(ratio(np.array([1.0]), np.array([0.0])))[0]
    # A cluster without anything says nothing of how clusters differ, unless the caller counts it.
    tables = np.array([[1.0, 2.0], [0.0, 0.0]])
    shares = lambda sums: ratio(sums[:, 0], sums[:, 1])  # noqa: E731
    assert interval_of(shares, tables) == (0.5, None, None)
    assert interval_of(shares, tables, clusters=2) == (0.5, 0.5, 0.5)


def test_every_resample_draws_as_many_clusters_as_there_are() -> None:
    drawn = draw(7, 50, seed=3)
    assert (drawn.sum(1) == 7).all()
    assert (drawn == draw(7, 50, seed=3)).all()
    assert (drawn != draw(7, 50, seed=4)).any()


def test_signs_of_equal_clusters_give_the_exact_sign_test() -> None:
    differences = np.array([1] * 9 + [-1] * 3)
    assert p_equal(differences) == pytest.approx(stats.binomtest(9, 12).pvalue, abs=0.01)


def test_ranks_of_single_values_give_scipys_permutation_test() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=12)
    second = first + 2 * rng.normal(size=12)
    theirs = stats.permutation_test(
        (second,), lambda values: stats.spearmanr(first, values).statistic, permutation_type="pairings", n_resamples=2000, rng=0
    )
    assert p_of_ranks(first.tolist(), second.tolist(), [str(n) for n in range(12)]) == pytest.approx(theirs.pvalue, abs=0.03)
    assert p_of_ranks([1.0, 2.0], [1.0, 2.0], ["a", "a"]) is None
