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
    console = Console(file=io.StringIO(), width=200)
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
