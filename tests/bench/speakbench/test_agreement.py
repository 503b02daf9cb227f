"""Agreement statistics by hand, against scikit-learn, scipy and statsmodels, and on the authors' labels.

Not covered: whether intervals hold their level on few clusters, which is the percentile bootstrap's own property.
"""

import json
import warnings

import numpy as np
import pytest
from outside import HCOT, needs_hcot

from paras2s.bench.speakbench.metrics import (
    accuracy,
    cluster_counts,
    cohen_kappa,
    coherence,
    collapse,
    compare,
    confusion,
    content_controlled,
    flip_rates,
    majority_class,
    winner_on_bad,
    winner_slice,
)
from paras2s.errors import DataError
from paras2s.reward.fusion import find_rule
from paras2s.statistics.significance import mcnemar
from paras2s.types import LABELS

TRUTH = ["1", "2", "both_good", "both_bad", "1", "2"]
GUESS = ["1", "1", "both_bad", "both_bad", None, "2"]


def random_labels(count, seed, agreement=0.6):
    rng = np.random.default_rng(seed)
    truth = [LABELS[place] for place in rng.integers(4, size=count)]
    guess = [label if rng.random() < agreement else LABELS[rng.integers(4)] for label in truth]
    return truth, guess


def test_labels_collapse_to_three_and_two_values():
    assert [collapse(label, 3) for label in LABELS] == ["1", "2", "tie", "tie"]
    assert [collapse(label, 2) for label in LABELS] == ["1", "2", None, None]


@pytest.mark.parametrize(("ways", "value", "n"), [(4, 3 / 5, 5), (3, 4 / 5, 5), (2, 2 / 3, 3)])
def test_accuracy_counts_only_what_was_scored(ways, value, n):
    found = accuracy(TRUTH, GUESS, ways=ways)
    assert found.value == pytest.approx(value)
    assert (found.n, found.n_asked) == (n, 6)


def test_nothing_scored_is_no_number():
    found = accuracy(["1", "2"], [None, None])
    assert (found.value, found.low, found.high, found.n, found.n_asked) == (None, None, None, 0, 2)
    assert winner_on_bad(["1"], ["1"]).value is None


def test_the_plain_interval_agrees_with_scipy():
    from scipy import stats

    truth, guess = random_labels(300, 1)
    right = np.array([one == other for one, other in zip(truth, guess, strict=True)], dtype=float)
    theirs = stats.bootstrap((right,), np.mean, method="percentile", n_resamples=10_000, rng=0).confidence_interval
    ours = accuracy(truth, guess)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.006)


def test_the_clustered_interval_agrees_with_a_loop_over_drawn_clusters_and_is_wider():
    # Pairs of one instruction are all right or all wrong: 40 clusters of 5, so the error is that of 40 values.
    rng = np.random.default_rng(2)
    clusters = [place // 5 for place in range(200)]
    right = rng.random(40) < 0.6
    truth = ["1"] * 200
    guess = ["1" if right[cluster] else "2" for cluster in clusters]
    ours = accuracy(truth, guess, clusters)
    means = [right[rng.integers(40, size=40)].mean() for _ in range(10_000)]
    assert (ours.low, ours.high) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])), abs=0.026)
    plain = accuracy(truth, guess)
    assert ours.high - ours.low > 1.8 * (plain.high - plain.low)


def test_kappa_by_hand_and_against_scikit_learn():
    from sklearn.metrics import cohen_kappa_score

    # Agreement 0.7; by chance 0.5 x 0.6 + 0.5 x 0.4 = 0.5.
    truth, guess = ["1"] * 10 + ["2"] * 10, ["1"] * 8 + ["2"] * 2 + ["1"] * 4 + ["2"] * 6
    assert cohen_kappa(truth, guess).value == pytest.approx(0.4)
    truth, guess = random_labels(250, 3)
    found = cohen_kappa(truth, guess)
    assert found.value == pytest.approx(cohen_kappa_score(truth, guess), abs=1e-12)
    assert found.low < found.value < found.high
    assert cohen_kappa(["1", "1"], ["1", "1"]).value is None


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("first_only", "second_only"), [(3, 9), (0, 5), (40, 20)])
def test_mcnemar_agrees_with_statsmodels(first_only, second_only, exact):
    from statsmodels.stats.contingency_tables import mcnemar as reference

    table = [[10, first_only], [second_only, 10]]
    assert mcnemar(first_only, second_only, exact) == pytest.approx(reference(table, exact=exact, correction=True).pvalue)


def test_mcnemar_of_equal_counts_is_1():
    """statsmodels corrects past zero here and gives 0.79 for 7 against 7."""
    assert mcnemar(7, 7, exact=False) == mcnemar(7, 7, exact=True) == 1.0


def test_two_judges_are_compared_on_what_both_scored():
    truth = ["1"] * 8
    first = ["1"] * 6 + ["2", None]
    second = ["1", "1", "2", "2", "2", None, "1", "1"]
    found = compare(truth, first, second)
    assert (found.first_only, found.second_only, found.test) == (3, 1, "exact")
    assert found.difference.value == pytest.approx(2 / 6)
    assert (found.difference.n, found.difference.n_asked) == (6, 8)
    # Two-sided sign test of 3 against 1: 2 x (1 + 4) / 16.
    assert found.p_value == pytest.approx(10 / 16)
    assert compare(truth, first, first).p_value == 1.0


def test_a_paired_difference_is_narrower_than_two_independent_ones():
    truth, first = random_labels(400, 4, 0.5)
    second = [people if place % 10 == 0 else judge for place, (people, judge) in enumerate(zip(truth, first, strict=True))]
    paired = compare(truth, second, first).difference
    one, other = accuracy(truth, second), accuracy(truth, first)
    assert paired.value == pytest.approx(one.value - other.value)
    assert paired.high - paired.low < 0.7 * ((one.high - one.low) + (other.high - other.low)) / 2


def test_confusion_counts_and_weighted_figures_agree_with_scikit_learn():
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    truth, guess = random_labels(200, 5)
    guess = ["1" if label == "both_good" else label for label in guess]
    found = confusion([*truth, "1"], [*guess, None])
    assert np.array_equal(found.counts, confusion_matrix(truth, guess, labels=LABELS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision, recall, _, _ = precision_recall_fscore_support(truth, guess, labels=LABELS, average="weighted")
    assert found.weighted_precision == pytest.approx(precision)
    assert found.weighted_recall == pytest.approx(recall)
    assert found.n_asked == 201


def labels(content, voice_quality, paralinguistics):
    return {"content": content, "voice_quality": voice_quality, "paralinguistics": paralinguistics}


ROWS = [
    labels("1", "2", "both_good"),
    labels("both_bad", "1", "2"),
    labels("both_good", "both_good", "both_bad"),
    labels("both_good", "both_good", "both_good"),
    None,
]
OVERALL = ["1", "2", "both_bad", "both_good", "1"]


def test_probe_p1_says_which_dimension_breaks_the_tie_and_how_well():
    shares, right = content_controlled(ROWS, OVERALL, find_rule("speakbench"))
    assert {name: share.value for name, share in shares.items()} == {
        "paralinguistics": 0.25,
        "voice_quality": 0.25,
        "both_good": 0.5,
        "both_bad": 0.0,
    }
    # Voice quality says 2 where people say 1; paralinguistics says 2 and is right.
    assert (right["paralinguistics"].value, right["voice_quality"].value) == (1.0, 0.0)
    assert shares["both_good"].n_asked == 5
    capped, _ = content_controlled(ROWS, OVERALL, find_rule("s2sarena"))
    assert capped["both_bad"].value == 0.25


def test_probe_p2_flip_rates_by_hand():
    rates = flip_rates(ROWS, find_rule("speakbench"))
    # Content: row 1 goes from 1 to 2; row 2 keeps 2. Paralinguistics: row 2 goes from 2 to 1. Voice: nothing changes.
    assert {name: share.value for name, share in rates.items()} == {
        "content": 0.25,
        "voice_quality": 0.0,
        "paralinguistics": 0.25,
    }
    # Under the cap, row 2 stays bad by its content, and row 3 goes from both_bad to both_good.
    assert flip_rates(ROWS, find_rule("s2sarena"))["paralinguistics"].value == pytest.approx(0.25)
    assert flip_rates(ROWS, find_rule("s2sarena"))["content"].value == pytest.approx(0.5)


def test_probe_p3_winners_on_bad_pairs_and_on_pairs_with_a_winner():
    truth = ["both_bad", "both_bad", "both_bad", "1", "2", "2"]
    guess = ["1", "both_bad", None, "1", "both_good", "1"]
    bad, won = winner_on_bad(truth, guess), winner_slice(truth, guess)
    assert (bad.value, bad.n, bad.n_asked) == (0.5, 2, 3)
    assert (won.value, won.n, won.n_asked) == (pytest.approx(1 / 3), 3, 3)


def test_probes_are_wider_where_the_pairs_of_an_instruction_agree():
    rng = np.random.default_rng(3)
    clusters = [place // 10 for place in range(200)]
    bad = rng.random(20) < 0.5
    guess = ["1" if bad[cluster] else "both_bad" for cluster in clusters]
    plain, clustered = winner_on_bad(["both_bad"] * 200, guess), winner_on_bad(["both_bad"] * 200, guess, clusters)
    assert plain.value == clustered.value == pytest.approx(bad.mean())
    assert clustered.high - clustered.low > 2 * (plain.high - plain.low)


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(DataError, match="3 labels, 2 verdicts"):
        cluster_counts(["1", "2", "1"], ["1", "2"])
    with pytest.raises(DataError, match="no labels"):
        majority_class([])


@needs_hcot
def test_the_authors_labels_are_rebuilt_by_a_multinomial_model_and_their_majority_is_known():
    pairs = json.loads(HCOT.read_text())
    rows = [{name: pair["label"][name] for name in ("content", "voice_quality", "paralinguistics")} for pair in pairs]
    overall = [pair["label"]["overall"] for pair in pairs]
    found = coherence(rows, overall, [pair["instruction_id"] for pair in pairs])
    assert found["n"] == 497
    assert found["fitted"] > 0.93
    assert found["held_out"] > 0.9
    assert majority_class([row["paralinguistics"] for row in rows]) == ("both_bad", pytest.approx(383 / 497))
