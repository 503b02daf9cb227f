"""Calls to an OpenAI-compatible endpoint of any kind: attempts, concurrency, rate, prices and a budget.

A key is read from the environment, and never reaches a cache, a log or an error message.
"""

from __future__ import annotations

import asyncio
import email.utils
import errno
import functools
import importlib.util
import logging
import math
import os
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlparse

from pydantic import BaseModel, ConfigDict

from paras2s.clients.body import LargeBodyError, read_body
from paras2s.configs.schema.endpoints import EndpointConfig, LimitField
from paras2s.errors import BudgetError, ConfigError, EndpointError, JudgeError, ParaS2SError, one_line
from paras2s.utils.addresses import is_loopback, is_private
from paras2s.utils.io import read_yaml, reading
from paras2s.utils.text import well_formed

log = logging.getLogger(__name__)
LONGEST_WAIT_S = 60.0
# A server that asks for more than this is out of service, and a command that slept so long would seem hung.
LONGEST_RETRY_AFTER_S = 600.0
BUDGET_POLL_S = 0.02
# No key, no credit, no right, no such model: every other call will fail as well.
ENDPOINT_STATUS = frozenset({401, 402, 403, 404, 405})
# Calls that start together end together, turn after turn, and then wait for each other on one core.
FIRST_CALLS_APART_S = 0.002
UNREACHABLE, TIMEOUT = "no connection", "timeout"
# Failed calls in a row, all alike, after which a command stops; a refusal of one request may be that request's own fault.
EQUAL_TIMEOUTS, EQUAL_FAILURES, EQUAL_REFUSALS = 2, 5, 20
# The same request takes as long again: after the second timeout a call is given up.
MOST_TIMEOUTS = 2
# A retry of the same kind is printed at most this often.
RETRY_LINE_EVERY_S = 10.0
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
# Words in an error message of an endpoint without structured output, and of a field that it does not know.
STRUCTURED_WORDS = ("response_format", "json_schema", "tructured")
UNKNOWN_WORDS = ("supported", "nknown", "nrecognized", "permitted", "xtra")
LIMIT_FIELDS: tuple[LimitField, ...] = ("max_completion_tokens", "max_tokens")
NO_KEY = "none"
PACKAGES = ("openai", "httpx2", "aiohttp", "tenacity", "aiolimiter")
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


# A server of this machine, where no price says otherwise.
FREE = Price(text_in=0, text_out=0, audio_in=0, audio_tokens_per_s=0, audio_out=0, audio_out_tokens_per_s=0)


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
    with reading(source, "not a price table", kind=ConfigError):
        return Prices.model_validate(read_yaml(source))


def wait_s(attempt: int, retry_after_s: float | None, backoff_s: float, draw: float) -> float:
    """Return the wait before the next attempt: a share `draw` (0 to 1) of the doubled back-off, at least `retry_after_s`."""
    jittered = draw * min(LONGEST_WAIT_S, backoff_s * 2.0 ** (attempt - 1))
    return max(jittered, retry_after_s or 0.0)


def retry_after_s(headers: Any, now_s: float) -> float | None:
    """Return the seconds of a Retry-After header (a number or a date); None without a readable one.

    A date is the server's, and is compared with the time that the server says it is: this machine's clock may be wrong.
    """
    value = (headers or {}).get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        if (sent := headers.get("date")) is not None:
            now_s = email.utils.parsedate_to_datetime(sent).timestamp()
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now_s)
    except (TypeError, ValueError, OverflowError, IndexError):
        # A date that is none, or beyond the calendar.
        return None


# What the calls of this process cost, as `Budget` counts it: a command that fails says it as well.
SPENT = {"spent_usd": 0.0, "unreported_usd": 0.0}


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
            SPENT["unreported_usd"] += reserved_usd
        else:
            self.spent_usd += cost_usd
            SPENT["spent_usd"] += cost_usd


class PaidError(ValueError):
    """A reply that cannot be used but was paid for; `cost_usd` is None if it reports no usage."""

    def __init__(self, message: str, cost_usd: float | None) -> None:
        super().__init__(message)
        self.cost_usd = cost_usd


class BodyError(ValueError):
    """An error in the body of an HTTP 200; `status` is the HTTP status that the body names, if any."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class CallError(Exception):
    """One failed attempt; `retried`: another one may help, after `retry_after_s`.

    `cost_usd` is its cost, None if unknown. `kind` is equal for attempts that failed alike. `refused_field` is the field of
    the reply's limit that the endpoint does not know.
    """

    def __init__(
        self,
        message: str,
        retried: bool,
        retry_after_s: float | None = None,
        refuses_schema: bool = False,
        cost_usd: float | None = 0.0,
        kind: str = "",
        refused_field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.refused_field = refused_field
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


def run_calls(calls: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine to its end: in a thread of its own where this one has an event loop, as a notebook's cell does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(calls)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, calls).result()


@functools.lru_cache(maxsize=2)
def _tls(encrypted: bool) -> ssl.SSLContext:
    """Return the HTTP library's TLS settings, made once: reading every trusted certificate takes 50 ms.

    Plain HTTP needs no certificates; a redirection to HTTPS trusts no certificate.

    Raises:
        ConfigError: the environment names certificates that cannot be read.
    """
    import httpx2

    if not encrypted:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return httpx2.create_ssl_context()
    except (OSError, ssl.SSLError) as error:
        named = [name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ]
        raise ConfigError(f"{' and '.join(named) or 'certificates'}: cannot be read ({one_line(error)})") from error


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
        most = EQUAL_TIMEOUTS if error.kind == TIMEOUT else EQUAL_FAILURES if everywhere else EQUAL_REFUSALS
        if not self._stopped and self._count >= most:
            self._stopped = f"{self._count} calls in a row failed alike, so that no more are made: {error}"

    def stop(self, why: str) -> None:
        """Make no more calls."""
        self._stopped = self._stopped or why

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
            http_client=DefaultAioHttpClient(
                verify=_tls(config.base_url.startswith("https:")),
                limits=httpx2.Limits(max_connections=config.concurrency),
                # No proxy reaches a server of this machine.
                trust_env=not is_loopback(config.base_url),
                event_hooks={"response": [read_body]},
            ),
        )
        self._slots, self._one_slot = asyncio.Semaphore(config.concurrency), asyncio.Semaphore(1)
        self._where = f"{config.model} at {config.base_url}"
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
                after_s = retry_after_s(error.response.headers, time.time())
                raise self._refused(error.status_code, one_line(error), after_s) from error
            except BodyError as error:
                raise self._refused(error.status, f"an error in place of a reply: {one_line(error)}", None) from error
            except (TimeoutError, openai.APITimeoutError) as error:
                if (problem := self._no_connection(error)) is not None:
                    raise problem from error
                if not isinstance(error, TimeoutError) and not _took_too_long(error):
                    raise CallError(f"{self._where}: the connection broke off", True, cost_usd=None, kind="broken") from error
                if is_private(self.config.base_url):
                    # Calls of a small server wait for each other.
                    self._slots = self._one_slot
                raise CallError(
                    f"{self._where}: no reply within {self.config.timeout_s:g} s; raise timeout_s, or lower concurrency "
                    f"({self.config.concurrency}) or max_output_tokens",
                    True,
                    cost_usd=None,
                    kind=TIMEOUT,
                ) from error
            except ParaS2SError:
                raise
            except Exception as error:
                # A cut connection, a broken chunk, a body of the wrong form or nested too deeply: the other calls go on.
                if (problem := self._no_connection(error)) is not None:
                    raise problem from error
                message, kind = self.without_key(one_line(error)), type(error).__name__
                cost_usd = error.cost_usd if isinstance(error, PaidError) else None
                broken = "the connection broke off: " if isinstance(error, openai.APIConnectionError) else ""
                if isinstance(too_large := error.__cause__, LargeBodyError):
                    kind, broken, message = type(too_large).__name__, "", one_line(too_large)
                raise CallError(f"{self._where}: {broken}{kind}: {message}", True, cost_usd=cost_usd, kind=kind) from error

    def _refused(self, status: int | None, message: str, after_s: float | None) -> CallError:
        """Return the error of an HTTP status, or of a body that is an error."""
        message = self.without_key(message)[:500]
        known = "" if status is None else f"HTTP {status}: "
        # And not: too large for the context.
        unknown = status in (400, 422) and any(word in message for word in UNKNOWN_WORDS)
        return CallError(
            f"{self._where}: {known}{message}",
            (status is None or status in RETRIED_STATUS) and (after_s or 0.0) <= LONGEST_RETRY_AFTER_S,
            after_s,
            # llama.cpp's server says so with a 500.
            status in (400, 422, 500) and any(word in message for word in STRUCTURED_WORDS),
            kind=f"HTTP {status}" if status in ENDPOINT_STATUS else f"{known}{message}",
            refused_field=next((name for name in LIMIT_FIELDS if name in message), None) if unknown else None,
        )

    def _no_connection(self, error: Exception) -> CallError | None:
        """Return why there was no connection, which costs nothing; None if there was one."""
        import aiohttp

        # One transport's error within the other's, which calls a connection that breaks later a timeout of connecting as well.
        reason, retried = error.__cause__ and error.__cause__.__cause__, True
        if not isinstance(reason, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return None
        host = urlparse(self.config.base_url).netloc
        why = f"no connection to {host}: {one_line(reason)}"
        if isinstance(reason, aiohttp.ClientSSLError):
            why, retried = (
                f"no secure connection to {host} (TLS): {one_line(reason)}; a server of your own may speak http",
                False,
            )
        elif isinstance(reason, aiohttp.ClientConnectorDNSError):
            why = f"no host {urlparse(self.config.base_url).hostname} is known (DNS); check base_url"
            retried = getattr(reason, "errno", None) == socket.EAI_AGAIN
        elif isinstance(reason, aiohttp.ConnectionTimeoutError):
            why = f"no connection to {host} within {self.config.timeout_s:g} s"
        elif isinstance(reason, aiohttp.ClientProxyConnectionError):
            why = f"no connection to the proxy of the environment (HTTP_PROXY, HTTPS_PROXY): {one_line(reason)}"
        elif reason.os_error.errno == errno.ECONNREFUSED:
            why = f"connection refused: nothing listens at {host}; start the server, or change base_url"
            retried = not is_loopback(self.config.base_url)
        return CallError(f"{self._where}: {self.without_key(why)}", retried, kind=UNREACHABLE)

    def without_key(self, text: str) -> str:
        """Return a server's text with the key replaced by ***, should a gateway echo it, and fit to be written."""
        return str(well_formed(text.replace(self._key, "***") if self._key else text))


def _took_too_long(error: Exception) -> bool:
    import aiohttp

    return isinstance(error.__cause__ and error.__cause__.__cause__, aiohttp.ServerTimeoutError | TimeoutError)


def missing_for(config: EndpointConfig, section: str = "llm") -> list[str]:
    """Return what a call to an endpoint still needs, a phrase each: packages, and a key unless its address is private."""
    packages = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    needed = [f"{section}: an endpoint needs {', '.join(packages)}; run: pip install 'paras2s[judge]'"] if packages else []
    variable, url = config.api_key_env, config.base_url
    if variable is not None and not key_of_endpoint(config, section) and not is_private(url):
        needed.append(
            f"{section}.api_key_env: set {variable} in the environment; {url} needs a key (if not: api_key_env: null)"
        )
    return needed


def key_of_endpoint(config: EndpointConfig, section: str) -> str:
    """Return the key without the blanks and the line break that a file or a shell may add; empty if there is none.

    Raises:
        ConfigError: it cannot be sent.
    """
    key = os.environ.get(config.api_key_env, "").strip() if config.api_key_env else ""
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{section}.api_key_env: {config.api_key_env} holds a line break or a sign beyond ASCII")
    return key


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
        if self.price is None and config.prices is None and is_loopback(config.base_url):
            self.price = FREE
        self._key = key_of_endpoint(config, section)
        self._printed: dict[str, float] = {}
        if config.budget_usd is not None and self.price is None:
            raise ConfigError(
                f"{section}.budget_usd: no price is known for {config.model}; add it to a table and give it as {section}.prices"
            )

    def stop(self, why: str) -> None:
        """Make no more calls: those that are left end with an EndpointError that says why."""
        self._failures.stop(why)

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
        started, timeouts = time.perf_counter(), 0

        def may_help(error: BaseException) -> bool:
            nonlocal timeouts
            timeouts += isinstance(error, CallError) and error.kind == TIMEOUT
            return isinstance(error, CallError) and error.retried and timeouts < MOST_TIMEOUTS

        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.config.max_attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception(may_help),
            before_sleep=lambda state: self._print_retry(state, time.perf_counter() - started),
            reraise=True,
        )
        number = 0
        try:
            async for attempt in attempts:
                with attempt:
                    number = attempt.retry_state.attempt_number
                    value = await self._attempt(attempt_once, most_usd or 0.0, cost_of)
        except CallError as error:
            self._failures.add(error)
            after = f" ({number} attempts in {time.perf_counter() - started:.0f} s)" if number > 1 else ""
            raise JudgeError(f"{error}{after}") from None
        self._failures.clear()
        return CallResult(value, number, time.perf_counter() - started)

    def _print_retry(self, state: Any, took_s: float) -> None:
        """Print why an attempt failed and when the next one is, where nothing of the kind was printed just before."""
        error, now_s = state.outcome.exception(), time.monotonic()
        if now_s - self._printed.get(error.kind, -RETRY_LINE_EVERY_S) >= RETRY_LINE_EVERY_S:
            self._printed[error.kind] = now_s
            log.warning(
                "%s: attempt %d of %d failed after %.0f s, the next in %.1f s: %s",
                self.section, state.attempt_number, self.config.max_attempts, took_s, state.next_action.sleep, error,
            )  # fmt: skip

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
