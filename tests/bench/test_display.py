"""What a terminal shows of verdicts: the reason of each order under the clips as they were heard, votes counted in words."""

import io
from dataclasses import replace

from rich.console import Console

from paras2s.bench.display import show_preference, show_verdict
from paras2s.reward.judges.base import preference_of
from paras2s.types import Verdict

NAMES = ("calm.wav", "cheery [x].wav")
BOTH = replace(
    preference_of("j", "1", "p", "standard", "1", "the first is calmer\n---\nthe second is calmer"),
    order_labels=("1", "2"), votes=(1.0, 1.0), consistent=True,
)  # fmt: skip


def shown(show, *values):
    console = Console(file=io.StringIO(), width=200, markup=False)
    show(console, *values)
    return console.file.getvalue().splitlines()


def test_each_orders_reason_stands_under_the_clips_as_they_were_heard():
    assert shown(show_preference, "standard", BOTH, NAMES)[:5] == [
        "standard: 1 (calm.wav); judged in both orders, which agree",
        "heard first calm.wav, second cheery [x].wav:",
        "the first is calmer",
        "heard first cheery [x].wav, second calm.wav:",
        "the second is calmer",
    ]


def test_a_reason_that_is_only_in_the_reply_is_shown_and_none_is_said():
    silent = replace(BOTH, reason="\n---\n", reply='A is calm. {"label": "1"}\n---\nB is loud. {"label": "2"}')
    lines = shown(show_preference, "standard", silent, NAMES)
    assert (lines[2], lines[4]) == ('A is calm. {"label": "1"}', 'B is loud. {"label": "2"}')
    assert "the judge gave no reason" in shown(show_preference, "standard", replace(silent, reply=""), NAMES)


def test_votes_are_counted_in_words():
    one = Verdict("j", "1", "p", 4.0, "clear", "", 0.0, 0.0, votes=(4.0,))
    assert shown(show_verdict, one)[:2] == ["score 4, of 1 vote", "clear"]
    three = replace(one, votes=(4.0, 4.0, 4.0), spread=0.0)
    assert shown(show_verdict, three)[0] == "score 4, the mean of 3 votes, spread 0.00"
    assert shown(show_verdict, replace(one, votes=()))[0] == "score 4 of 5"


def test_a_reason_by_dimension_is_a_line_each():
    by_dimension = Verdict("j", "1", "p", 4.0, '{"content": "it answers", "style": "warm"}', "", 0.0, 0.0)
    assert shown(show_verdict, by_dimension)[:3] == ["score 4 of 5", "content: it answers", "style: warm"]
    assert shown(show_verdict, replace(by_dimension, reason="4"))[1] == "4"


def test_of_several_votes_it_is_said_whose_reason_is_shown_and_which_are_missing():
    replies = "it whispers [[3]]\n---\nno [[4]]"
    two = Verdict("j", "1", "p", 3.5, "it whispers", replies, 0.0, 0.0, votes=(3.0, 4.0), spread=0.7)
    assert shown(show_verdict, two)[:3] == [
        "score 3.5, the mean of 2 votes, spread 0.70",
        "of the first vote (3); --json has all replies:",
        "it whispers",
    ]
    assert shown(show_verdict, replace(two, reason=""))[2] == "it whispers [[3]]"
    lacking = shown(show_verdict, replace(two, failed=("the reply was cut off", "HTTP 400")))
    assert lacking[3] == "votes missing, 2: the reply was cut off"


def test_reasons_that_cannot_be_told_apart_are_shown_once():
    # A rule of Markdown inside a reason, and inside a reply that stands for one.
    ruled = replace(BOTH, reason="calm\n---\nso 1\n---\nthe second is calmer")
    silent = replace(BOTH, reason="\n---\n", reply="A\n---\nis calm\n---\nB is loud")
    for one, text in ((ruled, "calm"), (silent, "A")):
        lines = shown(show_preference, "standard", one, NAMES)
        assert lines[1:3] == ["heard first calm.wav, second cheery [x].wav, then the other way round:", text]
        assert sum(line.startswith("heard") for line in lines) == 1
    assert not any(line.startswith("heard") for line in shown(show_preference, "ensemble", replace(BOTH, reason="a: 1"), NAMES))
