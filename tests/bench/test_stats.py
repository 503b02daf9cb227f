"""Statistics of the benchmark against numbers worked out by hand, and rows through a file.

Not covered: whether a clustered error is well calibrated on few contrasts, which is the estimator's own property.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tiny.answers import answer

from paras2s.bench.paras2s.metrics import cell
from paras2s.bench.results import load_rows, save_rows
from paras2s.bench.speakbench.metrics import accuracy, cohen_kappa
from paras2s.bench.speakbench.report import share_text
from paras2s.bench.stats import contrast_metric, paired_difference, summarise
from paras2s.errors import DataError
from paras2s.statistics.intervals import ends_of_share
from paras2s.statistics.means import clustered_mean


def test_clustered_mean_by_hand() -> None:
    # Mean 3; residual sums a: -2 + -1 = -3, b: 0 + 3 = 3; variance 2/1 * (9 + 9) / 16 = 2.25.
    estimate = clustered_mean([1, 2, 3, 6], ["a", "a", "b", "b"])
    assert (estimate.mean, estimate.standard_error, estimate.n, estimate.clusters) == (3.0, 1.5, 4, 2)


def test_clusters_of_one_give_the_usual_standard_error() -> None:
    # Sample variance of 1, 2, 3 is 1; divided by 3.
    assert clustered_mean([1, 2, 3], ["a", "b", "c"]).standard_error == pytest.approx((1 / 3) ** 0.5)


def test_too_little_to_estimate() -> None:
    assert clustered_mean([2, 4], ["a", "a"]).standard_error is None
    assert clustered_mean([], []).mean is None
    with pytest.raises(ValueError, match="clusters"):
        clustered_mean([1.0], [])


def test_summarise_leaves_unscored_out_and_weighs_categories_the_same() -> None:
    rows = [
        answer(1, "c1", word_error_rate=0.5, duration_s=1.0),
        answer(3, "c2", word_error_rate=0.0, duration_s=3.0),
        answer(None, "c2", "sad"),
        answer(4, "s1", category="sarcasm"),
        answer(4, "s2", category="sarcasm"),
        answer(5, "s3", category="sarcasm"),
        answer(3, "s4", category="sarcasm"),
    ]
    scores = summarise(rows)
    assert list(scores.categories) == ["emotion", "sarcasm"]
    emotion, sarcasm = scores.categories["emotion"], scores.categories["sarcasm"]
    assert (emotion.estimate.mean, emotion.estimate.standard_error) == (2.0, 1.0)  # 2/1 * (1 + 1) / 4 = 1
    assert (emotion.estimate.n, emotion.n_asked) == (2, 3)
    assert sarcasm.estimate.standard_error == pytest.approx((1 / 6) ** 0.5)  # 4/3 * (1 + 1) / 16 = 1/6
    assert scores.overall.estimate.mean == 3.0  # (2 + 4) / 2, not the mean over answers, 20 / 6
    assert scores.overall.estimate.standard_error == pytest.approx((1 + 1 / 6) ** 0.5 / 2)
    assert (scores.overall.estimate.n, scores.overall.n_asked, scores.overall.estimate.clusters) == (6, 7, 6)
    assert (scores.word_error_rate.estimate.mean, scores.word_error_rate.estimate.n) == (0.25, 2)
    assert scores.duration_s.mean == pytest.approx((1 + 3 + 5 * 2) / 7)


def test_a_category_without_any_score_leaves_overall_without_a_mean() -> None:
    scores = summarise([answer(4), answer(None, "s1", category="sarcasm")])
    assert scores.categories["sarcasm"].estimate.mean is None
    assert scores.overall.estimate.mean is None
    assert (scores.overall.estimate.n, scores.overall.n_asked) == (1, 2)


def test_an_error_that_one_category_lacks_is_missing_overall() -> None:
    scores = summarise([answer(4, "c1"), answer(2, "c2"), answer(3, "s1", category="sarcasm")])
    assert scores.overall.estimate.mean == 3.0
    assert scores.overall.estimate.standard_error is None


def test_contrast_metric_by_hand() -> None:
    rows = [
        answer(5, "c1", "happy"),
        answer(4, "c1", "sad"),  # told apart
        answer(5, "c2", "happy"),
        answer(4, "c2", "sad", family="happy"),  # the same answer twice
        answer(5, "c3", "happy"),
        answer(2, "c3", "sad"),  # one does not fit
        answer(5, "c4", "happy"),
        answer(None, "c4", "sad"),  # left out
        answer(5, "c5", "happy"),  # the other style is missing: left out
    ]
    metric = contrast_metric(rows)
    assert metric.estimate.mean == pytest.approx(1 / 3)
    # Residuals 2/3, -1/3, -1/3: 3/2 * (6/9) / 9 = 1/9.
    assert metric.estimate.standard_error == pytest.approx(1 / 3)
    assert (metric.estimate.n, metric.n_asked) == (3, 5)


def test_contrast_metric_pairs_answers_by_their_number() -> None:
    rows = [
        answer(5, style="happy", answer_index=0),
        answer(1, style="happy", answer_index=1),
        answer(1, style="sad", answer_index=0),
        answer(5, style="sad", answer_index=1),
    ]
    metric = contrast_metric(rows)
    assert (metric.estimate.mean, metric.estimate.n, metric.n_asked) == (0.0, 2, 2)


def test_contrast_metric_of_a_judge_that_names_no_families_is_not_measured() -> None:
    rows = [answer(5, "c1", "happy", family=None), answer(1, "c1", "sad", family=None)]
    assert contrast_metric(rows).estimate.mean is None
    assert contrast_metric(rows).n_asked == 1


def test_contrast_metric_refuses_two_answers_with_one_number() -> None:
    with pytest.raises(DataError, match="contrast c1: answer 0 is there 2 times"):
        contrast_metric([answer(5), answer(4)])


def test_paired_difference_by_hand() -> None:
    before = [answer(2, "c1"), answer(2, "c2"), answer(2, "c3"), answer(None, "c4")]
    after = [
        answer(4, "c1"),
        answer(2, "c1", answer_index=1),  # c1 averages 3: +1
        answer(5, "c2"),  # +3
        answer(4, "c3"),  # +2
        answer(5, "c4"),  # unscored before: left out
    ]
    gain = paired_difference(after, before)
    assert gain.difference.estimate.mean == 2.0
    assert gain.difference.estimate.standard_error == pytest.approx((1 / 3) ** 0.5)  # 3/2 * (1 + 1) / 9
    assert (gain.difference.estimate.n, gain.difference.n_asked) == (3, 4)
    assert gain.relative_percent == 100.0


def test_paired_difference_of_nothing_shared() -> None:
    gain = paired_difference([answer(4, "c1")], [answer(4, "c2")])
    assert (gain.difference.estimate.mean, gain.relative_percent, gain.difference.n_asked) == (None, None, 2)


def test_rows_come_back_as_they_were_saved(tmp_path: Path) -> None:
    rows = [answer(4.5), answer(None, transcript=None, tone=None, tone_scores={})]
    save_rows(tmp_path / "rows.jsonl", rows)
    assert load_rows(tmp_path / "rows.jsonl") == rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": "4"}, "score: Input should be a valid number"),
        ({"score": 6.0}, "score: 6.0 is not between 1 and 5"),
        ({"score": None}, "score: give either"),
        ({"fitting": False}, "fitting: False contradicts a score of 4.0"),
        ({"answer_index": True}, "answer_index: "),
        ({"category": 3}, "category: "),
        ({"word_error_rate": -0.1}, "word_error_rate: -0.1"),
        ({"note": "?"}, "note: "),
    ],
)
def test_a_bad_row_is_named_by_line_and_key(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    good = asdict(answer(4.0))
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, **change}) + "\n")
    with pytest.raises(DataError) as caught:
        load_rows(path)
    assert f"rows.jsonl:2: {message}" in str(caught.value)


def test_a_row_with_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    values = asdict(answer(4.0))
    del values["judge"]
    path.write_text(json.dumps(values) + "\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:1: judge: "):
        load_rows(path)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        # n / (n + z ** 2) with z ** 2 = 3.8415: 4 / 7.8415.
        (ends_of_share(1.0, 1.0, 1.0, 4), (0.5101, 1.0)),
        (ends_of_share(0.0, 0.0, 0.0, 4), (0.0, 0.4899)),
        (ends_of_share(0.5, 0.5, 0.5, 4), (0.5, 0.5)),
        (ends_of_share(0.75, 0.25, 1.0, 4), (0.25, 1.0)),
    ],
)
def test_a_share_at_its_end_has_wilsons_interval(found: tuple[float, float], wanted: tuple[float, float]) -> None:
    assert found == pytest.approx(wanted, abs=1e-4)


def test_agreement_on_four_pairs_of_two_instructions_is_of_two_trials() -> None:
    alone, together = (accuracy(["1", "2", "1", "2"], ["1", "2", "1", "2"], clusters) for clusters in (None, "aabb"))
    # 4 / (4 + 3.8415), and of two clusters 2 / (2 + 3.8415).
    assert [(one.value, one.high) for one in (alone, together)] == [(1.0, 1.0), (1.0, 1.0)]
    assert (alone.low, together.low) == (pytest.approx(0.5101, abs=1e-4), pytest.approx(0.3424, abs=1e-4))


def test_all_contrasts_or_none_have_wilsons_interval() -> None:
    """Four contrasts of which both styles fit: 4 / (4 + z^2) = 0.5101; a category's mean score has none of Wilson's."""
    rows = [answer(5, contrast, style) for contrast in "abcd" for style in ("happy", "sad")]
    every = contrast_metric(rows)
    assert every.to_json()["wilson"] == pytest.approx([0.5101, 1.0], abs=1e-4)
    assert every.interval() == pytest.approx((0.5101, 1.0), abs=1e-4)
    assert cell(every.to_json(), 100, 0) == "100 (51 to 100)"
    never = contrast_metric([replace(row, score=1, fitting=False) for row in rows])
    assert cell(never.to_json(), 100, 0) == "0 (0 to 49)"
    some = contrast_metric([replace(row, score=1, fitting=False) if row.contrast_id == "a" else row for row in rows])
    assert "wilson" not in some.to_json()
    # Squares 9/16 and three of 1/16, times 4/3, over 16: 0.0625; its root is 0.25.
    assert cell(some.to_json(), 100, 0) == "75 ± 25"
    assert some.interval() == pytest.approx((0.75 - 0.49, 0.75 + 0.49))
    assert contrast_metric(rows[:2]).interval() is None
    assert "wilson" not in summarise(rows).overall.to_json()


def test_a_kappa_of_one_has_wilsons_interval_above_chance_and_one_instruction_has_none() -> None:
    labels = ["1", "2", "1", "2"]
    # Chance is 0.5: (0.5101 - 0.5) / 0.5.
    assert cohen_kappa(labels, labels).low == pytest.approx(0.0202, abs=1e-3)  # type: ignore[arg-type]
    one = accuracy(labels, ["1", "1", "1", "2"], "aaaa")  # type: ignore[arg-type]
    assert (one.value, one.low, one.high) == (0.75, None, None)
    assert share_text(asdict(one)) == "75.0 % (no interval; 4 of 4)"
