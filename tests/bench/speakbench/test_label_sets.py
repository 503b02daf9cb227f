"""Two sets of labels: by hand, and people's of two papers against TRACE's Table 2.

Not covered: the rows of the paper's blind pass, whose labels are not released.
"""

from __future__ import annotations

import json

import pytest
from outside import HCOT, ORIGINAL, needs_hcot
from typer.testing import CliRunner

from paras2s.bench.speakbench.data import load_pairs
from paras2s.bench.speakbench.label_sets import agreement, agreement_of, load_labels
from paras2s.bench.speakbench.metrics import accuracy
from paras2s.cli.bench_speakbench import bench_app
from paras2s.errors import ConfigError, DataError

FIRST = {0: "1", 1: "2", 2: "both_good", 3: "both_bad", 4: "1"}
ALONE = {index: index for index in FIRST}


def run(*words):
    return CliRunner().invoke(bench_app, [str(word) for word in words])


def test_bare_ties_agree_in_two_and_three_ways():
    found = agreement_of(FIRST, {0: "1", 1: "1", 2: "tie", 3: "1", 4: None, 9: "tie"}, ALONE, "other")
    # Winners on both sides: pairs 0 and 1. Three ways: 0 and 2 of 0 to 3.
    assert (found.two_way.value, found.two_way.n) == (0.5, 2)
    assert (found.three_way.value, found.three_way.n, found.three_way.n_asked) == (0.5, 4, 5)
    assert (found.four_way, found.kappa, found.unlabelled, found.others) == (None, None, 1, 1)


def test_typed_ties_agree_in_four_ways_and_have_a_kappa():
    found = agreement_of(FIRST, {0: "1", 1: "2", 2: "both_bad", 3: "both_bad", 4: "1"}, ALONE, "other")
    assert (found.three_way.value, found.four_way.value) == (1.0, 0.8)
    # By chance: 2/5 * 2/5 of label 1, 1/5 * 1/5 of 2, 0 of both_good, 1/5 * 2/5 of both_bad: 7/25.
    assert found.kappa.value == pytest.approx((0.8 - 0.28) / (1 - 0.28))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("index,label\n1,3\n", "labels.csv:2: label"),
        ("index,label\n1,1\n1,2\n", "labels.csv:3: index: 1 occurs more than once"),
        ("index,label\n", "holds no labels"),
        ("index,label,x\n1,1,y\n", "labels.csv:2: x"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line(tmp_path, text, says):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        load_labels(tmp_path / "labels.csv")


def test_sets_of_other_pairs_are_no_agreement():
    with pytest.raises(DataError, match="other: labels none of these pairs"):
        agreement_of(FIRST, {9: "1"}, ALONE, "other")


@needs_hcot
def test_original_and_hcot_agree_as_in_table_2():
    found = agreement(HCOT, ORIGINAL)
    # The paper: 94.2 (90.9 to 96.7) of 274, and 70.1 (65.9 to 74.1) of 495; here one and two pairs more.
    assert (round(100 * found.two_way.value, 1), found.two_way.n) == (94.2, 275)
    assert (round(100 * found.three_way.value, 1), found.three_way.n) == (70.0, 497)
    pairs, second = load_pairs(HCOT), load_labels(ORIGINAL)
    by_pair = accuracy([pair.label.overall for pair in pairs], [second[pair.index] for pair in pairs], ways=3)
    assert (by_pair.low, by_pair.high) == (pytest.approx(0.659, abs=0.005), pytest.approx(0.741, abs=0.005))


@needs_hcot
def test_the_verb_says_why_there_is_no_four_way_agreement():
    done = run("speakbench", "--labels", HCOT, "--against", ORIGINAL)
    assert done.exit_code == 0, done.output
    assert "94.2 %" in done.stdout
    assert "No 4-way agreement" in done.stdout
    same = json.loads(run("speakbench", "--labels", HCOT, "--against", HCOT, "--json").stdout)
    assert (same["four_way"]["value"], same["kappa"]["value"], same["four_way"]["n"]) == (1.0, 1.0, 497)
    assert isinstance(run("speakbench", "--labels", HCOT, "--against", HCOT, "--oracle").exception, ConfigError)
