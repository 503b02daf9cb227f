"""Calls to an OpenAI-compatible endpoint of any kind: attempts, concurrency, rate, prices and a budget.

A key is read from the environment, and never reaches a cache, a log or an error message.
"""

from __future__ import annotations

import asyncio
import email.utils
import functools
import importlib.util
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlparse

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from paras2s.configs.schema.endpoints import EndpointConfig
from paras2s.errors import BudgetError, ConfigError, EndpointError, JudgeError, one_line

if TYPE_CHECKING:
    import ssl


LONGEST_WAIT_S = 60.0
# A server that asks for more than this is out of service, and a command that slept so long would seem hung.
LONGEST_RETRY_AFTER_S = 600.0
BUDGET_POLL_S = 0.02
# No key, no credit, no right, no such model: every other call will fail as well.
ENDPOINT_STATUS = frozenset({401, 402, 403, 404, 405})
# Calls that start together end together, turn after turn, and then wait for each other on one core.
FIRST_CALLS_APART_S = 0.002
UNREACHABLE = "no connection"
# Failed calls in a row, all alike, after which a command stops; a refusal of one request may be that request's own fault.
EQUAL_FAILURES, EQUAL_REFUSALS = 5, 20
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
# Words in an error message of an endpoint without structured output.
STRUCTURED_WORDS = ("response_format", "json_schema", "tructured")
NO_KEY = "none"
PACKAGES = ("openai", "httpx2", "aiohttp", "tenacity", "aiolimiter")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Value = TypeVar("Value")


class Price(BaseModel):
    """Prices of a model in USD per million tokens; audio prices are None for a model without audio input or output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text_in: float
    text_out: float
    audio_in: float | None = None
    audio_tokens_per_s: float | None = None
    audio_out: float | None = None
    audio_out_tokens_per_s: float | None = None


class Prices(BaseModel):
    """A dated price table by model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    as_of: Any
    models: dict[str, Price]


def load_prices(path: Path | None = None) -> Prices:
    """Load the shipped price table, or a user's.

    Raises:
        ConfigError: missing, or not a price table.
    """
    source = path or resources.files("paras2s.clients").joinpath("prices.yaml")
    try:
        return Prices.model_validate(yaml.safe_load(source.read_text()))
    except (OSError, UnicodeDecodeError, ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: not a price table ({one_line(error)})") from error


def wait_s(attempt: int, retry_after_s: float | None, backoff_s: float, draw: float) -> float:
    """Return the wait before the next attempt: a share `draw` (0 to 1) of the doubled back-off, at least `retry_after_s`."""
    jittered = draw * min(LONGEST_WAIT_S, backoff_s * 2.0 ** (attempt - 1))
    return max(jittered, retry_after_s or 0.0)


def retry_after_s(headers: Any, now_s: float) -> float | None:
    """Return the seconds of a Retry-After header (a number or a date); None without a readable one."""
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


class Budget:
    """The cost of finished attempts and the estimated maximum of pending ones: together never more than `limit_usd`.

    `spent_usd` is what replies said that they cost, `unreported_usd` the most that attempts may have cost which did not say:
    a broken connection, or a reply without usage.
    """

    def __init__(self, limit_usd: float | None) -> None:
        self.limit_usd = limit_usd
        self.spent_usd = 0.0
        self.unreported_usd = 0.0
        self._reserved_usd = 0.0

    def reserve(self, most_usd: float) -> None:
        """Reserve the most a call may cost.

        Raises:
            BudgetError: not enough is left.
        """
        held_usd = self.spent_usd + self.unreported_usd + self._reserved_usd
        if self.limit_usd is not None and held_usd + most_usd > self.limit_usd:
            unreported = f"{self.unreported_usd:.4f} perhaps paid without a word, " if self.unreported_usd else ""
            raise BudgetError(
                f"the budget of {self.limit_usd:.2f} USD is spent ({self.spent_usd:.4f} paid, {unreported}"
                f"{self._reserved_usd:.4f} in pending calls, the next may cost {most_usd:.4f}); run again with a larger one to "
                "continue from here"
            )
        self._reserved_usd += most_usd

    @property
    def has_pending(self) -> bool:
        """Whether pending calls may still release a part of their reservations."""
        return self._reserved_usd > 1e-12

    def settle(self, reserved_usd: float, cost_usd: float | None) -> None:
        """Release a reservation and add the actual cost; an unreported cost counts as the reservation."""
        self._reserved_usd -= reserved_usd
        if cost_usd is None:
            self.unreported_usd += reserved_usd
        else:
            self.spent_usd += cost_usd


class PaidError(ValueError):
    """A reply that cannot be used but was paid for; `cost_usd` is None if it reports no usage."""

    def __init__(self, message: str, cost_usd: float | None) -> None:
        super().__init__(message)
        self.cost_usd = cost_usd


class CallError(Exception):
    """One failed attempt; `retried`: another one may help, after `retry_after_s`.

    `cost_usd` is its cost, None if unknown. `kind` is equal for attempts that failed alike.
    """

    def __init__(
        self,
        message: str,
        retried: bool,
        retry_after_s: float | None = None,
        refuses_schema: bool = False,
        cost_usd: float | None = 0.0,
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.retried = retried
        self.retry_after_s = retry_after_s
        self.refuses_schema = refuses_schema
        self.cost_usd = cost_usd
        self.kind = kind


@dataclass(frozen=True)
class CallResult(Generic[Value]):
    """The result of a call, the number of its attempts, and the time of all of them together."""

    value: Value
    attempts: int
    latency_s: float


@functools.lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Return the HTTP library's TLS settings, made once: reading every trusted certificate takes 50 ms."""
    import httpx2

    return httpx2.create_ssl_context()


class Failures:
    """Count of calls in a row that failed alike; from a limit on the endpoint is not asked again."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all failures after a call that succeeded."""
        self._kind, self._count, self._stopped = "", 0, ""

    def add(self, error: CallError) -> None:
        """Count a call that failed for good."""
        self._count = self._count + 1 if error.kind == self._kind else 1
        self._kind = error.kind
        everywhere = error.kind == UNREACHABLE or error.kind.removeprefix("HTTP ") in map(str, ENDPOINT_STATUS)
        if not self._stopped and self._count >= (EQUAL_FAILURES if everywhere else EQUAL_REFUSALS):
            self._stopped = f"{self._count} calls in a row failed alike, so that no more are made: {error}"

    def check(self) -> None:
        """Refuse another attempt after too many.

        Raises:
            EndpointError: says what the calls failed of.
        """
        if self._stopped:
            raise EndpointError(self._stopped)


class Session:
    """The `openai` client with its own retries off, a limit of concurrent calls, and a rate limit."""

    def __init__(self, config: EndpointConfig, key: str, failures: Failures) -> None:
        import httpx2
        from aiolimiter import AsyncLimiter
        from openai import AsyncOpenAI, DefaultAioHttpClient

        self.config = config
        self._key = key
        self._failures = failures
        self.client = AsyncOpenAI(
            api_key=key or NO_KEY,
            base_url=config.base_url,
            max_retries=0,
            timeout=config.timeout_s,
            # httpx2's own transport does more of a call's work in Python.
            http_client=DefaultAioHttpClient(verify=_tls(), limits=httpx2.Limits(max_connections=config.concurrency)),
        )
        self._slots = asyncio.Semaphore(config.concurrency)
        rate = config.requests_per_minute
        # One call every 60 / rate seconds, not all calls of a minute at once.
        self._rate = AsyncLimiter(1, 60.0 / rate) if rate else None

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def attempt(self, call: Callable[[], Awaitable[Value]]) -> Value:
        """Make one attempt, within the limits of concurrency and rate.

        Raises:
            CallError: anything went wrong. EndpointError: too much went wrong before.
        """
        import openai

        where = f"{self.config.model} at {self.config.base_url}"
        async with self._slots:
            if self._rate:
                await self._rate.acquire()
            # Others may have failed while this one waited for its turn.
            self._failures.check()
            try:
                # The client's own timeout is of every read: a server that drips would be waited for without end.
                async with asyncio.timeout(self.config.timeout_s):
                    return await call()
            except openai.APIStatusError as error:
                status, message = error.status_code, self.without_key(one_line(error))
                after_s = retry_after_s(error.response.headers, time.time())
                raise CallError(
                    f"{where}: HTTP {status}: {message[:500]}",
                    status in RETRIED_STATUS and (after_s or 0.0) <= LONGEST_RETRY_AFTER_S,
                    after_s,
                    # llama.cpp's server says so with a 500.
                    status in (400, 422, 500) and any(word in message for word in STRUCTURED_WORDS),
                    kind=f"HTTP {status}" if status in ENDPOINT_STATUS else f"HTTP {status}: {message}",
                ) from error
            except TimeoutError as error:
                message = f"{where}: no reply within {self.config.timeout_s:g} s"
                raise CallError(message, True, cost_usd=None, kind="timeout") from error
            except (openai.APIError, ValueError, TypeError, AttributeError, LookupError) as error:
                # A timeout, a cut connection, or a body of the wrong form.
                message, kind = self.without_key(one_line(error)), type(error).__name__
                cost_usd = error.cost_usd if isinstance(error, PaidError) else None
                if isinstance(error, openai.APIConnectionError) and _never_connected(error):
                    cost_usd, kind = 0.0, UNREACHABLE
                raise CallError(f"{where}: {type(error).__name__}: {message}", True, cost_usd=cost_usd, kind=kind) from error

    def without_key(self, text: str) -> str:
        """Return the text with the key replaced by ***, should a gateway echo it."""
        return text.replace(self._key, "***") if self._key else text


def _never_connected(error: Exception) -> bool:
    import aiohttp

    # One transport's error within the other's, which calls a connection that breaks later a timeout of connecting as well.
    reason = error.__cause__ and error.__cause__.__cause__
    return isinstance(reason, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


def missing_for(config: EndpointConfig, section: str = "llm") -> list[str]:
    """Return what a call to an endpoint still needs, a phrase each: packages, and a key unless it is on this machine."""
    packages = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    needed = [f"{section}: an endpoint needs {', '.join(packages)}; run: pip install 'paras2s[judge]'"] if packages else []
    variable, url = config.api_key_env, config.base_url
    if not os.environ.get(variable) and urlparse(url).hostname not in LOOPBACK:
        needed.append(f"{section}.api_key_env: set {variable} in the environment; {url} needs a key")
    return needed


class EndpointClient:
    """A client of one endpoint. One instance a command: budget and rate are the command's."""

    def __init__(self, config: EndpointConfig, section: str = "llm", calls: bool = True) -> None:
        """Read the key and the prices; an instance without `calls` is for estimates, and needs neither packages nor a key.

        Raises:
            ConfigError: a package, the key or a price is missing.
        """
        if calls and (missing := missing_for(config, section)):
            raise ConfigError("; ".join(missing))
        self.config, self.section = config, section
        self.budget = Budget(config.budget_usd)
        self._failures = Failures()
        self.price = load_prices(config.prices).models.get(config.model)
        self._key = os.environ.get(config.api_key_env, "")
        if config.budget_usd is not None and self.price is None:
            raise ConfigError(
                f"{section}.budget_usd: no price is known for {config.model}; add it to a table and give it as {section}.prices"
            )

    async def run_all(self, indices: Sequence[int], work: Callable[[Session, int], Awaitable[None]]) -> None:
        """Run `work` on every index, as many at once as `concurrency` allows."""
        pending = iter(indices)

        async def worker(session: Session, number: int) -> None:
            await asyncio.sleep(number * FIRST_CALLS_APART_S)
            for index in pending:
                await work(session, index)

        if indices:
            if missing := missing_for(self.config, self.section):
                raise ConfigError("; ".join(missing))
            async with Session(self.config, self._key, self._failures) as session:
                # Twice as many workers as slots: while one backs off, another one uses its slot.
                workers = min(2 * self.config.concurrency, len(indices))
                await asyncio.gather(*(worker(session, number) for number in range(workers)))

    async def call(
        self,
        attempt_once: Callable[[], Awaitable[Value]],
        most_usd: float | None,
        cost_of: Callable[[Value], float | None],
    ) -> CallResult[Value]:
        """Make one call with its attempts. `most_usd` is the most it may cost (None: unknown), `cost_of` its actual cost.

        Raises:
            JudgeError: refused for good, or all attempts failed. BudgetError: it may cost more than is left, or (an
                EndpointError) too many calls before it failed alike.
        """
        import tenacity

        if most_usd is None and self.config.budget_usd is not None:
            raise JudgeError(f"{self.section}.budget_usd: {self.config.model} has no price for its audio; add it to a table")
        started = time.perf_counter()
        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.config.max_attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, CallError) and error.retried),
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    value = await self._attempt(attempt_once, most_usd or 0.0, cost_of)
                    number = attempt.retry_state.attempt_number
        except CallError as error:
            self._failures.add(error)
            raise JudgeError(str(error)) from None
        self._failures.clear()
        return CallResult(value, number, time.perf_counter() - started)

    async def _attempt(
        self, attempt_once: Callable[[], Awaitable[Value]], most_usd: float, cost_of: Callable[[Value], float | None]
    ) -> Value:
        """Make one attempt and book it: a failed one may have been paid for, and so the next needs room in the budget.

        Raises:
            CallError: it failed. BudgetError: it may cost more than is left, or the endpoint has failed too often.
        """
        await self._reserve(most_usd)
        cost_usd: float | None = None
        try:
            value = await attempt_once()
            cost_usd = cost_of(value)
        except CallError as error:
            cost_usd = error.cost_usd
            raise
        except EndpointError:
            cost_usd = 0.0
            raise
        finally:
            self.budget.settle(most_usd, cost_usd)
        return value

    async def _reserve(self, most_usd: float) -> None:
        """Reserve the most a call may cost; waits while pending calls may still release some of the budget.

        Raises:
            BudgetError: nothing is pending and not enough is left.
        """
        while True:
            try:
                return self.budget.reserve(most_usd)
            except BudgetError:
                if not self.budget.has_pending:
                    raise
            await asyncio.sleep(BUDGET_POLL_S)

    def _wait(self, state: Any) -> float:
        error = state.outcome.exception()
        after_s = error.retry_after_s if isinstance(error, CallError) else None
        return wait_s(state.attempt_number, after_s, self.config.backoff_s, random.random())
