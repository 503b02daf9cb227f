"""A client of speech-to-speech models behind OpenAI-compatible audio chat: a dialogue in, a spoken reply out.

Replies are cached as they arrive: no reply is paid for twice, and a stopped command continues.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paras2s.audio.clip import MAX_DURATION_S, Clip, encode_clip, read_clip
from paras2s.clients.endpoint import EndpointClient, Price, Session, run_calls
from paras2s.configs.schema.endpoints import AudioChatConfig
from paras2s.errors import AudioError, BudgetError, ConfigError, JudgeError, StorageError
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, write_bytes, write_json

RATE_HZ = 16_000
# A spoken answer is hardly longer; bounds the cost of a call where no token limit does.
LONG_ANSWER_S = 40.0


@dataclass(frozen=True)
class AudioChatRequest:
    """A dialogue: the user's turns as audio, the model's own as text. `number` numbers several replies to one dialogue."""

    turns: tuple[str | Clip, ...]
    number: int = 0
    seed: int | None = None


@dataclass(frozen=True)
class SpokenReply:
    """A reply as text and audio, or why it `failed`; `cut`: it reached the token limit."""

    text: str = ""
    clip: Clip | None = None
    failed: str | None = None
    cut: bool = False


class AudioChat:
    """A client of one model; replies may be up to `max_clip_s` long."""

    def __init__(
        self,
        config: AudioChatConfig,
        cache: Path,
        top_p: float | None = None,
        max_tokens: int | None = None,
        max_clip_s: float = MAX_DURATION_S,
    ) -> None:
        self.config, self._cache, self._max_clip_s = config, cache, max_clip_s
        limits = {"top_p": top_p, "max_completion_tokens": max_tokens}
        self._limits = {name: value for name, value in limits.items() if value is not None}
        self._endpoint = EndpointClient(config, "endpoint")
        self._price = self._endpoint.price
        if config.budget_usd is not None and self._price and chat_usd(self._price, 1.0, 1.0) is None:
            raise ConfigError(f"endpoint.budget_usd: {config.model} has no price for audio; add it to a table")

    def complete_all(
        self, requests: Sequence[AudioChatRequest], on_progress: Callable[[int, int], None] | None = None
    ) -> list[SpokenReply]:
        """Return replies in order, `concurrency` calls at once; a call that fails for good is a reply with `failed`.

        Raises:
            BudgetError: the budget ended; earlier replies stay cached.
        """
        replies: dict[int, SpokenReply] = {}
        stopped: list[BudgetError | StorageError] = []

        async def work(session: Session, index: int) -> None:
            try:
                replies[index] = await self._complete(session, requests[index])
            except BudgetError as error:
                stopped.append(error)
            except (JudgeError, AudioError) as error:
                replies[index] = SpokenReply(failed=str(error))
            except StorageError as error:
                self._endpoint.stop(f"no more calls are made: {error}")
                stopped.append(error)
            if on_progress:
                on_progress(len(replies), len(requests))

        run_calls(self._endpoint.run_all(range(len(requests)), work))
        if stopped:
            raise stopped[0]
        return [replies[index] for index in range(len(requests))]

    async def _complete(self, session: Session, request: AudioChatRequest) -> SpokenReply:
        turns = [turn if isinstance(turn, str) else turn.at(RATE_HZ) for turn in request.turns]
        encoded = [turn if isinstance(turn, str) else encode_clip(turn) for turn in turns]
        base = self._cache_path(request, encoded)
        if not base.with_suffix(".json").is_file():
            input_s = sum(turn.duration_s for turn in turns if isinstance(turn, Clip))
            result = await self._endpoint.call(
                lambda: session.attempt(lambda: self._post(session, encoded, request.seed)),
                0.0 if self._price is None else chat_usd(self._price, input_s, self._longest_s()),
                lambda reply: None if self._price is None else chat_usd(self._price, input_s, _length_s(reply)),
            )
            reply = result.value
            if reply.clip is not None:
                write_bytes(base.with_suffix(".wav"), encode_clip(reply.clip))
            # Written last, to mark the entry as complete; a reply without audio was paid for as well.
            write_json(base.with_suffix(".json"), {"text": reply.text, "cut": reply.cut, "failed": reply.failed})
        cached = read_json(base.with_suffix(".json"))
        if cached["failed"] is not None:
            return SpokenReply(failed=cached["failed"])
        clip = read_clip(base.with_suffix(".wav"), max_duration_s=self._max_clip_s)
        return SpokenReply(cached["text"], clip, cut=cached["cut"])

    def _cache_path(self, request: AudioChatRequest, turns: Sequence[str | bytes]) -> Path:
        config = self.config
        model = [config.base_url, config.model, config.voice, config.system, config.temperature, self._limits]
        digests = [turn if isinstance(turn, str) else hashlib.sha256(turn).hexdigest() for turn in turns]
        key = key_of([*model, request.number, request.seed, digests])
        return self._cache / key[:2] / key

    def _longest_s(self) -> float:
        limit, per_s = self._limits.get("max_completion_tokens"), self._price and self._price.audio_out_tokens_per_s
        return limit / per_s if limit and per_s else LONG_ANSWER_S

    async def _post(self, session: Session, turns: Sequence[str | bytes], seed: int | None) -> SpokenReply:
        messages: Any = [{"role": "system", "content": self.config.system}] if self.config.system else []
        for turn in turns:
            if isinstance(turn, str):
                messages.append({"role": "assistant", "content": turn})
            else:
                audio = {"data": base64.b64encode(turn).decode(), "format": "wav"}
                messages.append({"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]})
        optional: Any = self._limits | ({} if seed is None else {"seed": seed})
        completion = await session.client.chat.completions.create(
            model=self.config.model, messages=messages, modalities=["text", "audio"],
            audio={"voice": self.config.voice, "format": "wav"}, temperature=self.config.temperature, **optional,
        )  # fmt: skip
        choice = completion.choices[0]
        if choice.message.audio is None:
            # Cached as a failure: it was paid for, and another attempt would give the same.
            return SpokenReply(failed=f"the reply has no audio, only {str(choice.message.content)[:100]!r}")
        try:
            clip = read_clip(base64.b64decode(choice.message.audio.data), max_duration_s=self._max_clip_s)
        except AudioError as error:
            raise ValueError(str(error)) from error
        text = session.without_key(choice.message.audio.transcript or "")
        return SpokenReply(text, clip, cut=choice.finish_reason == "length")


def _length_s(reply: SpokenReply) -> float:
    return reply.clip.duration_s if reply.clip else 0.0


def chat_usd(price: Price, input_s: float, output_s: float) -> float | None:
    """Return the cost of audio input and output of these lengths; None if a price is unknown."""
    rates = (price.audio_in, price.audio_tokens_per_s, price.audio_out, price.audio_out_tokens_per_s)
    if None in rates:
        return None
    input_cost = input_s * (price.audio_tokens_per_s or 0) * (price.audio_in or 0)
    return (input_cost + output_s * (price.audio_out_tokens_per_s or 0) * (price.audio_out or 0)) / 1e6
