"""Replies that no server should send: each is an error of its own call, none is taken for a verdict, and the others go on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny.endpoint import Raw, Say, ScriptedEndpoint

from paras2s.clients import body as bodies
from paras2s.clients import chat, endpoint
from paras2s.clients.chat import LLMClient, Message, Reply, Request
from paras2s.clients.endpoint import retry_after_s
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import BudgetError, JudgeError, StorageError
from paras2s.utils.cache import JsonCache

NOW_S = 1_795_743_730.0


def complete(server: ScriptedEndpoint, count: int = 3, cache: JsonCache | None = None) -> tuple[LLMClient, list[Any]]:
    config = LLMConfig(base_url=server.base_url, model="gpt-4o", timeout_s=20, max_attempts=1, concurrency=1)
    client = LLMClient(config, cache)
    return client, client.complete_all([Request((Message("user", (f"q{number}",)),)) for number in range(count)])


def completion(**changes: Any) -> str:
    message = {"role": "assistant", "content": "fine"}
    return json.dumps({"model": "gpt-4o", "choices": [{"message": message, "finish_reason": "stop"}], **changes})


def first(body: bytes, **headers: str) -> Callable[[dict[str, Any], int], Raw | Say]:
    """The first request gets this body, the others a reply."""
    return lambda request, _: Raw(body, headers) if "q0" in json.dumps(request["messages"]) else Say("fine")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b"7",
        b"[1, 2]",
        b'{"choices": null}',
        b'{"choices": [{"message": {"content": 5}}]}',
        b"\xff\xfe",
        b"9" * 5_000,
    ],
    ids=["deep", "a number", "a list", "null", "no text", "no UTF-8", "digits"],
)
def test_a_broken_body_fails_its_own_call_alone(body: bytes) -> None:
    with ScriptedEndpoint(first(body)) as server:
        _, (failed, *others) = complete(server)
    assert isinstance(failed, JudgeError)
    assert [reply.text for reply in others] == ["fine", "fine"]


@pytest.mark.parametrize(
    "error", [RecursionError("deep"), OverflowError("inf"), RuntimeError("x"), MemoryError(), KeyError("x")]
)
def test_whatever_a_call_raises_is_an_error_of_that_call(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def raise_first(completion: object) -> None:
        read.append(1)
        if len(read) == 1:
            raise error

    monkeypatch.setattr(chat, "_refuse_error", raise_first)
    with ScriptedEndpoint(lambda *_: Say("fine")) as server:
        client, (failed, *others) = complete(server)
    assert isinstance(failed, JudgeError)
    assert type(error).__name__ in str(failed)
    assert client.unreported_usd > 0 or client.price is endpoint.FREE
    assert all(isinstance(reply, Reply) for reply in others)


@pytest.mark.parametrize("count", ["Infinity", "-Infinity", "NaN", "1" + "0" * 30, "1e400", '"many"', "null", "-5"])
def test_a_bill_beyond_reason_is_not_reported_and_the_reply_is_good(count: str) -> None:
    body = completion(usage="USAGE").replace('"USAGE"', f'{{"prompt_tokens": {count}, "completion_tokens": 20}}')
    with ScriptedEndpoint(lambda *_: Raw(body.encode())) as server:
        client, (reply,) = complete(server, 1)
    assert (reply.text, reply.cost_usd, client.spent_usd) == ("fine", None, 0.0)


def test_a_body_without_end_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "LARGEST_BODY_BYTES", 2**20)
    with ScriptedEndpoint(first(b"x" * (2**20 + 1))) as server:
        _, (failed, *others) = complete(server)
    assert "a body of more than 1 MiB" in str(failed)
    assert [reply.text for reply in others] == ["fine", "fine"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("-1", 0.0), ("abc", None), ("1e9", 1e9), ("nan", None), ("inf", None), ("", None), ("9" * 5_000, None),
        ("Wed, 21 Oct 2026 07:28:00 +99999999999999", None), ("Wed, 21 Oct 99999 07:28:00 GMT", None),
        ("Wed, 99 Oct 2026 07:28:00 GMT", None), ("Wed, 21 Oct 0000 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 1 07:28:00 +2359", 0.0),
    ],
)  # fmt: skip
def test_an_odd_retry_after_is_none(value: str, expected: float | None) -> None:
    assert retry_after_s({"retry-after": value}, NOW_S) == expected


def test_a_full_cache_keeps_the_reply_and_makes_no_more_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = JsonCache(tmp_path / "replies.sqlite")

    def full(values: object) -> None:
        raise StorageError("cannot write replies.sqlite: the disk is full")

    monkeypatch.setattr(cache, "put_many", full)
    with ScriptedEndpoint(lambda *_: Say("fine")) as server:
        _, replies = complete(server, 8, cache)
        requests = len(server.requests)
    answered = [reply for reply in replies if isinstance(reply, Reply)]
    assert len(answered) == requests < 4
    assert all(isinstance(reply, BudgetError) and "disk is full" in str(reply) for reply in replies if reply not in answered)


def test_another_model_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedEndpoint(lambda *_: Raw(completion(model="gpt-2-evil").encode())) as server, caplog.at_level(logging.WARNING):
        _, replies = complete(server)
    assert {reply.model for reply in replies} == {"gpt-2-evil"}
    assert len([record for record in caplog.records if "gpt-2-evil answered" in record.getMessage()]) == 1
    caplog.clear()
    with ScriptedEndpoint(lambda *_: Raw(completion(model="gpt-4o-2024-08-06").encode())) as server:
        complete(server)
    assert not caplog.records
