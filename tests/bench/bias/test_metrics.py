"""What labels on probes come to: shares, intervals and p-values by hand and against SciPy; sentences, tables and the page.

Not covered: how the page looks, which was checked by eye.
"""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from paras2s.bench.bias.metrics import (
    CLASSES,
    PROBES,
    Change,
    ProbeResult,
    TrialOutcome,
    against_control,
    gap_correlation,
    mean_change,
    mos_bin,
    noise_class,
    place_of,
    retest_margin,
    tell_parts,
)
from paras2s.bench.bias.report import JudgeProbes, ProbeReport, sentence, show_probes, write_probes
from paras2s.statistics.resampling import resample, resample_alike
from paras2s.statistics.significance import p_equal

LEAN = ("first", "second")


def outcomes(labels, group=("all",), cluster=None):
    return [TrialOutcome(cluster or f"c{place}", group, label) for place, label in enumerate(labels)]


def one_part(found, labels=PROBES["position"].labels, compared=LEAN, seed=0):
    (part,) = tell_parts(found, lambda group: labels, compared, seed)
    return part


@pytest.mark.parametrize(
    ("given", "exchanged", "place"),
    [
        ("1", "2", "stable"),
        ("2", "1", "stable"),
        ("tie", "tie", "stable"),
        ("1", "1", "first"),
        ("2", "2", "second"),
        ("tie", "1", "other"),
        ("2", "tie", "other"),
        (None, "1", None),
        ("1", None, None),
    ],
)
def test_two_orders_tell_of_the_place(given, exchanged, place):
    assert place_of(given, exchanged) == place


@pytest.mark.parametrize(
    ("clean", "human", "name"),
    [
        ("1", "1", "chosen"),
        ("2", "1", "not chosen"),
        ("tie", "1", "tie"),
        ("tie", "tie", "tie"),
        ("1", "tie", "people's tie"),
        ("1", None, "1"),
        ("tie", None, "tie"),
    ],
)
def test_a_noisy_pair_is_counted_by_its_clean_verdict(clean, human, name):
    assert noise_class(clean, human) == name


@pytest.mark.parametrize(("gap", "name"), [(0.0, "0 to 0.5"), (0.5, "0.5 to 1"), (1.99, "1.5 to 2"), (2.0, "2 and more")])
def test_a_gap_belongs_to_the_bin_that_it_begins(gap, name):
    assert mos_bin(gap) == name


def test_shares_are_of_what_was_scored_and_the_rest_stays_in_n_requested():
    part = one_part(outcomes(["first", "first", "stable", "stable", "stable", "other", "second", None]))
    assert {name: share.value for name, share in part.shares.items()} == pytest.approx(
        {"stable": 3 / 7, "first": 2 / 7, "second": 1 / 7, "other": 1 / 7}
    )
    assert {(share.n, share.n_asked) for share in part.shares.values()} == {(7, 8)}
    assert part.clusters == 7


def test_nothing_scored_is_no_share_and_no_p_value():
    part = one_part(outcomes([None, None]))
    assert part.p_value is None
    assert {share.value for share in part.shares.values()} == {None}
    assert {share.n_asked for share in part.shares.values()} == {2}


def test_one_cluster_has_no_interval():
    share = one_part(outcomes(["first", "stable", "stable"], cluster="c")).shares["stable"]
    assert (share.value, share.low, share.high) == (pytest.approx(2 / 3), None, None)


def test_groups_come_apart_and_keep_their_order():
    found = outcomes(["first"], ("b",)) + outcomes(["second"], ("a",))
    assert [part.group for part in tell_parts(found, PROBES["position"].labels_of, LEAN)] == [("b",), ("a",)]


def test_right_and_wrong_have_labels_of_their_own():
    part = tell_parts(outcomes(["right", "wrong", "right"], ("all", "verdict")), PROBES["mos_gap"].labels_of, LEAN)[0]
    assert part.shares["right"].value == pytest.approx(2 / 3)
    assert (part.compared, part.p_value) == (None, None)


@pytest.mark.parametrize(("first", "second"), [(5, 0), (1, 0), (8, 2), (12, 3), (30, 10), (7, 7)])
def test_with_a_pair_a_cluster_the_p_value_is_the_exact_sign_tests(first, second):
    labels = ["first"] * first + ["second"] * second + ["stable"] * 9
    exact = stats.binomtest(first, first + second).pvalue
    # 10,000 draws of an event of probability p are off by up to 4 of its standard errors.
    allowed = 4 * np.sqrt(exact * (1 - exact) / 10_000) + 2e-4
    assert one_part(outcomes(labels)).p_value == pytest.approx(exact, abs=allowed)


def test_no_difference_anywhere_has_a_p_value_of_1():
    assert one_part(outcomes(["stable"] * 20)).p_value == 1.0


def test_pairs_of_one_cluster_are_no_more_proof_than_the_cluster():
    labels = ["first"] * 12
    alone, together = outcomes(labels), [TrialOutcome(f"c{place % 2}", ("all",), label) for place, label in enumerate(labels)]
    assert one_part(alone).p_value < 0.002
    assert one_part(together).p_value == pytest.approx(0.5, abs=0.02)


def test_the_p_value_agrees_with_scipys_permutation_of_clusters():
    differences = np.array([3, -1, 2, 2, 0, 4, -2, 1, 1, 3, -1])
    exact = stats.permutation_test(
        (differences, 0 * differences),
        lambda x, y, axis: (x - y).sum(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert p_equal(differences) == pytest.approx(exact.pvalue, abs=0.01)


def test_intervals_agree_with_scipys_bootstrap():
    rng = np.random.default_rng(0)
    labels = rng.choice(["stable", "first", "second", "other"], 90, p=[0.6, 0.2, 0.1, 0.1])
    part = one_part(outcomes(labels.tolist()))
    for label, share in part.shares.items():
        flags = (labels == label).astype(float)
        found = stats.bootstrap((flags,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1))
        # A resampled share is a multiple of 1/90; both may stop a step apart.
        assert share.low == pytest.approx(found.confidence_interval.low, abs=0.0112)
        assert share.high == pytest.approx(found.confidence_interval.high, abs=0.0112)


def test_equal_clusters_drawn_together_are_drawn_as_often_as_apart():
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 3, (40, 2))
    fast, slow = resample_alike(counts.astype(float), 0), resample(counts)
    assert fast.shape == slow.shape == (10_000, 2)
    assert fast.mean(0) == pytest.approx(counts.sum(0), rel=0.01)
    assert np.cov(fast.T) == pytest.approx(np.cov(slow.T), rel=0.08)


def test_equal_seeds_give_equal_figures_and_other_seeds_other_intervals():
    labels = np.random.default_rng(0).choice(["first", "second", "stable"], 97)
    # Clusters of many sizes: shares of resamples lie on no coarse grid.
    found = [TrialOutcome(f"c{int(place**0.7)}", ("all",), label) for place, label in enumerate(labels.tolist())]
    assert one_part(found, seed=4) == one_part(found, seed=4)
    ends = [[(share.low, share.high) for share in one_part(found, seed=seed).shares.values()] for seed in (4, 5)]
    assert ends[0] != ends[1]


def noisy(label, number, level, cluster=None):
    return TrialOutcome(cluster or f"c{number}", (level,), label, f"p{number}")


def level_part(found, level="1 dB"):
    parts = against_control(tell_parts(found, PROBES["noise"].labels_of, None), found, "80 dB")
    return next(part for part in parts if part.group == (level,))


def test_noise_is_set_against_what_changes_without_any_pair_by_pair():
    # Of 20 pairs 3 change at both levels, 12 at 1 dB alone, 2 at 80 dB alone: a sign test of 12 against 2.
    at_1 = ["changed"] * 15 + ["unchanged"] * 5
    at_80 = ["changed"] * 3 + ["unchanged"] * 12 + ["changed"] * 2 + ["unchanged"] * 3
    found = [noisy(one, n, "1 dB") for n, one in enumerate(at_1)] + [noisy(one, n, "80 dB") for n, one in enumerate(at_80)]
    exact = stats.binomtest(12, 14).pvalue
    part = level_part(found)
    assert (part.p_value, part.against) == (pytest.approx(exact, abs=4 * np.sqrt(exact / 10_000)), "80 dB")
    control = level_part(found, "80 dB")
    assert (control.p_value, control.against) == (None, None)
    # A pair that the control has no label of is compared with nothing.
    more = [*found, *(noisy("changed", n, "1 dB") for n in range(100, 140))]
    assert level_part(more).p_value == part.p_value
    # As many changes as without noise are no proof, however many they are.
    same = [noisy("changed", n, level) for n in range(30) for level in ("1 dB", "80 dB")]
    assert level_part(same).p_value == 1.0


def test_pairs_of_one_cluster_say_once_that_noise_changes_them():
    found = [noisy(label, n, level, f"c{n % 2}") for n in range(20)
             for level, label in (("1 dB", "changed"), ("80 dB", "unchanged"))]  # fmt: skip
    assert level_part(found).p_value == pytest.approx(0.5, abs=0.02)


def test_a_change_of_scores_has_scipys_interval():
    values = np.random.default_rng(5).normal(-0.3, 1.0, 60)
    found = mean_change(("1 dB",), values.tolist(), list(range(60)))
    other = stats.bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1))
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(other.confidence_interval.low, abs=0.02)
    assert found.high == pytest.approx(other.confidence_interval.high, abs=0.02)
    assert mean_change(("1 dB",), [], []) == Change(("1 dB",), None, None, None, 0)
    assert mean_change(("1 dB",), [1.0, 2.0], ["a", "a"]) == Change(("1 dB",), 1.5, None, None, 2)


def test_stability_that_grows_with_the_gap_correlates_with_it():
    gaps = [0.1 * place for place in range(40)]
    found = gap_correlation(gaps, [gap > 1.5 for gap in gaps], [str(gap) for gap in gaps])
    assert found.value == pytest.approx(stats.spearmanr(gaps, [gap > 1.5 for gap in gaps]).statistic)
    assert found.low > 0.5
    assert found.p_value == pytest.approx(1 / 10_001)
    assert gap_correlation(gaps, [True] * 40, list(map(str, gaps))).why_none == "the verdicts' stabilities are all the same"
    assert gap_correlation([1.0, 1.0], [True, False], ["a", "b"]).why_none == "the gaps are all the same"


def test_with_a_pair_a_cluster_the_gaps_p_value_is_scipys_permutation():
    rng = np.random.default_rng(7)
    gaps = rng.uniform(0, 3, 30)
    stable = gaps + rng.normal(0, 2.5, 30) > 1.5

    def spearman(moved):
        return stats.spearmanr(gaps, moved).statistic

    other = stats.permutation_test((stable,), spearman, permutation_type="pairings", n_resamples=4000, rng=rng)
    found = gap_correlation(gaps.tolist(), stable.tolist(), [str(place) for place in range(30)])
    assert 0.01 < found.p_value < 0.6
    assert found.p_value == pytest.approx(other.pvalue, abs=0.03)


def test_a_gaps_p_value_counts_clusters_and_not_pairs():
    # Two clusters, 20 pairs each: the near ones are never stable, the far ones always. Either pairing is as extreme.
    gaps, stable, clusters = [0.1] * 20 + [2.0] * 20, [False] * 20 + [True] * 20, ["a"] * 20 + ["b"] * 20
    assert gap_correlation(gaps, stable, clusters).p_value == 1.0
    found = gap_correlation(gaps, stable, ["a"] * 40)
    assert (found.value, found.p_value) == (pytest.approx(1.0), None)


# What people read.


def result(name, labels, group=("all",), **more):
    spec = PROBES[name]
    parts = tell_parts(outcomes(labels, group), spec.labels_of, spec.compared)
    return ProbeResult(name, "measured", "", len(labels), sum(one is not None for one in labels), {}, parts, **more)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (result("position", ["first"] * 20 + ["stable"] * 30), ["a lean towards the first place", "60.0 %", "p < 0.001"]),
        (result("position", ["first", "second", "stable"]), ["no lean can be shown", "p = 1.000"]),
        (result("identical", ["tie"] * 5), ["100.0 %", "no lean"]),
        (result("verbosity", ["longer"] * 15), ["a lean towards longer answers", "Of 15 verdicts on pairs rated alike"]),
        (result("loudness", ["quieter"] * 15 + ["louder"]), ["a lean towards quieter clips"]),
        (result("speaker", ["original"] * 12, ("lower",)), ["lower:", "a lean towards the own voice"]),
        (result("noise", ["unchanged", "changed"], ("1 dB",)), ["50.0 %", "at 1 dB"]),
        (ProbeResult("position", "by construction", "no order can move it"), ["By construction: no order can move it."]),
        (ProbeResult("mos_gap", "absent", "no pair has any"), ["Absent: no pair has any."]),
        (ProbeResult("noise", "measured", "", 3, 0, {"broken": 3}), ["None of 3 could be judged."]),
    ],
)
def test_a_finding_is_a_sentence(found, words):
    text = sentence(found)
    assert text.endswith(".")
    assert [word for word in words if word not in text] == []


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_a_judges_own_spread_is_the_margin():
    # Twenty-one changes of 0, 0.01 ... 0.2: the 95 % point is the twentieth.
    assert retest_margin([(-1) ** n * n / 100 for n in range(21)]) == pytest.approx(0.19)
    assert retest_margin([]) is None


def test_noise_is_reported_beside_what_changes_without_any():
    groups = {"1 dB": ["changed"] * 3, "40 dB": ["unchanged", "unchanged", "changed"], "80 dB": ["unchanged"] * 3}
    found = [one for level, labels in groups.items() for one in outcomes(labels, (level,))]
    parts = tell_parts(found, PROBES["noise"].labels_of, None)
    parts = tuple(replace(part, p_value=0.03, against="80 dB") if part.group == ("1 dB",) else part for part in parts)
    text = sentence(ProbeResult("noise", "measured", "", 9, 9, {}, parts))
    assert "for 0.0 % (0.0 to 56.1) at 1 dB (p = 0.030 against 80 dB) and 66.7 %" in text
    assert "with inaudible noise, for 100.0 % (43.9 to 100.0) at 80 dB" in text


def report():
    hostile = "<script>alert(1)</script>[bold]"
    gap = [TrialOutcome(f"c{n}", (bin_, kind), label) for n, (bin_, kind, label) in enumerate([
        ("all", "order", "stable"), ("0 to 0.5", "order", "first"), ("0.5 to 1", "order", "stable"),
        ("0 to 0.5", "verdict", "wrong"), ("0.5 to 1", "verdict", "right"),
    ])]  # fmt: skip
    mos = ProbeResult("mos_gap", "measured", "", 2, 2, {}, tell_parts(gap, PROBES["mos_gap"].labels_of, LEAN))
    found = (
        result("position", ["first", "stable", None]),
        result("speaker", ["original", "tie"], (hostile,)),
        result("noise", ["unchanged", "changed"], ("1 dB",), changes=(Change(("1 dB",), -0.25, -0.5, 0.0, 2),)),
        ProbeResult("verbosity", "absent", f"nobody {hostile}"),
        replace(result("identical", [None, None]), unscored={hostile: 2}),
        mos,
    )  # fmt: skip
    settings = {"seed": 0, "resamples": 10_000, "snrs_db": [1.0], "control_db": 80.0, "gain_db": 6.0}
    judge = JudgeProbes(hostile, "1/abc", "", True, 7, None, f"the budget ended {hostile}", found)
    return ProbeReport(hostile, 3, 5, 3, settings, (judge,))


def test_the_page_escapes_everything_and_loads_nothing(tmp_path):
    write_probes(tmp_path, report())
    source = (tmp_path / "probe.html").read_text()
    page = Page(source)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script>alert(1)</script>" in page.text
    assert not [attrs for _, attrs in page.tags if {"src", "href"} & attrs.keys()]
    assert "url(" not in source
    assert [tag for tag, _ in page.tags].count("svg") == 4
    assert "what it cost is not known" in page.text
    assert "-0.250 (-0.500 to +0.000)" in page.text


def test_every_line_of_the_noise_chart_has_a_colour_of_its_own(tmp_path):
    groups = [(level, *more) for level in ("1 dB", "5 dB", "80 dB") for more in ((), *((name,) for name in CLASSES))]
    found = [TrialOutcome(f"c{n}", group, "unchanged") for group in groups for n in range(2)]
    noise = ProbeResult("noise", "measured", "", 2, 2, {}, tell_parts(found, PROBES["noise"].labels_of, None))
    full = report()
    write_probes(tmp_path, replace(full, judges=(replace(full.judges[0], probes=(noise,)),)))
    source = (tmp_path / "probe.html").read_text()
    drawn = {word for _, attrs in Page(source).tags for word in (attrs.get("class") or "").split()}
    keys = {word for word in drawn if re.fullmatch(r"key-\d", word)}
    assert keys == {f"key-{number}" for number in range(7)}
    styles = source[: source.index("</style>")]
    assert [word for word in keys if f".{word} {{" not in styles] == []
    # The lines have the colours of their keys, by the page's names for them.
    lines = re.findall(r'<g class="line">\s*<path[^>]*stroke: var\(--(\w+)', source)
    assert list(dict.fromkeys(lines)) == ["soft", *(f"c{number}" for number in range(1, 7))]
    colours = re.findall(r"--c\d: (#\w+);", styles)
    assert len(colours) == len(set(colours)) == 16


def test_the_json_is_strict_and_the_table_is_plain_text(tmp_path):
    write_probes(tmp_path, report())
    found = json.loads((tmp_path / "probe.json").read_text(), parse_constant=pytest.fail)
    assert found["schema"] == "paras2s.probe/1"
    assert found["judges"][0]["probes"][4]["parts"][0]["shares"]["tie"]["value"] is None
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    show_probes(console, report())
    text = console.export_text()
    assert "2 unscored: <script>alert(1)</script>[bold]" in text
    assert "stopped: the budget ended" in text
