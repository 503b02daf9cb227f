"""The one client for OpenAI-compatible endpoints: retries, rate limit, cache, prices and a budget.

A call either gives a Reply or raises; it never gives a made-up one. A key is read from the environment, and never reaches
the cache, a log or an error message.
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import hashlib
import importlib.util
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from paras2s.config import LLMConfig
from paras2s.errors import BudgetError, ConfigError, JudgeError, one_line
from paras2s.kept import Kept, key_of

LONGEST_WAIT_S = 60.0
# A server that asks for more than this is out of service, and a command that slept so long would seem hung.
LONGEST_RETRY_AFTER_S = 600.0
BUDGET_LOOK_S = 0.02
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
CHARACTERS_PER_TOKEN = 4
CACHE_VERSION = 1
NO_KEY = "none"


class Price(BaseModel):
    """Of one model, in USD per million tokens; `audio_in` is None where the model hears nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text_in: float
    text_out: float
    audio_in: float | None = None
    audio_tokens_per_s: float | None = None


class Prices(BaseModel):
    """A dated table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    as_of: Any
    models: dict[str, Price]


def load_prices(path: Path | None = None) -> Prices:
    """The shipped table, or a user's.

    Raises:
        ConfigError: missing, or not a price table.
    """
    source = path or resources.files("paras2s").joinpath("prices.yaml")
    try:
        return Prices.model_validate(yaml.safe_load(source.read_text()))
    except (OSError, UnicodeDecodeError, ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: not a price table ({one_line(error)})") from error


@dataclass(frozen=True)
class Tokens:
    """How many tokens went in as text and as audio, and came out."""

    text_in: int = 0
    audio_in: int = 0
    text_out: int = 0

    def cost_usd(self, price: Price | None) -> float | None:
        """In USD; None where no price is known, or none for audio and there was some."""
        if price is None or (self.audio_in and price.audio_in is None):
            return None
        return (self.text_in * price.text_in + self.audio_in * (price.audio_in or 0) + self.text_out * price.text_out) / 1e6


@dataclass(frozen=True)
class Audio:
    """A WAV file in a message: its bytes and length."""

    wav: bytes
    duration_s: float


@dataclass(frozen=True)
class Message:
    """One message: its role and its parts, texts and audio in order."""

    role: str
    parts: tuple[str | Audio, ...]


@dataclass(frozen=True)
class Request:
    """What is asked: messages, and the JSON schema of the reply wanted (None: free text)."""

    messages: tuple[Message, ...]
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class Reply:
    """What came back. `cost_usd` is None where no price is known; a reply from the cache costs nothing again.

    `refusal` is the endpoint's own refusal text, `finish_reason` as it gave it ("length": the text is cut off).
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


def request_key(config: LLMConfig, request: Request) -> str:
    """A hash of everything that may change the reply; audio by its own hash."""
    messages = [
        [message.role, [part if isinstance(part, str) else {"audio": _digest(part.wav)} for part in message.parts]]
        for message in request.messages
    ]
    asked = (config.base_url, config.model, config.temperature, config.max_output_tokens, config.seed, config.structured)
    return key_of([CACHE_VERSION, asked, messages, request.schema])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def estimate_tokens(request: Request, price: Price | None, max_output_tokens: int) -> Tokens:
    """Tokens of a call before it is made: a token for 4 characters, audio by its length, and the longest reply allowed."""
    parts = [part for message in request.messages for part in message.parts]
    characters = sum(len(part) for part in parts if isinstance(part, str))
    audio_s = sum(part.duration_s for part in parts if isinstance(part, Audio))
    per_s = price.audio_tokens_per_s if price and price.audio_tokens_per_s else 0.0
    return Tokens(-(-characters // CHARACTERS_PER_TOKEN), int(-(-audio_s * per_s // 1)), max_output_tokens)


def wait_s(attempt: int, retry_after_s: float | None, backoff_s: float, draw: float) -> float:
    """Before attempt number `attempt` + 1: a draw from 0..1 of the doubled back-off, and at least what the server asked."""
    jittered = draw * min(LONGEST_WAIT_S, backoff_s * 2.0 ** (attempt - 1))
    return max(jittered, retry_after_s or 0.0)


def retry_after_s(headers: Any, now_s: float) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or a date; None where there is none that can be read."""
    value = (headers or {}).get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now_s)
    except (TypeError, ValueError):
        return None


class Wallet:
    """What was spent, and what calls under way may still cost by estimate: together not more than the budget."""

    def __init__(self, budget_usd: float | None) -> None:
        self.budget_usd = budget_usd
        self.spent_usd = 0.0
        self._reserved_usd = 0.0

    def reserve(self, most_usd: float) -> None:
        """Set the most a call may cost aside.

        Raises:
            BudgetError: there is not enough left.
        """
        if self.budget_usd is not None and self.spent_usd + self._reserved_usd + most_usd > self.budget_usd:
            raise BudgetError(
                f"the budget of {self.budget_usd:.2f} USD is spent ({self.spent_usd:.4f} paid, {self._reserved_usd:.4f} in "
                f"calls under way, the next may cost {most_usd:.4f}); run again with a larger one to continue from here"
            )
        self._reserved_usd += most_usd

    @property
    def busy(self) -> bool:
        """Whether calls under way may still give back what was set aside for them."""
        return self._reserved_usd > 1e-12

    def settle(self, reserved_usd: float, cost_usd: float) -> None:
        """Give a reservation back and note the cost."""
        self._reserved_usd -= reserved_usd
        self.spent_usd += cost_usd


class LLMClient:
    """Calls one model. One instance a command: its budget, rate and cache are the command's."""

    def __init__(self, config: LLMConfig, kept: Kept | None = None) -> None:
        missing = [name for name in ("openai", "tenacity", "aiolimiter") if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(f"an LLM judge needs {', '.join(missing)}; run: pip install 'paras2s[judge]'")
        self.config = config
        self.kept = kept
        self.wallet = Wallet(config.budget_usd)
        self.calls = 0
        self.price = load_prices(config.prices).models.get(config.model)
        self._key = os.environ.get(config.api_key_env, "")
        self._structured = config.structured == "auto"
        if not self._key and urlparse(config.base_url).hostname not in ("127.0.0.1", "localhost", "::1"):
            raise ConfigError(f"llm.api_key_env: set {config.api_key_env} in the environment; {config.base_url} needs a key")
        if config.budget_usd is not None and self.price is None:
            raise ConfigError(
                f"llm.budget_usd: no price is known for {config.model}; add it to a table and give it as llm.prices"
            )

    def complete_all(
        self, requests: Sequence[Request], on_progress: Callable[[int, int], None] | None = None
    ) -> list[Reply | JudgeError | BudgetError]:
        """Replies in order; a call that failed for good is its error, and after the budget's end each is a BudgetError."""
        return asyncio.run(self._complete_all(requests, on_progress))

    async def _complete_all(
        self, requests: Sequence[Request], on_progress: Callable[[int, int], None] | None
    ) -> list[Reply | JudgeError | BudgetError]:
        keys = [request_key(self.config, request) for request in requests]
        known = self.kept.get_many(keys) if self.kept else {}
        found: list[Reply | JudgeError | BudgetError | None] = [
            _from_cache(known[key]) if key in known else None for key in keys
        ]
        done = sum(one is not None for one in found)
        waiting: Iterator[int] = iter([place for place, one in enumerate(found) if one is None])
        if on_progress:
            on_progress(done, len(requests))

        async def work(endpoint: _Endpoint) -> None:
            nonlocal done
            for place in waiting:
                try:
                    reply = await self._complete(endpoint, requests[place])
                    if self.kept:
                        self.kept.put_many({keys[place]: asdict(reply)})
                    found[place] = reply
                except (JudgeError, BudgetError) as error:
                    found[place] = error
                done += 1
                if on_progress:
                    on_progress(done, len(requests))

        if done < len(requests):
            async with _Endpoint(self.config, self._key) as endpoint:
                # As many workers again as slots: while one backs off, another one uses its slot.
                await asyncio.gather(*(work(endpoint) for _ in range(2 * self.config.concurrency)))
        return [one for one in found if one is not None]

    async def _complete(self, endpoint: _Endpoint, request: Request) -> Reply:
        """One call with its attempts.

        Raises:
            JudgeError: refused for good, or all attempts failed. BudgetError: it may cost more than is left.
        """
        import tenacity

        estimated = estimate_tokens(request, self.price, self.config.max_output_tokens)
        most = estimated.cost_usd(self.price) if self.audio_priced(request) else None
        if most is None and self.config.budget_usd is not None:
            raise JudgeError(f"llm.budget_usd: no price of audio is known for {self.config.model}; add it to a table")
        most_usd = most or 0.0
        await self._reserve(most_usd)
        cost_usd, started = 0.0, time.perf_counter()
        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.config.max_attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, _CallError) and error.retried),
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    reply = await self._attempt(endpoint, request)
                    number = attempt.retry_state.attempt_number
        except _CallError as error:
            raise JudgeError(str(error)) from None
        else:
            tokens = reply.tokens if reply.tokens != Tokens() else estimated
            paid_usd = tokens.cost_usd(self.price)
            cost_usd = most_usd if paid_usd is None else paid_usd
        finally:
            self.wallet.settle(most_usd, cost_usd)
        latency_s = time.perf_counter() - started
        known_usd = reply.tokens.cost_usd(self.price) if reply.tokens != Tokens() else None
        return Reply(
            reply.text, reply.finish_reason, reply.refusal, reply.model, reply.tokens, known_usd, latency_s, number, False
        )

    def audio_priced(self, request: Request) -> bool:
        """Whether the price of this request's audio, if it has any, is known."""
        hears = any(isinstance(part, Audio) for message in request.messages for part in message.parts)
        return not hears or (self.price is not None and None not in (self.price.audio_in, self.price.audio_tokens_per_s))

    async def _reserve(self, most_usd: float) -> None:
        """Set the most a call may cost aside; while calls under way may give some back, wait for them.

        Raises:
            BudgetError: nothing is under way and there is not enough left.
        """
        while True:
            try:
                return self.wallet.reserve(most_usd)
            except BudgetError:
                if not self.wallet.busy:
                    raise
            await asyncio.sleep(BUDGET_LOOK_S)

    def _wait(self, state: Any) -> float:
        error = state.outcome.exception()
        asked_s = error.retry_after_s if isinstance(error, _CallError) else None
        return wait_s(state.attempt_number, asked_s, self.config.backoff_s, random.random())

    async def _attempt(self, endpoint: _Endpoint, request: Request) -> Reply:
        self.calls += 1
        structured = self._structured and request.schema is not None
        try:
            return await endpoint.call(request, structured)
        except _CallError as error:
            if not (structured and error.refuses_schema):
                raise
        # Some gateways have no structured output; what they write is parsed as strictly.
        self._structured = False
        self.calls += 1
        return await endpoint.call(request, False)


class _CallError(Exception):
    """One failed attempt: whether another may help, and what the server asked for."""

    def __init__(self, message: str, retried: bool, retry_after_s: float | None = None, refuses_schema: bool = False) -> None:
        super().__init__(message)
        self.retried = retried
        self.retry_after_s = retry_after_s
        self.refuses_schema = refuses_schema


class _Endpoint:
    """The `openai` library's client with its own retries off, a slot for each call under way, and the rate limit."""

    def __init__(self, config: LLMConfig, key: str) -> None:
        from aiolimiter import AsyncLimiter
        from openai import AsyncOpenAI

        self.config = config
        self._key = key
        self._client = AsyncOpenAI(api_key=key or NO_KEY, base_url=config.base_url, max_retries=0, timeout=config.timeout_s)
        self._slots = asyncio.Semaphore(config.concurrency)
        rate = config.requests_per_minute
        # One call every 60 / rate seconds, rather than a minute's worth at once.
        self._rate = AsyncLimiter(1, 60.0 / rate) if rate else None

    async def __aenter__(self) -> _Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def call(self, request: Request, structured: bool) -> Reply:
        """One attempt.

        Raises:
            _CallError: anything went wrong.
        """
        import openai

        asked: dict[str, Any] = {"max_completion_tokens": self.config.max_output_tokens}
        asked |= {} if self.config.temperature is None else {"temperature": self.config.temperature}
        asked |= {} if self.config.seed is None else {"seed": self.config.seed}
        if structured:
            schema = {"name": "verdict", "strict": True, "schema": request.schema}
            asked["response_format"] = {"type": "json_schema", "json_schema": schema}
        messages: Any = [_as_json(message) for message in request.messages]
        async with self._slots:
            if self._rate:
                await self._rate.acquire()
            try:
                found = await self._client.chat.completions.create(model=self.config.model, messages=messages, **asked)
                return self._checked(_read_reply(found))
            except openai.APIStatusError as error:
                status, said = error.status_code, self._without_key(one_line(error))
                asked_s = retry_after_s(error.response.headers, time.time())
                raise _CallError(
                    f"{self.config.model} at {self.config.base_url}: HTTP {status}: {said[:500]}",
                    status in RETRIED_STATUS and (asked_s or 0.0) <= LONGEST_RETRY_AFTER_S,
                    asked_s,
                    # llama.cpp's server says so with a 500.
                    status in (400, 422, 500) and any(word in said for word in ("response_format", "json_schema", "tructured")),
                ) from error
            except (openai.APIError, ValueError, TypeError, AttributeError, IndexError) as error:
                # No answer in time, a cut connection, or a body that is no completion.
                kind = type(error).__name__
                said = self._without_key(one_line(error))
                raise _CallError(f"{self.config.model} at {self.config.base_url}: {kind}: {said}", True) from error

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text

    def _checked(self, reply: Reply) -> Reply:
        """The reply without the key, should a gateway echo it; a hiccup that says nothing at all is tried again.

        Raises:
            ValueError: no text, no refusal, and no reason for it.
        """
        if not reply.text.strip() and not reply.refusal and reply.finish_reason in ("", "stop"):
            raise ValueError("an empty reply")
        refusal = None if reply.refusal is None else self._without_key(reply.refusal)
        return replace(reply, text=self._without_key(reply.text), refusal=refusal)


def _as_json(message: Message) -> dict[str, Any]:
    if all(isinstance(part, str) for part in message.parts):
        return {"role": message.role, "content": "\n".join(str(part) for part in message.parts)}
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Audio):
            data = base64.b64encode(part.wav).decode()
            content.append({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
        else:
            content.append({"type": "text", "text": part})
    return {"role": message.role, "content": content}


def _read_reply(found: Any) -> Reply:
    choice, usage = found.choices[0], found.usage
    tokens = Tokens()
    if usage is not None:
        details = getattr(usage, "prompt_tokens_details", None)
        audio = int(getattr(details, "audio_tokens", None) or 0)
        tokens = Tokens(int(usage.prompt_tokens) - audio, audio, int(usage.completion_tokens))
    text, refusal = choice.message.content or "", getattr(choice.message, "refusal", None)
    if not isinstance(text, str) or not isinstance(refusal, str | None):
        raise TypeError("the reply's content is no text")
    # Half an emoji would make every file it is written to unreadable.
    text = text.encode("utf-8", "replace").decode()
    return Reply(text, choice.finish_reason or "", refusal, found.model or "", tokens, None, 0.0, 1, False)


def _from_cache(stored: dict[str, Any]) -> Reply:
    values = {**stored, "tokens": Tokens(**stored["tokens"]), "cached": True}
    return Reply(**values)
