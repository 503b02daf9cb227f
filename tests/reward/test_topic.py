"""Words that carry a question's topic, and whether an answer says them again, by hand.

Not covered: synonyms; "my dog" is not taken up by "your puppy".
"""

from __future__ import annotations

import pytest

from paras2s.reward.judges.topic import same_word, taken_up, topic_words, without_topic


def test_topic_words_by_hand() -> None:
    assert topic_words("My garden won the first prize, didn't it?") == ("garden", "won", "prize", "didn't")
    assert topic_words("Is it up to you?") == ()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("garden", "garden", True),
        ("breathing", "breathe", True),
        ("steps", "step", True),
        ("cat", "car", False),
        ("cat", "cats", False),  # Three letters in common are chance.
        ("garden", "gardan", True),  # As a recogniser may spell it.
        ("garden", "warden", True),  # The price of that.
        ("report", "retort", True),
        ("party", "pardon", False),
        ("movement", "movers", False),
    ],
)
def test_same_words_by_hand(one: str, other: str, same: bool) -> None:
    assert same_word(one, other) is same
    assert same_word(other, one) is same


def test_what_an_answer_takes_up() -> None:
    question = "Thank you for choosing such romantic flowers."
    assert taken_up(question, ["thank", "you", "i", "love", "flowers"]) == {"thank", "flowers"}
    assert taken_up(question, ["thank", "you", "i", "love", "flowers"], {"thank"}) == {"flowers"}
    assert taken_up(question, ["i", "am", "so", "happy"]) == set()
    assert taken_up("", ["i", "am", "so", "happy"]) == set()


def test_what_is_left_of_an_answer_without_its_topic() -> None:
    words = ["i", "am", "sorry", "about", "your", "old", "garden", "and", "the", "prize"]
    assert " ".join(without_topic(words, {"garden", "prize"})) == "i am sorry about your old that and that"
    assert " ".join(without_topic(["about", "the", "rose", "garden"], {"rose", "garden"})) == "about that"
    assert without_topic(words, set()) == words
