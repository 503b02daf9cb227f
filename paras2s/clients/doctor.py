"""Examine what an endpoint of language models can do, by a handful of calls: `paras2s doctor --llm URL`."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paras2s.clients.chat import Audio, LLMClient, Message, Reply, Request
from paras2s.clients.endpoint import Session, run_calls
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import BudgetError, JudgeError
from paras2s.utils.addresses import is_private

COUNT = "Count from 1 to 300, one number a line, and write nothing else."
# A judge's question has about as many tokens, and its reply has these.
LONG = "The speaker sounds tired and speaks slowly. " * 60
JUDGED_TOKENS, REPLY_TOKENS = 2500, 300
LIMIT, LONGER = 8, 48
SCORE = ("score", ("1", "2", "3", "4", "5"))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"score": {"type": "integer", "enum": [1, 2, 3, 4, 5]}, "reasoning": {"type": "string", "maxLength": 60}},
    "required": ["score", "reasoning"],
    "additionalProperties": False,
}
LISTEN = "Listen:"
# A clip that is dropped may leave its marks behind.
MARK_TOKENS = 3
# Half a second of silence, 8 bits at 8 kHz.
WAV = b"RIFF\xc4\x0f\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0@\x1f\0\0@\x1f\0\0\x01\0\x08\0data\xa0\x0f\0\0" + b"\x80" * 4000


@dataclass(frozen=True)
class Property:
    """One property of an endpoint in words; `works` is None for a mere figure."""

    what: str
    state: str
    works: bool | None = None


@dataclass(frozen=True)
class EndpointReport:
    """The findings, and the settings that fit."""

    findings: tuple[Property, ...]
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return findings and settings as JSON."""
        rows = [{"what": each.what, "state": each.state, "works": each.works} for each in self.findings]
        return {"findings": rows, "llm": self.settings}


def examine_endpoint(url: str, model: str | None) -> EndpointReport:
    """Ask an endpoint for a few replies, one after the other; the report says what works, how fast, and the settings.

    Raises:
        ConfigError: no address, or a key is missing. JudgeError: the endpoint gives no reply at all.
    """
    config = LLMConfig(base_url=url, max_attempts=1, concurrency=1, timeout_s=120.0, **({"model": model} if model else {}))
    models = _models(config)
    if model is None and models:
        config = config.model_copy(update={"model": str(models[0].get("id"))})
    context = next((size for each in models if each.get("id") == config.model and (size := _context(each))), None)
    first = _ask(config.model_copy(update={"max_output_tokens": LONGER}), _question(COUNT))
    if not isinstance(first, Reply):
        raise JudgeError(str(first))
    out_per_s = (first.tokens.text_out or LONGER) / max(first.latency_s, 1e-9)
    limit, limit_field = _limit(config)
    speed, in_per_s = _speed(config, out_per_s)
    structured, scored = _schema(config)
    known = f"{context} tokens" if context else "unknown: the server does not say; a pair needs about 4,000"
    findings = (
        Property("model", f"{config.model}{'' if first.model in ('', config.model) else f' (replies as {first.model})'}"),
        Property("context", known),
        speed,
        limit,
        structured,
        scored,
        _echo(config),
        _audio(config),
        _cancelling(config),
    )
    settings: dict[str, Any] = {"base_url": config.base_url, "model": config.model}
    settings |= {} if os.environ.get(config.api_key_env or "") else {"api_key_env": None}
    settings |= {} if limit_field in (None, "max_tokens") else {"limit_field": limit_field}
    settings |= {} if structured.works else {"structured": "never"}
    if is_private(config.base_url):
        call_s = JUDGED_TOKENS / in_per_s + REPLY_TOKENS / out_per_s
        # Three times as long as a judge's call should take, in whole minutes.
        settings |= {"concurrency": 1, "timeout_s": 60.0 * max(2, math.ceil(3 * call_s / 60))}
    settings |= {"max_output_tokens": min(2048, context // 4) if context else 1024}
    return EndpointReport(findings, settings)


def _question(*parts: str | Audio) -> Request:
    return Request((Message("user", parts),))


def _ask(config: LLMConfig, request: Request) -> Reply | JudgeError | BudgetError:
    return LLMClient(config).complete_all([request])[0]


def _models(config: LLMConfig) -> list[dict[str, Any]]:
    """Return the server's list of models; empty where it has none."""
    from paras2s.clients.endpoint import EndpointClient

    listed: list[dict[str, Any]] = []

    async def work(session: Session, _: int) -> None:
        async def get() -> Any:
            return json.loads(await session.client.get("/models", cast_to=bytes))

        try:
            body = await session.attempt(get)
            listed.extend(each for each in body.get("data") or () if isinstance(each, dict))
        except Exception:  # A server without a list may answer in any way; the first reply says whether there is a server.
            return

    run_calls(EndpointClient(config).run_all([0], work))
    return listed


def _context(model: dict[str, Any]) -> int | None:
    """Return the context of a model as vLLM, llama.cpp and LM Studio list it."""
    meta = model.get("meta") or {}
    sizes: Sequence[Any] = (model.get("max_model_len"), meta.get("n_ctx"), model.get("loaded_context_length"))
    return next((size for size in (*sizes, meta.get("n_ctx_train")) if isinstance(size, int) and size > 0), None)


def _limit(config: LLMConfig) -> tuple[Property, str | None]:
    """Return whether a limit of the reply is kept, and by which field."""
    for field in ("max_tokens", "max_completion_tokens"):
        reply = _ask(config.model_copy(update={"max_output_tokens": LIMIT, "limit_field": field}), _question(COUNT))
        if isinstance(reply, Reply) and (reply.finish_reason == "length" or 0 < reply.tokens.text_out <= LIMIT):
            return Property("limit of a reply", f"kept, as {field}", True), field
    return Property("limit of a reply", "not kept: a reply may run on to the end of the context", False), None


def _speed(config: LLMConfig, out_per_s: float) -> tuple[Property, float]:
    """Return tokens per second in and out, and whether a repeated beginning of a prompt is read faster."""
    short, times, n_tokens = config.model_copy(update={"max_output_tokens": 1}), [], 0
    for end in ("How?", "Why?"):
        started = time.perf_counter()
        reply = _ask(short, _question(f"{LONG}\n{end}"))
        times.append(time.perf_counter() - started)
        n_tokens = reply.tokens.text_in if isinstance(reply, Reply) and reply.tokens.text_in else len(LONG) // 5
    in_per_s = n_tokens / max(times[0], 1e-9)
    again = f"the same beginning again in {times[1] / times[0]:.0%} of the time"
    return Property("speed", f"{in_per_s:.0f} tokens/s in, {out_per_s:.0f} out; {again}"), in_per_s


def _schema(config: LLMConfig) -> tuple[Property, Property]:
    """Return whether a JSON schema is kept, and whether the probabilities of its score are given."""
    client = LLMClient(config.model_copy(update={"max_output_tokens": 80}))
    request = replace(_question("How kind is 'thank you', from 1 to 5?"), schema=SCHEMA)
    reply = client.complete_all([request])[0]
    structured = Property("JSON schema", "refused or not kept: replies are parsed as text", False)
    if isinstance(reply, Reply):
        try:
            kept = json.loads(reply.text)["score"] in SCHEMA["properties"]["score"]["enum"] and client.is_structured
            structured = Property("JSON schema", "kept" if kept else structured.state, kept)
        except (ValueError, TypeError, KeyError):
            pass
    scored = client.complete_all([replace(request, scored=SCORE)])[0]
    return structured, _given("probabilities of a score", scored, "judge.read: expected", "judge.read: reply only")


def _given(what: str, reply: Reply | JudgeError | BudgetError, use: str, instead: str) -> Property:
    """Return whether log-probabilities came with a reply; of a server that was too slow for it that is not known."""
    if isinstance(reply, JudgeError) and "no reply within" in str(reply):
        return Property(what, f"unknown: {reply}"[:160])
    given = isinstance(reply, Reply) and reply.logprobs is not None
    return Property(what, f"given ({use})" if given else f"not given ({instead})", given)


def _echo(config: LLMConfig) -> Property:
    """Return whether the log-probabilities of a prompt are given, which a contrast judge needs."""
    reply = _ask(config, Request((Message("user", ("The sky is blue.",)),), continues_at=len("The sky")))
    needed = "kind: contrast needs engine: local"
    return _given("probabilities of a prompt", reply, "kind: contrast, engine: completions", needed)


def _audio(config: LLMConfig) -> Property:
    """Return whether audio in a question is read: some servers drop it without a word, and answer the words around it."""
    short, what = config.model_copy(update={"max_output_tokens": 1}), "audio input"
    listened, read = (_ask(short, _question(LISTEN, *parts)) for parts in ((Audio(WAV, 0.5),), ()))
    if not isinstance(listened, Reply):
        return Property(what, f"refused: {listened}"[:160], False)
    counts = [each.tokens.text_in + each.tokens.audio_in if isinstance(each, Reply) else 0 for each in (listened, read)]
    if not all(counts):
        return Property(what, "taken; whether it is read is unknown: the server counts no tokens")
    if counts[0] - counts[1] <= MARK_TOKENS:
        return Property(what, f"dropped without a word: {counts[0]} tokens with a clip, {counts[1]} without", False)
    return Property(what, f"taken, as {counts[0] - counts[1]} tokens", True)


def _cancelling(config: LLMConfig) -> Property:
    """Return whether the server stops a reply that its caller has given up: else the next call waits."""
    short = config.model_copy(update={"max_output_tokens": 1})
    started = time.perf_counter()
    _ask(short, _question("Hello."))
    alone_s = time.perf_counter() - started
    waited_s = max(0.3, alone_s)
    _ask(config.model_copy(update={"max_output_tokens": 1024, "timeout_s": waited_s}), _question(COUNT))
    started = time.perf_counter()
    _ask(short.model_copy(update={"timeout_s": 20.0}), _question("Hello."))
    behind_s = time.perf_counter() - started
    works = behind_s < 2 * alone_s + 1.0
    state = f"a call takes {behind_s:.1f} s behind a reply that was given up, and {alone_s:.1f} s alone"
    return Property("cancelling", state, works)
