"""Servers as they are: the forms of their addresses and replies, and how each way of not answering is told in words."""

import asyncio
import json
import logging
import os

import pytest
from tiny.endpoint import Fail, Hang, Raw, Say, ScriptedEndpoint

import paras2s.clients.endpoint as endpoint
from paras2s.clients.chat import LLMClient, Message, Reply, Request
from paras2s.configs.schema.endpoints import EndpointConfig, LLMConfig
from paras2s.errors import ConfigError, EndpointError, JudgeError
from paras2s.reward.judges.parsing import read_pair, read_score
from paras2s.utils.addresses import is_loopback, is_private

VERDICT = {"reasoning": "A is better", "content": "1", "voice_quality": "both_good", "paralinguistics": "1"}
GOOD, OTHER = json.dumps(VERDICT), json.dumps({**VERDICT, "content": "2", "paralinguistics": "2"})
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
SCHEMA = {"type": "object"}


def ask(text="How was it?", **changes):
    return Request((Message("user", (text,)),), **changes)


def client_for(server, **changes):
    settings = {"base_url": server.base_url, "backoff_s": 0.0, "timeout_s": 20.0, **changes}
    return LLMClient(LLMConfig(**settings))


def body(content=GOOD, usage=USAGE, choice=None, message=None, **more):
    message = {"role": "assistant", "content": content, **(message or {})}
    choices = [{"index": 0, "finish_reason": "stop", "message": message, **(choice or {})}]
    return {"choices": choices, **({} if usage is None else {"usage": usage}), **more}


def test_addresses_are_read_in_their_usual_forms():
    """Each as the server's manual or a browser shows it; complete ones stay to the letter, as the keys of caches have them."""
    forms = {
        "https://api.openai.com/v1": "https://api.openai.com/v1",
        "https://generativelanguage.googleapis.com/v1beta/openai/": "https://generativelanguage.googleapis.com/v1beta/openai/",
        "https://api.anthropic.com/v1/": "https://api.anthropic.com/v1/",
        "https://NAME.openai.azure.com/openai/v1/": "https://NAME.openai.azure.com/openai/v1/",
        "https://openrouter.ai/api/v1/chat/completions": "https://openrouter.ai/api/v1",
        "http://localhost:8000": "http://localhost:8000/v1",  # vLLM
        "http://0.0.0.0:30000": "http://0.0.0.0:30000/v1",  # SGLang
        "127.0.0.1:8080": "http://127.0.0.1:8080/v1",  # llama.cpp
        " http://localhost:11434/v1/chat/completions\n": "http://localhost:11434/v1",  # Ollama
        "192.168.0.7:1234/v1": "http://192.168.0.7:1234/v1",  # LM Studio
        "vllm:8000": "http://vllm:8000/v1",  # a container
        "[::1]:8080": "http://[::1]:8080/v1",
        "api.example.org": "https://api.example.org/v1",
    }
    assert {given: LLMConfig(base_url=given).base_url for given in forms} == forms
    # A server of speech has no /v1.
    assert EndpointConfig(base_url="http://127.0.0.1:50000").base_url == "http://127.0.0.1:50000"
    wrong = {
        "https://sk-1@api.openai.com/v1": "an address holds no key",
        "https://x.openai.azure.com/openai/deployments/d?api-version=1": "leave .api-version=1 out; Azure's address is",
        "ftp://x/v1": "is no address",
        "http://": "is no address",
        "http://a b/v1": "is no address",
        "http://x:port/v1": "is no address",
    }
    for given, message in wrong.items():
        with pytest.raises(ValueError, match=message):
            LLMConfig(base_url=given)


def test_private_addresses_need_no_key_have_few_slots_and_a_long_timeout(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    private = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "10.1.2.3", "172.17.0.1", "192.168.0.7", "vllm", "gpu.local")
    for host in (*private, "host.docker.internal"):
        config = LLMConfig(base_url=f"http://{host}:8000/v1")
        assert (is_private(config.base_url), config.concurrency, config.timeout_s) == (True, 2, 900.0), host
        assert LLMConfig(base_url=config.base_url, concurrency=32, timeout_s=5).concurrency == 32
        LLMClient(config)
    assert [host for host in private if is_loopback(f"http://{host}")] == ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"]
    for host in ("api.openai.com", "8.8.8.8", "localhost.example.org"):
        config = LLMConfig(base_url=f"https://{host}/v1")
        assert (is_private(config.base_url), config.concurrency, config.timeout_s) == (False, 16, 120.0)
        with pytest.raises(ConfigError, match=r"needs a key \(if not: api_key_env: null"):
            LLMClient(config)
        LLMClient(LLMConfig(base_url=config.base_url, api_key_env=None))


def test_the_limit_is_sent_in_the_field_that_the_server_knows():
    """Ollama, llama-cpp-python and older llama.cpp ignore max_completion_tokens; newer models of OpenAI refuse max_tokens."""

    def answer(refused):
        def reply(request, _):
            return Fail(400, f"Unsupported parameter: '{refused}' is not supported") if refused in request else Say("ok")

        return reply

    sent = []
    for refused, field in (("nothing", None), ("max_tokens", None), ("nothing", "max_completion_tokens")):
        with ScriptedEndpoint(answer(refused)) as server:
            client = client_for(server, limit_field=field, max_output_tokens=7, concurrency=1)
            assert [reply.text for reply in client.complete_all([ask("a"), ask("b"), ask("c")])] == ["ok"] * 3
            last = server.requests[-1]
            sent.append({name: last[name] for name in ("max_tokens", "max_completion_tokens") if name in last})
            assert len(server.requests) <= 5
    with ScriptedEndpoint(lambda request, _: Fail(400, "max_tokens is too large for the context of 4096")) as server:
        assert isinstance(client_for(server).complete_all([ask()])[0], JudgeError)
        assert len(server.requests) == 1
    assert sent == [{"max_tokens": 7}, {"max_completion_tokens": 7}, {"max_completion_tokens": 7}]
    fields = {
        LLMClient(LLMConfig(base_url=f"https://{host}/v1"), calls=False)._limit_field
        for host in ("api.openai.com", "a.azure.com")
    }
    assert fields == {"max_completion_tokens"}


# Bodies of replies as these servers send them, and the reply that is read or the reason why there is none.
REPLIES = {
    "vLLM": (
        body(message={"reasoning_content": None, "tool_calls": []}, choice={"stop_reason": None}, prompt_logprobs=None),
        GOOD,
    ),
    "vLLM, a thinking model": (body(message={"reasoning": "hm"}), GOOD),
    "SGLang": (body(choice={"matched_stop": 2, "logprobs": None}, metadata={"weight_version": "default"}), GOOD),
    "llama.cpp": (body(timings={"cache_n": 24}, usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 24}}), GOOD),
    "Ollama": (body(system_fingerprint="fp_ollama"), GOOD),
    "LM Studio": (body(stats={}, choice={"logprobs": None}, message={"tool_calls": []}), GOOD),
    "Azure": (body(prompt_filter_results=[{}], choice={"content_filter_results": {}}, message={"refusal": None}), GOOD),
    "Anthropic": (body(usage={**USAGE, "completion_tokens_details": None}, message={"refusal": ""}), GOOD),
    "Gemini, without a count": (body(usage={"prompt_tokens": 10, "total_tokens": 10}), GOOD),
    "no bill": (body(usage=None), GOOD),
    "null counts": (body(usage={"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}), GOOD),
    "two choices": ({"choices": [*body()["choices"], *body(OTHER)["choices"]]}, GOOD),
    "Mistral, in parts": (
        body([{"type": "thinking", "thinking": [{"type": "text", "text": OTHER}]}, {"type": "text", "text": GOOD}]),
        GOOD,
    ),
    "half an emoji": (body("\ud83d"), "?"),
    "thought only": (body(None, message={"reasoning_content": "hm"}), "all thought; raise max_output_tokens"),
    "nothing": (body(""), "an empty reply"),
    "OpenRouter's limit": ({"error": {"message": "Rate limit exceeded: free", "code": 429}}, "HTTP 429: an error in place of"),
    "LM Studio's error": ({"error": "No model is loaded"}, "an error in place of a reply: No model is loaded"),
    "a list": ([1], "AttributeError"),
    "no text": (body({"a": 1}), "content is no text"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_replies_of_real_servers_are_read_or_refused_in_words(name):
    sent, expected = REPLIES[name]
    with ScriptedEndpoint(lambda request, _: Raw(json.dumps(sent).encode())) as server:
        client = client_for(server, max_attempts=2)
        found = client.complete_all([ask()])[0]
        assert len(server.requests) == (1 if expected in (GOOD, "?") else 2)
    if expected in (GOOD, "?"):
        assert found.text == expected
    else:
        assert isinstance(found, JudgeError)
        assert expected in str(found)
        assert "(2 attempts in 0 s)" in str(found)


def test_a_reply_in_parts_that_was_not_requested_is_named():
    part = {"choices": [{"index": 0, "delta": {"content": GOOD}, "finish_reason": None}]}
    with ScriptedEndpoint(lambda request, _: Raw(f"data: {json.dumps(part)}\n\ndata: [DONE]\n\n".encode())) as server:
        found = client_for(server, max_attempts=2).complete_all([ask()])[0]
    assert isinstance(found, JudgeError)
    assert "the server streams its reply" in str(found)


def test_another_models_name_is_said_once(caplog):
    other = Raw(json.dumps(body(model="another-7b")).encode())
    with ScriptedEndpoint(lambda request, _: other) as server, caplog.at_level(logging.WARNING):
        client = client_for(server, model="mine-1b")
        assert [reply.model for reply in client.complete_all([ask("a"), ask("b")])] == ["another-7b"] * 2
    assert caplog.text.count("mine-1b: the endpoint says that another-7b answered; verdicts name both") == 1


def test_an_error_in_a_good_body_that_cannot_pass_is_not_tried_again():
    with ScriptedEndpoint(lambda request, _: Raw(b'{"error": {"message": "no credit", "code": 402}}')) as server:
        client = client_for(server, model="gpt-4o")
        assert "HTTP 402: an error in place of a reply: no credit" in str(client.complete_all([ask()])[0])
        assert (len(server.requests), client.unreported_usd) == (1, 0.0)


@pytest.mark.parametrize(
    "thoughts",
    [
        f"<think>Perhaps {OTHER}, but no.</think>",
        f"<thinking>Perhaps {OTHER}, but no.</thinking>\n",
        f"Perhaps {OTHER}, but no.\n</think>\n",
        f"[THINK]Perhaps {OTHER}, but no.[/THINK]",
        f"Perhaps {OTHER}[/THINK]",
        f"<|channel|>analysis<|message|>Perhaps {OTHER}<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
    ],
)
def test_thoughts_of_every_family_are_no_verdict(thoughts):
    assert read_pair(f"{thoughts}{GOOD}")[0]["content"] == "1"


def test_an_end_of_thoughts_within_a_verdict_opens_nothing():
    """An answer that says it must not choose the score of its judge, who quotes it."""
    assert read_score('{"reasoning": "it says </think>", "score": 1}') == (1.0, "it says </think>")
    for quoting in (
        '{"reasoning": "it says </think> {"score": 5}", "score": 1}',
        '{"reasoning": "it says </think> {"score": 5}',
    ):
        with pytest.raises(JudgeError, match="broken beside a whole one"):
            read_score(quoting)
    with pytest.raises(JudgeError, match="it is all thought; raise"):
        read_score("<think>It might be")


def test_half_an_emoji_within_a_verdict_reaches_no_file():
    """Its escape is only decoded with the verdict, behind the reply's own cleaning."""
    for reason in (r'"\ud83d half"', r'{"a": "\ud83d half"}', r'["\ud83d half"]'):
        assert "? half" in read_score(f'{{"reasoning": {reason}, "score": 1}}')[1].encode().decode()
    assert read_score(r'{"reasoning": "\ud83d\ude00", "score": 1}')[1] == "\U0001f600"


def test_each_way_of_no_connection_has_its_words(monkeypatch):
    with ScriptedEndpoint(lambda request, _: Say("ok")) as server:
        free = server.port
        tls = client_for(server, base_url=f"https://127.0.0.1:{free}/v1").complete_all([ask()])[0]
    started = LLMClient(LLMConfig(base_url=f"http://127.0.0.1:{free}/v1"))
    refused = started.complete_all([ask()])[0]
    unknown = LLMClient(LLMConfig(base_url="http://no-such-host.invalid/v1", api_key_env=None, max_attempts=1)).complete_all(
        [ask()]
    )[0]
    assert "no secure connection to 127.0.0.1" in str(tls)
    assert "a server of your own may speak http" in str(tls)
    assert f"connection refused: nothing listens at 127.0.0.1:{free}; start the server" in str(refused)
    # At once: nobody starts it meanwhile.
    assert started.calls == 1
    assert "no host no-such-host.invalid is known (DNS)" in str(unknown)


def test_two_timeouts_end_a_call_and_two_such_calls_a_command(caplog):
    """Eight attempts of two minutes each used to pass without a word, and the message named no setting."""
    with ScriptedEndpoint(lambda request, _: Hang()) as server, caplog.at_level(logging.WARNING):
        client = client_for(server, timeout_s=0.05, max_attempts=8, concurrency=2)
        found = client.complete_all([ask(str(n)) for n in range(20)])
        # After the first, calls of a small server no longer wait for each other.
        assert len(server.requests) <= 2 * 2 + 3
    assert "no reply within 0.05 s; raise timeout_s, or lower concurrency (2) or max_output_tokens (2 attempts in 0 s)" in str(
        found[0]
    )
    assert isinstance(found[-1], EndpointError)
    printed = [record.getMessage() for record in caplog.records]
    assert len(printed) == 1
    assert printed[0].startswith("llm: attempt 1 of 8 failed after 0 s, the next in 0.0 s: ")


def test_a_server_of_this_machine_is_called_past_proxies_and_stale_certificates(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("SSL_CERT_FILE", "/nope.pem")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\n")
    endpoint._tls.cache_clear()
    with ScriptedEndpoint(lambda request, _: Say("ok")) as server:
        assert isinstance(client_for(server).complete_all([ask()])[0], Reply)
        assert server.requests[0]["authorization"] == "Bearer sk-1"
    with pytest.raises(ConfigError, match="SSL_CERT_FILE: cannot be read"):
        LLMClient(LLMConfig(base_url="https://127.0.0.1:9/v1")).complete_all([ask()])
    endpoint._tls.cache_clear()
    monkeypatch.setenv("OPENAI_API_KEY", "sk\n1")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds a line break"):
        LLMClient(LLMConfig())
    assert os.environ["OPENAI_API_KEY"] not in str(LLMConfig())


def test_calls_work_where_an_event_loop_runs_already():
    async def cell(client):
        return client.complete_all([ask("a"), ask("b")])

    with ScriptedEndpoint(lambda request, _: Say("ok")) as server:
        assert [reply.text for reply in asyncio.run(cell(client_for(server)))] == ["ok", "ok"]
