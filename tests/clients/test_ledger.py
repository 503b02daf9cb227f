"""What a client says that its calls cost, against the count of a scripted server that fails in every way."""

import json
import random

import pytest
from tiny.endpoint import Cut, Drop, Fail, Raw, Say, ScriptedEndpoint

from paras2s.clients.chat import Audio, LLMClient, Message, Reply, Request, Tokens
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import BudgetError

IN_USD, OUT_USD = 2.5e-6, 10e-6  # gpt-4o
LISTEN = Request((Message("user", ("Listen:", Audio(b"RIFF", 60.0))),))


def ask(text):
    return Request((Message("user", (text,)),))


def client_for(server, **changes):
    settings = {"base_url": server.base_url, "model": "gpt-4o", "backoff_s": 0.0, "timeout_s": 20.0, **changes}
    return LLMClient(LLMConfig(**settings))


def usage(prompt, reply):
    return {"prompt_tokens": prompt, "completion_tokens": reply}


class Till:
    """A server's own count: tokens of every body with a usage, and the number of bodies and connections without one."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.tokens_in = self.tokens_out = self.silent = 0

    def __call__(self, request, number):
        kind = self.draw.choice(("good", "good", "good", "empty", "cut off", "refused", "no choices", "no text"))
        if self.draw.random() < 0.5:
            kind = self.draw.choice((429, 500, 503, 400, "broken", "no object", "list", "silent", "negative", "cut"))
        prompt, reply = self.draw.randint(1, 5000), self.draw.randint(1, 900)
        if isinstance(kind, int):
            return Fail(kind, f"failure {number}")
        if kind in ("broken", "no object", "list", "silent", "negative", "cut"):
            self.silent += 1
            return {
                "broken": Raw(b'{"id": "x", "choices": [{"ind'),
                "no object": Raw(b"{}"),
                "list": Raw(b"[1]"),
                "silent": Say("fine", usage=None),
                "negative": Say("fine", usage=usage(-prompt, reply)),
                "cut": Cut(),
            }[kind]
        self.tokens_in, self.tokens_out = self.tokens_in + prompt, self.tokens_out + reply
        if kind == "no choices":
            return Raw(json.dumps({"choices": [], "usage": usage(prompt, reply)}).encode())
        if kind == "no text":
            message = {"message": {"content": {"a": 1}}, "finish_reason": "stop"}
            return Raw(json.dumps({"choices": [message], "usage": usage(prompt, reply)}).encode())
        refusal = "no" if kind == "refused" else None
        reason = "length" if kind == "cut off" else "stop"
        return Say("" if kind in ("empty", "refused") else "fine", reason, refusal, usage(prompt, reply))


def test_the_ledger_of_a_thousand_calls_is_the_servers_own():
    """What is reported is booked to the token; what is not counts as the most that it may be, a call each."""
    till = Till(3)
    with ScriptedEndpoint(till) as server:
        client = client_for(server, max_attempts=3, concurrency=16, max_output_tokens=100)
        found = client.complete_all([ask(f"call {n:04}") for n in range(1000)])
        assert client.calls == len(server.requests) > 1400
    assert client.spent_usd == pytest.approx(till.tokens_in * IN_USD + till.tokens_out * OUT_USD, rel=1e-12)
    # "call 0000" has 9 characters, which are 3 tokens.
    assert till.silent > 100
    assert client.unreported_usd == pytest.approx(till.silent * (3 * IN_USD + 100 * OUT_USD), rel=1e-9)
    replies = [one for one in found if isinstance(one, Reply)]
    assert 500 < len(replies) < 1000
    assert sum(one.cost_usd for one in replies if one.cost_usd is not None) < client.spent_usd


def test_billed_replies_that_cannot_be_used_are_booked_and_stop_at_the_budget():
    """Three empty replies of 0.75 USD each used to show as nothing, and a budget of 0.03 let all of them pass."""
    with ScriptedEndpoint(lambda request, n: Say("" if n < 3 else "ok", usage=usage(300_000, 0))) as server:
        client = client_for(server)
        reply = client.complete_all([ask("x")])[0]
        assert (reply.cost_usd, reply.tokens) == (pytest.approx(4 * 0.75), Tokens(1_200_000, 0, 0))
        assert client.spent_usd == pytest.approx(3.0)
    with ScriptedEndpoint(lambda request, n: Say("" if n < 3 else "ok", usage=usage(300_000, 0))) as server:
        client = client_for(server, budget_usd=0.03)
        assert isinstance(client.complete_all([ask("x")])[0], BudgetError)
        assert len(server.requests) == 1
        assert client.spent_usd == pytest.approx(0.75)


@pytest.mark.parametrize("broken", [Cut(), Drop()])
def test_a_retry_needs_room_in_the_budget_for_itself(broken):
    """A connection that broke off may have been paid for: with room for one call and a half there is no second attempt."""
    with ScriptedEndpoint(lambda request, n: broken) as server:
        client = client_for(server, budget_usd=0.0015, max_output_tokens=100)
        found = client.complete_all([ask("x")])[0]
        assert isinstance(found, BudgetError)
        assert "0.0010 perhaps paid" in str(found)
        assert len(server.requests) == 1
        assert client.spending() == "1 calls, 0.0000 USD spent now, at most 0.0010 more for attempts that did not say"


@pytest.mark.parametrize(
    "wrong",
    [
        usage(-5, 1),
        usage(5, -1),
        usage(5, 1) | {"prompt_tokens_details": {"audio_tokens": 6}},
        usage(None, None),
        {"prompt_tokens": 10},
        usage("ten", 1),
    ],
)
def test_a_usage_that_cannot_be_is_no_bill_and_costs_no_verdict(wrong):
    """The reply used to be thrown away, after as many paid attempts as there may be; now the call counts as perhaps paid."""
    with ScriptedEndpoint(lambda request, n: Say("ok", usage=wrong)) as server:
        client = client_for(server, max_attempts=2, max_output_tokens=100)
        reply = client.complete_all([ask("x")])[0]
    assert (reply.text, reply.attempts, reply.cost_usd) == ("ok", 1, None)
    assert (client.spent_usd, client.unreported_usd) == (0, pytest.approx(IN_USD + 100 * OUT_USD))


def test_audio_is_not_priced_as_text_where_the_usage_does_not_tell_them_apart():
    """60 s at 10 tokens a second are 600 of the 700 tokens: 600 x 32 + 100 x 2.5 + 20 x 10 USD a million."""
    with ScriptedEndpoint(lambda request, n: Say("ok", usage=usage(700, 20))) as server:
        reply = client_for(server, model="gpt-audio").complete_all([LISTEN])[0]
    assert reply.tokens == Tokens(100, 600, 20, audio_estimated=True)
    assert reply.cost_usd == pytest.approx((600 * 32 + 100 * 2.5 + 20 * 10) / 1e6)
    detail = {"prompt_tokens_details": {"audio_tokens": 500}}
    with ScriptedEndpoint(lambda request, n: Say("ok", usage=usage(700, 20) | detail)) as server:
        reply = client_for(server, model="gpt-audio").complete_all([LISTEN])[0]
    assert reply.tokens == Tokens(200, 500, 20)


def test_audio_without_a_price_has_no_cost_as_text():
    with ScriptedEndpoint(lambda request, n: Say("ok", usage=usage(700, 20))) as server:
        assert client_for(server, model="gpt-4o").complete_all([LISTEN])[0].cost_usd is None


def test_thoughts_that_only_the_total_counts_are_paid_for():
    counted = Raw(
        json.dumps(
            {
                "choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}],
                "usage": {**usage(100, 20), "total_tokens": 1120},
            }
        ).encode()
    )
    with ScriptedEndpoint(lambda request, n: counted) as server:
        assert client_for(server).complete_all([ask("x")])[0].tokens == Tokens(100, 0, 1020)
