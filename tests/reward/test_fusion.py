"""Label fusion against the paper's algorithms, written out a second time. Not covered: whether a rule fits a benchmark."""

import itertools

import pytest

from paras2s.errors import ConfigError, DataError
from paras2s.reward.fusion import fuse, load_rules, rating_min, symmetric
from paras2s.reward.judges.audio_judge.ensemble_rules import EnsembleRule
from paras2s.types import LABELS

WIN = ("1", "2")


def algorithm_1(content, voice, para):
    if content in WIN:
        return content
    if content == "both_good":
        if para in WIN:
            return para
        if voice in WIN:
            return voice
        return "both_good"
    if para in WIN:
        return para
    if voice in WIN:
        return voice
    return "both_bad"


def algorithm_3(first, second):
    as_pair = {"1": (1, 0), "2": (0, 1), "both_good": (1, 1), "both_bad": (0, 0)}
    lower = tuple(map(min, as_pair[first], as_pair[second]))
    return next(label for label, pair in as_pair.items() if pair == lower)


def algorithm_2(content, voice, para):
    cap = algorithm_3(content, para)
    for label in (content, para, voice):
        if label in WIN:
            return algorithm_3(label, cap)
    return algorithm_3(content, cap)


@pytest.mark.parametrize(("content", "voice", "para"), itertools.product(LABELS, repeat=3))
def test_all_64_combinations_follow_the_papers_algorithms(content, voice, para):
    assert fuse(content, voice, para, "speakbench") == algorithm_1(content, voice, para)
    assert fuse(content, voice, para, "s2sarena") == algorithm_2(content, voice, para)
    release = "both_bad" if content == para == "both_bad" else algorithm_1(content, voice, para)
    assert fuse(content, voice, para, "speakbench_dominant_bad") == release
    lenient = "both_bad" if "both_bad" in (content, para) else algorithm_1(content, voice, para)
    assert fuse(content, voice, para, "s2sarena_lenient") == lenient


@pytest.mark.parametrize(
    ("rule", "labels", "steps"),
    [
        ("speakbench", ("both_good", "1", "2"), [("paralinguistics is the first of", "2")]),
        ("speakbench", ("both_bad", "both_good", "both_good"), [("so content decides", "both_bad")]),
        ("speakbench_dominant_bad", ("both_bad", "1", "both_bad"), [("which ends the rule", "both_bad")]),
        ("majority", ("1", "2", "2"), [("2 of 3 dimensions say 2", "2")]),
        ("majority", ("1", "2", "both_bad"), [("no label has a majority, so content decides", "1")]),
        (
            "s2sarena",
            ("1", "1", "both_good"),
            [("content is the first of", "1"), ("content allows", "1"), ("paralinguistics allows", "1")],
        ),
        (
            "s2sarena",
            ("1", "1", "both_bad"),
            [("content is the first", "1"), ("content allows", "1"), ("paralinguistics allows", "both_bad")],
        ),
    ],
)
def test_the_steps_of_a_rule_in_words_with_the_label_after_each(rule, labels, steps):
    names = ("content", "voice_quality", "paralinguistics")
    found = load_rules()[rule].steps(dict(zip(names, labels, strict=True)))
    assert [label for _, label in found] == [label for _, label in steps]
    assert all(words in says for (says, _), (words, _) in zip(found, steps, strict=True))


@pytest.mark.parametrize(
    ("rule", "labels", "last", "label"),
    [
        (EnsembleRule(says="x", aspects=("a", "b"), decide="vote", weights={"a": 3}), ("1", "2"), "0.75 points", "1"),
        (EnsembleRule(says="x", aspects=("a", "b"), decide="vote", margin=0.3), ("1", "tie"), "within 0.3", "tie"),
        (EnsembleRule(says="x", aspects=("a", "b"), decide="count"), ("1", "2"), "more than half of 2", "tie"),
        (EnsembleRule(says="x", aspects=("a", "b"), decide="first_winner"), ("tie", "2"), "the first of a, b", "2"),
    ],
)
def test_the_steps_of_an_ensemble_have_each_aspects_weight(rule, labels, last, label):
    *parts, (says, overall) = rule.steps(dict(zip("ab", labels, strict=True)))
    assert [one for _, one in parts] == list(labels)
    assert (("weight 3" in parts[0][0]), last in says, overall) == (bool(rule.weights), True, label)


@pytest.mark.parametrize(
    ("labels", "overall"),
    [
        (("1", "1", "2"), "1"),
        (("2", "both_bad", "both_bad"), "both_bad"),
        (("1", "2", "both_good"), "1"),
        (("both_good", "both_good", "2"), "both_good"),
    ],
)
def test_majority_takes_the_label_given_twice_and_else_contents(labels, overall):
    assert fuse(*labels, "majority") == overall


def test_rating_min_is_symmetric_and_both_good_is_its_neutral_label():
    for first, second in itertools.product(LABELS, repeat=2):
        assert rating_min(first, second) == rating_min(second, first) == algorithm_3(first, second)
        assert rating_min(first, "both_good") == first
        assert rating_min(first, "both_bad") == "both_bad"


@pytest.mark.parametrize(
    ("first", "swapped", "label"),
    [
        ("1", "2", "1"),
        ("2", "1", "2"),
        ("1", "1", "both_good"),
        ("1", "both_bad", "both_bad"),
        ("both_good", "1", "both_good"),
        ("both_good", "both_bad", "both_bad"),
        ("both_good", "both_good", "both_good"),
    ],
)
def test_one_label_from_both_orders(first, swapped, label):
    assert symmetric(first, swapped) == label


def test_the_symmetric_label_does_not_depend_on_which_order_came_first():
    exchanged = {"1": "2", "2": "1"}
    for first, swapped in itertools.product(LABELS, repeat=2):
        other_way = symmetric(swapped, first)
        assert symmetric(first, swapped) == exchanged.get(other_way, other_way)


@pytest.mark.parametrize("wrong", ["tie", "", None, "nan", 1, "Both_Good"])
def test_an_unknown_label_is_an_error_that_names_it(wrong):
    with pytest.raises(DataError, match=r"voice_quality: .* is not a label; there are 1, 2, both_good, both_bad"):
        fuse("1", wrong, "2")


def test_a_user_adds_a_rule_in_yaml(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "voice_first:\n  says: mine\n  decide: first_winner\n  order: [voice_quality, content]\n  otherwise: voice_quality\n"
        "  when:\n    - {if: {paralinguistics: both_bad}, then: both_bad}\n"
    )
    rule = load_rules(path)["voice_first"]
    assert rule.fuse({"content": "1", "voice_quality": "2", "paralinguistics": "1"}) == "2"
    assert rule.fuse({"content": "1", "voice_quality": "2", "paralinguistics": "both_bad"}) == "both_bad"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine: {says: x, decide: coin, order: [content], otherwise: content}", "mine.decide"),
        ("mine: {says: x, decide: majority, order: [loudness], otherwise: content}", "mine.order.0"),
        ("mine: {says: x, decide: majority, order: [content], otherwise: content, weight: 2}", "mine.weight"),
        ("[1]", "expected a mapping"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_wrong_rule_file_is_one_line_that_names_rule_and_key(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_rules(path)


def test_an_unknown_rule_names_those_there_are():
    with pytest.raises(ConfigError, match="unknown fusion rule 'best'; there are speakbench, "):
        fuse("1", "1", "1", "best")
