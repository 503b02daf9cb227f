"""Calls to an OpenAI-compatible endpoint, of whatever kind: attempts, slots, rate, prices, and a budget.

A key is read from the environment, and never reaches a cache, a log or an error message.
"""

from __future__ import annotations

import asyncio
import email.utils
import importlib.util
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlparse

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from paras2s.configs.schema.run import EndpointConfig
from paras2s.errors import BudgetError, ConfigError, JudgeError, one_line

LONGEST_WAIT_S = 60.0
# A server that asks for more than this is out of service, and a command that slept so long would seem hung.
LONGEST_RETRY_AFTER_S = 600.0
BUDGET_LOOK_S = 0.02
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
NO_KEY = "none"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Answer = TypeVar("Answer")


class Price(BaseModel):
    """Of one model, in USD per million tokens; `audio_in` is None where it hears nothing, `audio_out` where it cannot speak."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text_in: float
    text_out: float
    audio_in: float | None = None
    audio_tokens_per_s: float | None = None
    audio_out: float | None = None
    audio_out_tokens_per_s: float | None = None


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
    source = path or resources.files("paras2s.clients").joinpath("prices.yaml")
    try:
        return Prices.model_validate(yaml.safe_load(source.read_text()))
    except (OSError, UnicodeDecodeError, ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: not a price table ({one_line(error)})") from error


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


class CallError(Exception):
    """One failed attempt: whether another may help, and what the server asked for."""

    def __init__(self, message: str, retried: bool, retry_after_s: float | None = None, refuses_schema: bool = False) -> None:
        super().__init__(message)
        self.retried = retried
        self.retry_after_s = retry_after_s
        self.refuses_schema = refuses_schema


@dataclass(frozen=True)
class Answered(Generic[Answer]):
    """What a call gave in the end, how many attempts it took, and how long all of them together."""

    value: Answer
    attempts: int
    latency_s: float


class Session:
    """The `openai` library's client with its own retries off, a slot for each call under way, and the rate limit."""

    def __init__(self, config: EndpointConfig, key: str) -> None:
        from aiolimiter import AsyncLimiter
        from openai import AsyncOpenAI

        self.config = config
        self._key = key
        self.client = AsyncOpenAI(api_key=key or NO_KEY, base_url=config.base_url, max_retries=0, timeout=config.timeout_s)
        self._slots = asyncio.Semaphore(config.concurrency)
        rate = config.requests_per_minute
        # One call every 60 / rate seconds, rather than a minute's worth at once.
        self._rate = AsyncLimiter(1, 60.0 / rate) if rate else None

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def attempt(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """One attempt, in a slot of its own.

        Raises:
            CallError: anything went wrong.
        """
        import openai

        where = f"{self.config.model} at {self.config.base_url}"
        async with self._slots:
            if self._rate:
                await self._rate.acquire()
            try:
                return await call()
            except openai.APIStatusError as error:
                status, said = error.status_code, self.without_key(one_line(error))
                asked_s = retry_after_s(error.response.headers, time.time())
                raise CallError(
                    f"{where}: HTTP {status}: {said[:500]}",
                    status in RETRIED_STATUS and (asked_s or 0.0) <= LONGEST_RETRY_AFTER_S,
                    asked_s,
                    # llama.cpp's server says so with a 500.
                    status in (400, 422, 500) and any(word in said for word in ("response_format", "json_schema", "tructured")),
                ) from error
            except (openai.APIError, ValueError, TypeError, AttributeError, IndexError) as error:
                # No answer in time, a cut connection, or a body that is not what was asked for.
                raise CallError(f"{where}: {type(error).__name__}: {self.without_key(one_line(error))}", True) from error

    def without_key(self, text: str) -> str:
        """The text with the key blotted out, should a gateway echo it."""
        return text.replace(self._key, "***") if self._key else text


class Caller:
    """Calls one endpoint. One instance a command: its budget and its rate are the command's."""

    def __init__(self, config: EndpointConfig, section: str = "llm") -> None:
        missing = [name for name in ("openai", "tenacity", "aiolimiter") if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(f"{section}: an endpoint needs {', '.join(missing)}; run: pip install 'paras2s[judge]'")
        self.config, self.section = config, section
        self.wallet = Wallet(config.budget_usd)
        self.price = load_prices(config.prices).models.get(config.model)
        self._key = os.environ.get(config.api_key_env, "")
        if not self._key and urlparse(config.base_url).hostname not in LOOPBACK:
            raise ConfigError(
                f"{section}.api_key_env: set {config.api_key_env} in the environment; {config.base_url} needs a key"
            )
        if config.budget_usd is not None and self.price is None:
            raise ConfigError(
                f"{section}.budget_usd: no price is known for {config.model}; add it to a table and give it as {section}.prices"
            )

    async def spread(self, places: Sequence[int], work: Callable[[Session, int], Awaitable[None]]) -> None:
        """`work` on every place, as many at once as there are slots."""
        waiting = iter(places)

        async def worker(session: Session) -> None:
            for place in waiting:
                await work(session, place)

        if places:
            async with Session(self.config, self._key) as session:
                # As many workers again as slots: while one backs off, another one uses its slot.
                await asyncio.gather(*(worker(session) for _ in range(2 * self.config.concurrency)))

    async def call(
        self,
        once: Callable[[], Awaitable[Answer]],
        most_usd: float | None,
        paid_usd: Callable[[Answer], float | None],
    ) -> Answered[Answer]:
        """One call with its attempts. `most_usd` is what it may cost (None: unknown), `paid_usd` says what it did cost.

        Raises:
            JudgeError: refused for good, or all attempts failed. BudgetError: it may cost more than is left.
        """
        import tenacity

        if most_usd is None and self.config.budget_usd is not None:
            raise JudgeError(f"{self.section}.budget_usd: {self.config.model} has no price for its audio; add it to a table")
        reserved_usd = most_usd or 0.0
        await self._reserve(reserved_usd)
        cost_usd, started = 0.0, time.perf_counter()
        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.config.max_attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, CallError) and error.retried),
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    value = await once()
                    number = attempt.retry_state.attempt_number
        except CallError as error:
            raise JudgeError(str(error)) from None
        else:
            paid = paid_usd(value)
            cost_usd = reserved_usd if paid is None else paid
        finally:
            self.wallet.settle(reserved_usd, cost_usd)
        return Answered(value, number, time.perf_counter() - started)

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
        asked_s = error.retry_after_s if isinstance(error, CallError) else None
        return wait_s(state.attempt_number, asked_s, self.config.backoff_s, random.random())
