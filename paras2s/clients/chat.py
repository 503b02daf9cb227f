"""The one client of language models at OpenAI-compatible endpoints, with a cache.

A call either gives a Reply or raises; it never gives a made-up one. Attempts, rate and budget: `endpoint`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paras2s.clients.endpoint import Caller, CallError, Price, Session
from paras2s.configs.schema.run import LLMConfig
from paras2s.errors import BudgetError, JudgeError
from paras2s.utils.cache import Kept, key_of

CHARACTERS_PER_TOKEN = 4
CACHE_VERSION = 1


@dataclass(frozen=True)
class Tokens:
    """How many tokens went in as text and as audio, and came out."""

    text_in: int = 0
    audio_in: int = 0
    text_out: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        """Both together."""
        return Tokens(self.text_in + other.text_in, self.audio_in + other.audio_in, self.text_out + other.text_out)

    def cost_usd(self, price: Price | None) -> float | None:
        """In USD; None where no price is known, or none for audio and there was some."""
        if price is None or (self.audio_in and price.audio_in is None):
            return None
        return (self.text_in * price.text_in + self.audio_in * (price.audio_in or 0) + self.text_out * price.text_out) / 1e6


@dataclass(frozen=True)
class Bill:
    """What calls take at most, before they are made; `at_most_usd` is None where the price of one is not known."""

    calls: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    at_most_usd: float | None = 0.0

    def __add__(self, other: Bill) -> Bill:
        """Both together."""
        known = None not in (self.at_most_usd, other.at_most_usd)
        usd = (self.at_most_usd or 0.0) + (other.at_most_usd or 0.0) if known else None
        return Bill(self.calls + other.calls, self.tokens + other.tokens, usd)


@dataclass(frozen=True)
class Audio:
    """A file of sound in a message: its bytes, length and format."""

    data: bytes
    duration_s: float
    format: str = "wav"


@dataclass(frozen=True)
class Message:
    """One message: its role and its parts, texts and audio in order."""

    role: str
    parts: tuple[str | Audio, ...]


@dataclass(frozen=True)
class Request:
    """What is asked: messages, and the JSON schema of the reply wanted (None: free text).

    `token_ids`: one token is wanted, and the log-probabilities of these; vLLM's `logprob_token_ids`. `sample` numbers
    several replies to one question: equal numbers share a reply, and a configured seed is moved on by it.
    """

    messages: tuple[Message, ...]
    schema: dict[str, Any] | None = None
    token_ids: tuple[int, ...] = ()
    sample: int = 0


@dataclass(frozen=True)
class Reply:
    """What came back. `cost_usd` is None where no price is known; a reply from the cache costs nothing again.

    `refusal` is the endpoint's own refusal text, `finish_reason` as it gave it ("length": the text is cut off).
    `logprobs` maps tokens to log-probabilities at the first place, None where they were not asked for or not given.
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
    """A hash of everything that may change the reply; audio by its own hash."""
    messages = [
        [message.role, [part if isinstance(part, str) else {"audio": _digest(part.data)} for part in message.parts]]
        for message in request.messages
    ]
    asked = (config.base_url, config.model, config.temperature, config.max_output_tokens, config.seed, config.structured)
    # Keys of requests that make no use of a newer thing stay as they were before there was such a thing.
    newer: list[Any] = [request.token_ids] if request.token_ids else []
    newer += [{"top_p": config.top_p}] if config.top_p is not None else []
    newer += [{"sample": request.sample}] if request.sample else []
    return key_of([CACHE_VERSION, asked, messages, request.schema, *newer])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def estimate_tokens(request: Request, price: Price | None, max_output_tokens: int) -> Tokens:
    """Tokens of a call before it is made: a token for 4 characters, audio by its length, and the longest reply allowed."""
    parts = [part for message in request.messages for part in message.parts]
    characters = sum(len(part) for part in parts if isinstance(part, str))
    audio_s = sum(part.duration_s for part in parts if isinstance(part, Audio))
    per_s = price.audio_tokens_per_s if price and price.audio_tokens_per_s else 0.0
    return Tokens(-(-characters // CHARACTERS_PER_TOKEN), int(-(-audio_s * per_s // 1)), max_output_tokens)


class LLMClient:
    """Calls one model. One instance a command: its budget, rate and cache are the command's."""

    def __init__(self, config: LLMConfig, kept: Kept | None = None, section: str = "llm") -> None:
        self.config = config
        self.kept = kept
        self.caller = Caller(config, section)
        self.price = self.caller.price
        self.calls = 0
        self._structured = config.structured == "auto"

    def complete_all(
        self,
        requests: Sequence[Request],
        on_progress: Callable[[int, int], None] | None = None,
        usable: Callable[[Reply], bool] = lambda reply: True,
    ) -> list[Reply | JudgeError | BudgetError]:
        """Replies in order; a call that failed for good is its error, and after the budget's end each is a BudgetError.

        Equal requests are asked once. A reply that is not `usable` is given, but not kept: a later run asks again.
        """
        return asyncio.run(self._complete_all(requests, on_progress, usable))

    async def _complete_all(
        self,
        requests: Sequence[Request],
        on_progress: Callable[[int, int], None] | None,
        usable: Callable[[Reply], bool],
    ) -> list[Reply | JudgeError | BudgetError]:
        keys = [request_key(self.config, request) for request in requests]
        known = self.kept.get_many(keys) if self.kept else {}
        found: list[Reply | JudgeError | BudgetError | None] = [
            _from_cache(known[key]) if key in known else None for key in keys
        ]
        done = sum(one is not None for one in found)
        if on_progress:
            on_progress(done, len(requests))

        async def work(session: Session, place: int) -> None:
            nonlocal done
            try:
                reply = await self._complete(session, requests[place])
                if self.kept and usable(reply):
                    self.kept.put_many({keys[place]: asdict(reply)})
                found[place] = reply
            except (JudgeError, BudgetError) as error:
                found[place] = error
            done += 1
            if on_progress:
                on_progress(done, len(requests))

        first: dict[str, int] = {}
        waiting = [place for place, one in enumerate(found) if one is None and first.setdefault(keys[place], place) == place]
        await self.caller.spread(waiting, work)
        for place, one in enumerate(found):
            if one is None:
                twin = found[first[keys[place]]]
                found[place] = replace(twin, cached=True) if isinstance(twin, Reply) else twin
        return [one for one in found if one is not None]

    async def _complete(self, session: Session, request: Request) -> Reply:
        """One call with its attempts.

        Raises:
            JudgeError: refused for good, or all attempts failed. BudgetError: it may cost more than is left.
        """
        estimated = estimate_tokens(request, self.price, self.config.max_output_tokens)
        most_usd = estimated.cost_usd(self.price) if self.audio_priced(request) else None

        def paid_usd(reply: Reply) -> float | None:
            # A gateway that reports no usage is taken to have used what was estimated.
            return (reply.tokens if reply.tokens != Tokens() else estimated).cost_usd(self.price)

        got = await self.caller.call(lambda: self._attempt(session, request), most_usd, paid_usd)
        known_usd = got.value.tokens.cost_usd(self.price) if got.value.tokens != Tokens() else None
        return replace(got.value, cost_usd=known_usd, latency_s=got.latency_s, attempts=got.attempts)

    def audio_priced(self, request: Request) -> bool:
        """Whether the price of this request's audio, if it has any, is known."""
        hears = any(isinstance(part, Audio) for message in request.messages for part in message.parts)
        return not hears or (self.price is not None and None not in (self.price.audio_in, self.price.audio_tokens_per_s))

    def estimate(self, asked: Iterable[Any]) -> Bill:
        """What these calls take at most, their replies as long as they may be.

        `asked` are requests, or lists of them; anything else, such as what cannot be asked, is no call.
        """
        every = [request for one in asked for request in (one if isinstance(one, list) else [one])]
        requests = [one for one in every if isinstance(one, Request)]
        total = sum((estimate_tokens(one, self.price, self.config.max_output_tokens) for one in requests), Tokens())
        usd = total.cost_usd(self.price) if all(map(self.audio_priced, requests)) else None
        return Bill(len(requests), total, usd if requests else 0.0)

    async def _attempt(self, session: Session, request: Request) -> Reply:
        structured = self._structured and request.schema is not None
        try:
            return await self._ask(session, request, structured)
        except CallError as error:
            if not (structured and error.refuses_schema):
                raise
        # Some gateways have no structured output; what they write is parsed as strictly.
        self._structured = False
        return await self._ask(session, request, False)

    async def _ask(self, session: Session, request: Request, structured: bool) -> Reply:
        """One HTTP request.

        Raises:
            CallError: anything went wrong.
        """
        self.calls += 1
        asked: dict[str, Any] = {"max_completion_tokens": self.config.max_output_tokens}
        asked |= {} if self.config.temperature is None else {"temperature": self.config.temperature}
        asked |= {} if self.config.top_p is None else {"top_p": self.config.top_p}
        # One seed for all samples would give one reply so many times, and call it agreement.
        asked |= {} if self.config.seed is None else {"seed": self.config.seed + request.sample}
        if structured:
            schema = {"name": "verdict", "strict": True, "schema": request.schema}
            asked["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.token_ids:
            asked |= {"max_completion_tokens": 1, "temperature": 0.0, "logprobs": True}
            asked["extra_body"] = {"logprob_token_ids": list(request.token_ids)}
        messages: Any = [_as_json(message) for message in request.messages]

        async def post() -> Reply:
            found = await session.client.chat.completions.create(model=self.config.model, messages=messages, **asked)
            # Of a call that wants probabilities the text does not matter: it may well be an end token.
            return _checked(_read_reply(found), session, may_be_empty=bool(request.token_ids))

        return await session.attempt(post)


def _checked(reply: Reply, session: Session, may_be_empty: bool) -> Reply:
    """The reply without the key, should a gateway echo it; a hiccup that says nothing at all is tried again.

    Raises:
        ValueError: no text, no refusal, and no reason for it.
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
    return Reply(
        text, choice.finish_reason or "", refusal, found.model or "", tokens, None, 0.0, 1, False, _first_logprobs(choice)
    )


def _first_logprobs(choice: Any) -> dict[str, float] | None:
    places = getattr(getattr(choice, "logprobs", None), "content", None)
    return {one.token: float(one.logprob) for one in places[0].top_logprobs} if places else None


def _from_cache(stored: dict[str, Any]) -> Reply:
    values = {**stored, "tokens": Tokens(**stored["tokens"]), "cached": True}
    return Reply(**values)
