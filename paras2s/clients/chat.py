"""A client of language models at OpenAI-compatible endpoints, with a cache.

A call either returns a Reply or raises; it never makes one up. Attempts, rate and budget: `endpoint`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import urlparse

from paras2s.clients.endpoint import LIMIT_FIELDS, BodyError, CallError, EndpointClient, PaidError, Price, Session, run_calls
from paras2s.configs.schema.endpoints import LimitField, LLMConfig
from paras2s.errors import BudgetError, JudgeError, StorageError, one_line
from paras2s.utils.addresses import is_private
from paras2s.utils.cache import JsonCache, key_of
from paras2s.utils.text import well_formed

# What a tokenizer's own rule splits a text into before it looks into its vocabulary: letters, up to three digits, underscores,
# each sign, breaks of a line, and indents; one space goes with what follows it.
# Most words of eight letters are one token.
PIECE = re.compile(r"[^\W\d_]{1,8}|\d{1,3}|_+|[^\w\s]|\n+| {2,}")
CACHE_VERSION = 1
# No model reads or writes as many tokens.
MOST_TOKENS = 10**8
log = logging.getLogger(__name__)
# The most that OpenAI and vLLM give of a position; below the least is "never" as some servers write it; rounding may pass 0.
MOST_LOGPROBS, LEAST_LOGPROB, NEVER, LARGEST_LOGPROB = 20, -700.0, -1e9, 0.01
# Parts of a reply that are no part of its text.
THOUGHT_PARTS = ("thinking", "reasoning", "redacted_thinking")


@dataclass(frozen=True)
class Tokens:
    """Token counts of a call: text in, audio in, text out.

    `audio_estimated`: the reply did not tell audio from text, so that audio is counted by its length.
    """

    text_in: int = 0
    audio_in: int = 0
    text_out: int = 0
    audio_estimated: bool = False

    def __add__(self, other: Tokens) -> Tokens:
        """Return the sum."""
        estimated = self.audio_estimated or other.audio_estimated
        return Tokens(self.text_in + other.text_in, self.audio_in + other.audio_in, self.text_out + other.text_out, estimated)

    def cost_usd(self, price: Price | None) -> float | None:
        """Return the cost in USD; None if the price is unknown, or that of audio for a call with audio."""
        if price is None or (self.audio_in and price.audio_in is None):
            return None
        return (self.text_in * price.text_in + self.audio_in * (price.audio_in or 0) + self.text_out * price.text_out) / 1e6


@dataclass(frozen=True)
class Bill:
    """An upper estimate of the cost of calls; `at_most_usd` is None if a price is unknown."""

    calls: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    at_most_usd: float | None = 0.0

    def __add__(self, other: Bill) -> Bill:
        """Return the sum."""
        known = None not in (self.at_most_usd, other.at_most_usd)
        usd = (self.at_most_usd or 0.0) + (other.at_most_usd or 0.0) if known else None
        return Bill(self.calls + other.calls, self.tokens + other.tokens, usd)


@dataclass(frozen=True)
class Audio:
    """An audio file in a message: its bytes, length and format."""

    data: bytes
    duration_s: float
    format: str = "wav"


@dataclass(frozen=True)
class Message:
    """A chat message: its role, and its parts (text and audio) in order."""

    role: str
    parts: tuple[str | Audio, ...]


@dataclass(frozen=True)
class Request:
    """A request: messages, and the JSON schema of the reply (None: free text).

    `token_ids`: only one token is generated, with the log-probabilities of these (vLLM's `logprob_token_ids`). `scored` is a
    key of the reply's JSON and its possible values, whose log-probabilities the reply has. `continues_at`: nothing is
    generated; the reply has the log-probability of the prompt, the only message's text, from this character on. `sample`
    numbers several replies to one prompt: equal numbers share a reply, and a configured seed is increased by it. `follows`: it
    asks about the same item as the request before it, and does not race that for a slot of a small server.
    """

    messages: tuple[Message, ...]
    schema: dict[str, Any] | None = None
    token_ids: tuple[int, ...] = ()
    scored: tuple[str, tuple[str, ...]] | None = None
    continues_at: int | None = None
    sample: int = 0
    follows: bool = False


def prompts_of(requests: Sequence[Request]) -> list[str]:
    """Return the messages of requests as text, with a clip's length in its place; equal prompts (samples) once."""
    return list(dict.fromkeys("\n\n".join(map(_message_text, request.messages)) for request in requests))


def _message_text(message: Message) -> str:
    parts = (part if isinstance(part, str) else f"[a clip of {part.duration_s:.1f} s]" for part in message.parts)
    return f"{message.role}:\n{''.join(parts)}"


@dataclass(frozen=True)
class Reply:
    """A model's reply. `tokens` and `cost_usd` are of all attempts with a reported usage; `cost_usd` is None if no
    price is known or the reply does not say. A reply from the cache costs nothing again.

    `refusal` is the endpoint's own refusal text, `finish_reason` as it gave it ("length": the text is cut off).
    `logprobs` maps tokens to log-probabilities at the first position, values of a scored key to theirs, or "" to that of a
    continuation; None if not requested or not returned.
    """

    text: str
    finish_reason: str
    refusal: str | None
    model: str
    tokens: Tokens
    cost_usd: float | None
    latency_s: float
    attempts: int
    cached: bool
    logprobs: dict[str, float] | None = None


def request_key(config: LLMConfig, request: Request) -> str:
    """Return a hash of everything that may change the reply; audio enters by its own hash."""
    messages = [
        [message.role, [part if isinstance(part, str) else {"audio": _digest(part.data)} for part in message.parts]]
        for message in request.messages
    ]
    settings = (config.base_url, config.model, config.temperature, config.max_output_tokens, config.seed, config.structured)
    # Requests that do not use a newer setting have the same key as before that setting existed.
    newer: list[Any] = [request.token_ids] if request.token_ids else []
    newer += [{"scored": request.scored}] if request.scored else []
    newer += [{"continues_at": request.continues_at}] if request.continues_at is not None else []
    newer += [{"top_p": config.top_p}] if config.top_p is not None else []
    newer += [{"sample": request.sample}] if request.sample else []
    newer += [{"reasoning_effort": config.reasoning_effort}] if config.reasoning_effort is not None else []
    newer += [{"extra_body": config.extra_body}] if config.extra_body else []
    return key_of([CACHE_VERSION, settings, messages, request.schema, *newer])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def count_tokens(text: str) -> int:
    """Estimate how many tokens a text is, without any model's vocabulary.

    Whisper's tokenizer splits a prompt of TRACE's blueprints into about an eighth more, since it has few numbers; a count by
    characters was 40 % below it.
    """
    return len(PIECE.findall(text))


def estimate_tokens(request: Request, price: Price | None, max_output_tokens: int) -> Tokens:
    """Estimate the tokens of a call: text by `count_tokens`, audio by its length, and the longest reply allowed."""
    text_in = sum(count_tokens(part) for message in request.messages for part in message.parts if isinstance(part, str))
    return Tokens(text_in, audio_tokens(request, price), max_output_tokens if request.continues_at is None else 1)


def audio_tokens(request: Request, price: Price | None) -> int:
    """Return the tokens of a request's audio by its length; 0 if the price table has no tokens a second."""
    audio_s = sum(part.duration_s for message in request.messages for part in message.parts if isinstance(part, Audio))
    per_s = price.audio_tokens_per_s if price and price.audio_tokens_per_s else 0.0
    return int(-(-audio_s * per_s // 1))


class LLMClient:
    """A client of one model. One instance a command: budget, rate and cache are the command's."""

    def __init__(self, config: LLMConfig, cache: JsonCache | None = None, section: str = "llm", calls: bool = True) -> None:
        self.config = config
        self.cache = cache
        self.endpoint = EndpointClient(config, section, calls)
        self.price = self.endpoint.price
        self.calls = 0
        # Added to each request's sample: an audit asks the same again, and the cache must not answer.
        self.repeat = 0
        self._structured = config.structured == "auto"
        self._warned_of_model = False
        # Two calls at once share one slot of a small server: each takes the time of both, and both may run out of it.
        self._in_turn = is_private(config.base_url)
        # OpenAI's newer models refuse max_tokens; many servers do not know max_completion_tokens and would be without a limit.
        host = urlparse(config.base_url).hostname or ""
        newer = host.endswith(("openai.com", "azure.com"))
        self._bounded = not newer
        self._limit_field: LimitField = config.limit_field or ("max_completion_tokens" if newer else "max_tokens")

    @property
    def is_structured(self) -> bool:
        """Whether replies are requested by their schema: the endpoint has not refused one."""
        return self._structured

    @property
    def spent_usd(self) -> float:
        """Cost of this instance's calls so far, failed attempts included, as replies said it."""
        return self.endpoint.budget.spent_usd

    @property
    def unreported_usd(self) -> float:
        """The most that those attempts may have cost beside it that did not say; 0 where no price is known."""
        return self.endpoint.budget.unreported_usd

    def spending(self) -> str:
        """Return calls and cost so far as a phrase."""
        beside = f", at most {self.unreported_usd:.4f} more for attempts that did not say" if self.unreported_usd else ""
        return f"{self.calls} calls, {self.spent_usd:.4f} USD spent now{beside}"

    def complete_all(
        self,
        requests: Sequence[Request],
        on_progress: Callable[[int, int], None] | None = None,
        usable: Callable[[Reply], bool] = lambda reply: True,
    ) -> list[Reply | JudgeError | BudgetError]:
        """Return replies in order; a call that failed for good is its error, and after the budget's end a BudgetError.

        Equal requests are sent once. A reply that is not `usable` is returned but not cached, and one in the cache does not
        count: a later run requests it again.
        """
        return run_calls(self._complete_all(requests, on_progress, usable))

    async def _complete_all(
        self, requests: Sequence[Request], on_progress: Callable[[int, int], None] | None, usable: Callable[[Reply], bool]
    ) -> list[Reply | JudgeError | BudgetError]:
        requests = [replace(request, sample=request.sample + self.repeat) for request in requests]
        keys = [request_key(self.config, request) for request in requests]
        cached = self.cache.get_many(keys) if self.cache else {}
        known = {key: reply for key, stored in cached.items() if usable(reply := _from_cache(stored))}
        results: list[Reply | JudgeError | BudgetError | None] = [known.get(key) for key in keys]
        done = sum(result is not None for result in results)
        if on_progress:
            on_progress(done, len(requests))

        async def work(session: Session, index: int) -> None:
            nonlocal done
            try:
                reply = await self._complete(session, requests[index])
                results[index] = reply
                self._compare_model(reply.model)
                if self.cache and usable(reply):
                    self.cache.put_many({keys[index]: asdict(reply)})
            except StorageError as error:
                # This reply is in memory; more would be paid for and lost.
                self.endpoint.stop(f"no more calls are made: {error}")
            except (JudgeError, BudgetError) as error:
                results[index] = error
            done += 1
            if on_progress:
                on_progress(done, len(requests))

        first: dict[str, int] = {}
        missing = [index for index, result in enumerate(results) if result is None]
        turns: list[list[int]] = []
        for index in missing:
            if first.setdefault(keys[index], index) != index:
                continue
            if self._in_turn and requests[index].follows and turns and turns[-1][-1] == index - 1:
                turns[-1].append(index)
            else:
                turns.append([index])

        async def take_turn(session: Session, turn: int) -> None:
            for index in turns[turn]:
                await work(session, index)

        await self.endpoint.run_all(range(len(turns)), take_turn)
        for index in missing:
            if results[index] is None:
                twin = results[first[keys[index]]]
                results[index] = replace(twin, cached=True) if isinstance(twin, Reply) else twin
        return [result for result in results if result is not None]

    def _compare_model(self, answered: str) -> None:
        """Warn once where another model than the configured one answered."""
        requested = self.config.model
        named = [name.rpartition("/")[2].lower() for name in (answered, requested)]
        if all(named) and named[0] not in named[1] and named[1] not in named[0] and not self._warned_of_model:
            self._warned_of_model = True
            log.warning("%s: the endpoint says that %s answered; verdicts name both", requested, answered[:80])

    async def _complete(self, session: Session, request: Request) -> Reply:
        """Make one call with its attempts. Raises JudgeError: refused, or all attempts failed. BudgetError."""
        estimated = estimate_tokens(request, self.price, self.config.max_output_tokens)
        most_usd = estimated.cost_usd(self.price) if self.audio_priced(request) else None

        spent: list[Tokens] = []
        result = await self.endpoint.call(
            lambda: self._attempt(session, request, spent), most_usd, lambda reply: self._cost_of(request, reply.tokens)
        )
        known = all(self._cost_of(request, usage) is not None for usage in spent)
        tokens = sum(spent, Tokens())
        return replace(
            result.value,
            tokens=tokens,
            cost_usd=self._cost_of(request, tokens) if known else None,
            latency_s=result.latency_s,
            attempts=result.attempts,
        )

    def _cost_of(self, request: Request, tokens: Tokens) -> float | None:
        """Return the cost of tokens; None if the reply does not count them, or a price is missing."""
        unpriced = tokens == Tokens() or not (tokens.audio_in or self.audio_priced(request))
        return None if unpriced else tokens.cost_usd(self.price)

    def audio_priced(self, request: Request) -> bool:
        """Return whether the price of this request's audio, if it has any, is known."""
        has_audio = any(isinstance(part, Audio) for message in request.messages for part in message.parts)
        return not has_audio or (self.price is not None and None not in (self.price.audio_in, self.price.audio_tokens_per_s))

    def estimate(self, calls: Iterable[Any]) -> Bill:
        """Return an upper estimate of calls' cost with the longest replies; of `calls` all but (lists of) requests are none."""
        flat = [request for call in calls for request in (call if isinstance(call, list) else [call])]
        requests = [request for request in flat if isinstance(request, Request)]
        total = sum((estimate_tokens(request, self.price, self.config.max_output_tokens) for request in requests), Tokens())
        usd = total.cost_usd(self.price) if all(map(self.audio_priced, requests)) else None
        return Bill(len(requests), total, usd if requests else 0.0)

    async def _attempt(self, session: Session, request: Request, spent: list[Tokens]) -> Reply:
        # A limit's field, the bounds of a schema and the schema itself may be refused, one after the other.
        for _ in range(3):
            sent = self._limit_field, self._bounded, self._structured
            try:
                return await self._post(session, request, spent)
            except CallError as error:
                if not self._leave_out(error, request, *sent):
                    raise
        return await self._post(session, request, spent)

    def _leave_out(self, error: CallError, request: Request, limit_field: str, bounded: bool, structured: bool) -> bool:
        """Leave out of later calls what an endpoint refuses of a call that was sent so, and return whether it was that."""
        if error.refused_field == limit_field and self.config.limit_field is None:
            self._limit_field = next(name for name in LIMIT_FIELDS if name != limit_field)
            return True
        if not error.refuses_schema or request.schema is None or not structured:
            return False
        if bounded and "maxLength" in str(error):
            self._bounded = False
        else:
            # Some gateways have no structured output; their free text is parsed as strictly.
            self._structured = False
        return True

    async def _post(self, session: Session, request: Request, spent: list[Tokens]) -> Reply:
        """Send one HTTP request; tokens that its reply reports, usable or not, go to `spent`. Raises CallError."""
        body: dict[str, Any] = {"model": self.config.model, "messages": [_as_json(message) for message in request.messages]}
        body |= {self._limit_field: self.config.max_output_tokens}
        body |= {} if self.config.temperature is None else {"temperature": self.config.temperature}
        body |= {} if self.config.top_p is None else {"top_p": self.config.top_p}
        body |= {} if self.config.reasoning_effort is None else {"reasoning_effort": self.config.reasoning_effort}
        body |= self.config.extra_body
        # With one seed for all samples, one reply repeated would pass for agreement.
        body |= {} if self.config.seed is None else {"seed": self.config.seed + request.sample}
        if self._structured and request.schema is not None:
            bounded = request.schema if self._bounded else _without_bounds(request.schema)
            schema = {"name": "verdict", "strict": True, "schema": bounded}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.token_ids:
            body |= {self._limit_field: 1, "temperature": 0.0, "logprobs": True}
            body["logprob_token_ids"] = list(request.token_ids)

        if request.scored:
            body |= {"logprobs": True, "top_logprobs": MOST_LOGPROBS}
        path = "/chat/completions"
        if request.continues_at is not None:
            # One token is generated, which is left out: some servers take 0 for no limit.
            path, body = "/completions", {"model": self.config.model, "prompt": request.messages[0].parts[0], "max_tokens": 1}
            body |= {"temperature": 0.0, "echo": True, "logprobs": 1, **self.config.extra_body}

        async def post() -> Reply:
            self.calls += 1
            # As bytes: the client's own models of requests and replies take 2 ms of the processor a call.
            data: bytes = await session.client.post(path, cast_to=bytes, body=body)
            if data.lstrip()[:5] == b"data:":
                raise PaidError("the server streams its reply, in parts, which was not requested", None)
            # "Infinity" is no JSON; an infinite count of tokens is a missing count. "-Infinity" is some servers' "never".
            completion = json.loads(data, parse_constant=lambda name: -math.inf if name == "-Infinity" else None)
            _refuse_error(completion)
            tokens = _read_usage(completion.get("usage"), audio_tokens(request, self.price))
            spent.append(tokens)
            try:
                # With log-probabilities requested the text does not matter: it may well be an end token.
                if request.continues_at is not None:
                    return _read_continuation(completion, request, tokens)
                return _checked(_read_reply(completion, tokens, request), session, may_be_empty=bool(request.token_ids))
            except Exception as error:
                # Of another form, nested too deeply, a number beyond reason: it was paid for.
                raise PaidError(one_line(error), self._cost_of(request, tokens)) from error

        return await session.attempt(post)


def _checked(reply: Reply, session: Session, may_be_empty: bool) -> Reply:
    """Return the reply without the key, should a gateway echo it; an empty reply without a reason is retried.

    Raises:
        ValueError: neither text nor refusal, nor a reason for that.
    """
    if not may_be_empty and not reply.text.strip() and not reply.refusal and reply.finish_reason in ("", "stop"):
        raise ValueError("an empty reply")
    refusal = None if reply.refusal is None else session.without_key(reply.refusal)
    return replace(reply, text=session.without_key(reply.text), refusal=refusal)


def _as_json(message: Message) -> dict[str, Any]:
    if all(isinstance(part, str) for part in message.parts):
        return {"role": message.role, "content": "\n".join(str(part) for part in message.parts)}
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Audio):
            data = base64.b64encode(part.data).decode()
            content.append({"type": "input_audio", "input_audio": {"data": data, "format": part.format}})
        else:
            content.append({"type": "text", "text": part})
    return {"role": message.role, "content": content}


def _read_usage(usage: Any, audio_tokens: int) -> Tokens:
    """Read what a reply says that it took; where that does not tell audio from text, there are `audio_tokens` of audio.

    A bill that is missing or cannot be is no tokens, which are counted as not reported: the reply is good without it.
    """
    try:
        prompt, reply = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        total = int(usage.get("total_tokens") or 0)
        audio = int((usage.get("prompt_tokens_details") or {}).get("audio_tokens") or 0)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return Tokens()
    if min(prompt, reply, audio) < 0 or audio > prompt or max(prompt, reply, total) > MOST_TOKENS:
        return Tokens()
    # Where a model's thoughts are not among the tokens of its reply, they are in the total.
    reply = max(reply, total - prompt)
    if audio or not audio_tokens:
        return Tokens(prompt - audio, audio, reply)
    # Fewer tokens than the audio has: it was not counted at all.
    return Tokens(prompt - audio_tokens if prompt >= audio_tokens else prompt, audio_tokens, reply, audio_estimated=True)


def _without_bounds(schema: Any) -> Any:
    """Return a schema without the lengths of its texts, which OpenAI's and Azure's own endpoints refuse."""
    if isinstance(schema, dict):
        return {key: _without_bounds(value) for key, value in schema.items() if key != "maxLength"}
    return [_without_bounds(value) for value in schema] if isinstance(schema, list) else schema


def _read_reply(completion: dict[str, Any], tokens: Tokens, request: Request) -> Reply:
    """Read a chat completion. Raises ValueError, TypeError, LookupError, AttributeError: it has another form."""
    choice = completion["choices"][0]
    message = choice["message"]
    text, refusal = _text_of(message.get("content")), message.get("refusal") or None
    if not isinstance(refusal, str | None):
        raise TypeError("the reply's refusal is no text")
    reason, model = _word(choice, "finish_reason"), _word(completion, "model")
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if thoughts and not text.strip() and refusal is None and reason in ("", "stop"):
        raise ValueError("the reply is all thought; raise max_output_tokens, or lower reasoning_effort")
    logprobs = _first_logprobs(choice) if request.token_ids else None
    if request.scored:
        logprobs = _scored_logprobs(choice, *request.scored)
    return Reply(well_formed(text), reason, refusal, model, tokens, None, 0.0, 1, False, logprobs)


def _text_of(content: Any) -> str:
    """Return a message's text, which may come in parts, thoughts among them. Raises TypeError: it is no text."""
    if isinstance(content, list):
        parts = [part for part in content if not (isinstance(part, dict) and part.get("type") in THOUGHT_PARTS)]
        return "".join(part if isinstance(part, str) else _text_of(part["text"]) for part in parts)
    if content is not None and not isinstance(content, str):
        raise TypeError("the reply's content is no text")
    return content or ""


def _refuse_error(completion: Any) -> None:
    """Refuse a body that is an error, which gateways send with HTTP 200. Raises BodyError: it is one."""
    error = completion.get("error") if isinstance(completion, dict) and not completion.get("choices") else None
    if error:
        given = error if isinstance(error, dict) else {"message": error}
        code = given.get("code")
        raise BodyError(str(given.get("message") or given), code if isinstance(code, int) else None)


def _first_logprobs(choice: dict[str, Any]) -> dict[str, float] | None:
    positions = (choice.get("logprobs") or {}).get("content")
    if not positions:
        return None
    # An infinity could not be cached.
    return {entry["token"]: max(_logprob(entry["logprob"]), NEVER) for entry in positions[0].get("top_logprobs") or ()}


def _logprob(value: Any) -> float:
    """Read a log-probability, which may be that of never. Raises ValueError, TypeError: no probability has this logarithm."""
    number = float(value)
    if not number <= LARGEST_LOGPROB:
        raise ValueError(f"a log-probability of {number:g}")
    return number


def _scored_logprobs(choice: dict[str, Any], key: str, values: Sequence[str]) -> dict[str, float] | None:
    """Return the log-probabilities of a key's values at the token that is its value; None if there is no such token."""
    begun, text = re.compile(rf'"{re.escape(key)}"\s*:\s*"?\s*\Z'), ""
    for entry in (choice.get("logprobs") or {}).get("content") or ():
        if begun.search(text) and str(entry["token"]).strip(' "') in values:
            logprobs: dict[str, float] = {}
            for other in entry.get("top_logprobs") or ():
                # "4" and " 4" are the same value.
                value, logprob = str(other["token"]).strip(' "'), _logprob(other["logprob"])
                if value in values and logprob > LEAST_LOGPROB:
                    logprobs[value] = math.log(math.exp(logprobs.get(value, -math.inf)) + math.exp(logprob))
            return logprobs or None
        text += str(entry["token"])
    return None


def _read_continuation(completion: dict[str, Any], request: Request, tokens: Tokens) -> Reply:
    """Read the log-probability of the prompt behind its first `continues_at` characters, as OpenAI's completions echo it.

    A server that does not echo the prompt, or whose tokens do not divide there, has given none: `logprobs` is None.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: it has another form.
    """
    choice, prompt, start = completion["choices"][0], str(request.messages[0].parts[0]), request.continues_at or 0
    given = choice.get("logprobs") or {}
    texts, values = given.get("tokens") or [], given.get("token_logprobs") or []
    # A token that begins every text may be written before the prompt.
    position = -"".join(texts).find(prompt)
    total = None
    for text, value in zip(texts, values, strict=True) if position <= 0 else ():
        if position == start:
            total = 0.0
        if start <= position < len(prompt) and total is not None:
            total = None if value is None else total + _logprob(value)
        position += len(text)
    logprobs = None if total is None or math.isinf(total) else {"": total}
    return Reply("", _word(choice, "finish_reason"), None, _word(completion, "model"), tokens, None, 0.0, 1, False, logprobs)


def _word(part: dict[str, Any], key: str) -> str:
    """Return a word of a reply's form, fit to be written."""
    return str(well_formed(str(part.get(key) or "")))


def _from_cache(stored: dict[str, Any]) -> Reply:
    values = {**stored, "tokens": Tokens(**stored["tokens"]), "cached": True}
    return Reply(**values)
