"""A few batches of the campaign on judges, each of which once ended a command, lost a bill or could not be written.

Not covered: the other misbehaviours, which `make chaos` sends to everything that asks.
"""

from __future__ import annotations

import pytest

from chaos.judges import CALLERS, attack, honest_score, run_budgets, sent_as

BATCHES = [
    ("a score by an LLM judge", "an error of half an emoji"),
    ("a score by an LLM judge", "a refusal of half an emoji"),
    ("a score by an LLM judge", "a model of half an emoji"),
    ("a score by its probabilities", "a log-probability of 1e999"),
    ("a score by its probabilities", "a log-probability of a thousand"),
    ("a likelihood ratio", "a log-probability of -1e999"),
    ("a reward server", "HTTP 400, half an emoji"),
    ("a spoken reply", "HTTP 400, half an emoji"),
]


@pytest.mark.parametrize(("name", "behaviour"), BATCHES)
def test_a_reply_costs_its_own_call_alone(name: str, behaviour: str) -> None:
    caller = CALLERS[name]
    harmless = behaviour in caller.harmless
    change = (caller.harmless if harmless else caller.none_from)[behaviour]
    assert attack(name, change, harmless, 1) == []


def test_a_budget_is_not_passed() -> None:
    assert run_budgets("no content").failures == []


def test_an_invented_score_and_a_lost_one_are_failures() -> None:
    name = "a score by an LLM judge"
    assert attack(name, sent_as, False, 0) == ["1.0 is invented"]
    other = honest_score({"model": "gpt-4o", "messages": "answer 4"})
    assert attack(name, lambda _: sent_as(other), True, 0) == ["request 0: 5.0 in place of 1.0"]
