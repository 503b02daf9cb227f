"""Votes to labels, by hand-counted tables. Not covered: how replies become votes (test_audio_judge)."""

import pytest

from paras2s.errors import ConfigError, DataError
from paras2s.reward.judges.audio_judge.ensemble_rules import EnsembleRule, find_ensemble
from paras2s.reward.judges.votes import label_of, match_of, prefer, spread_of, swapped


def rule(**values):
    return EnsembleRule.model_validate({"says": "", "aspects": ("a", "b", "c"), "decide": "vote"} | values)


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ("1 1 2", "1"),
        ("1 2 2", "2"),
        ("1 2 tie", "tie"),
        # A single winner beside two ties has a mean of 2/3: it wins, where a count of equal labels would say tie.
        ("1 tie tie", "1"),
        ("tie tie tie", "tie"),
        ("tie 2 tie", "2"),
    ],
)
def test_the_papers_ensemble_is_the_mean_of_votes_and_a_threshold(labels, wanted):
    assert find_ensemble().aspects == ("lexical", "paralinguistic", "speech_quality")
    assert find_ensemble().fuse(dict(zip(find_ensemble().aspects, labels.split(), strict=True))) == wanted


def test_weights_and_margin_of_an_own_rule():
    heavy = rule(weights={"a": 2.0})
    assert heavy.fuse({"a": "1", "b": "2", "c": "2"}) == "tie"
    assert heavy.points({"a": "1", "b": "2", "c": "tie"}) == pytest.approx(0.625)
    assert rule(margin=0.2).fuse({"a": "1", "b": "tie", "c": "tie"}) == "tie"


@pytest.mark.parametrize(
    ("labels", "wanted"), [("1 1 2", "1"), ("tie 2 2", "2"), ("1 tie tie", "tie"), ("1 2 tie", "tie"), ("2 2 2", "2")]
)
def test_a_count_wants_more_than_half(labels, wanted):
    assert rule(decide="count").fuse(dict(zip("abc", labels.split(), strict=True))) == wanted


def test_the_first_winner_decides():
    first = rule(decide="first_winner")
    assert [first.fuse({"a": a, "b": b, "c": "1"}) for a, b in [("2", "1"), ("tie", "2"), ("tie", "tie")]] == ["2", "2", "1"]


def test_the_aspects_that_have_a_label_decide():
    assert rule().fuse({"a": "1"}) == rule().fuse({"a": "1", "c": "tie"}) == "1"
    assert rule(weights={"a": 3.0}).points({"a": "1", "c": "2"}) == 0.75
    assert rule(decide="count").fuse({"b": "2", "c": "2"}) == "2"
    assert rule(decide="count").fuse({"b": "2", "c": "1"}) == "tie"
    assert rule(decide="first_winner").fuse({"b": "2", "c": "1"}) == "2"


def test_without_any_label_nothing_is_guessed():
    with pytest.raises(DataError, match="no label of a, b, c"):
        rule().fuse({"x": "1"})


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"weights": {"x": 1.0}}, "'x' is not among"),
        ({"weights": {"a": 0.0}}, "above 0"),
        ({"aspects": ("a", "a")}, "twice"),
        ({"decide": "first_winner", "margin": 0.1}, "of a vote"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_wrong_rule_is_refused(values, why):
    with pytest.raises(ValueError, match=why):
        rule(**values)


def test_own_rules_from_a_file(tmp_path):
    (tmp_path / "own.yaml").write_text("mine: {says: x, aspects: [lexical], decide: vote}\n")
    assert find_ensemble("mine", tmp_path / "own.yaml").fuse({"lexical": "2"}) == "2"
    with pytest.raises(ConfigError, match="unknown ensemble rule 'yours'; there are majority, count, content_first, mine"):
        find_ensemble("yours", tmp_path / "own.yaml")


def test_scores_to_preferences_and_votes_to_labels():
    assert [prefer(4, 3), prefer(3, 4), prefer(3, 3)] == ["1", "2", "tie"]
    # Three thirds of a vote do not add up to a half exactly, and are a tie all the same.
    assert [label_of((1 / 3 + 1 / 3 + 5 / 6) / 3), label_of(0.51), label_of(0.49)] == ["tie", "1", "2"]
    assert [match_of(0.6), match_of(0.4)] == ["same", "different"]
    with pytest.raises(DataError, match="as many votes"):
        match_of(0.5)
    assert spread_of([1.0, 0.0]) == pytest.approx(0.5**0.5)
    assert spread_of([1.0]) is None
    assert [swapped(label) for label in ("1", "2", "tie", "same", "different")] == ["2", "1", "tie", "same", "different"]
