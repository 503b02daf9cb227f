"""A model that hears and speaks, behind OpenAI-compatible audio chat: a dialogue in, a spoken turn out.

Turns are kept as they come: none is paid for twice, and a stopped command goes on where it was.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paras2s.audio.clip import MAX_DURATION_S, Clip, encode_clip, read_clip
from paras2s.clients.endpoint import Caller, Price, Session
from paras2s.configs.schema.run import AudioChatConfig
from paras2s.errors import AudioError, BudgetError, ConfigError, JudgeError
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, write_bytes, write_json

RATE_HZ = 16_000
# A spoken answer is hardly longer; for the most that a call may cost where nothing limits it.
LONG_ANSWER_S = 40.0


@dataclass(frozen=True)
class AudioChatRequest:
    """A dialogue: the user's turns as sound, the model's own as text. `number` tells several answers to the same one apart."""

    turns: tuple[str | Clip, ...]
    number: int = 0
    seed: int | None = None


@dataclass(frozen=True)
class SpokenTurn:
    """What was said and how it sounds, or why there is nothing; `cut`: it was at the most it may be."""

    text: str = ""
    clip: Clip | None = None
    failed: str | None = None
    cut: bool = False


class AudioChat:
    """One model; `top_p` and `max_tokens` are sent where they are given, and clips may be up to `max_clip_s` long."""

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
        self._caller = Caller(config, "endpoint")
        self._price = self._caller.price
        if config.budget_usd is not None and self._price and chat_usd(self._price, 1.0, 1.0) is None:
            raise ConfigError(f"endpoint.budget_usd: {config.model} has no price of its audio; add it to a table")

    def say_all(
        self, asked: Sequence[AudioChatRequest], on_progress: Callable[[int, int], None] | None = None
    ) -> list[SpokenTurn]:
        """A turn each, as many at once as the endpoint has slots; a call that fails for good is a reason.

        Raises:
            BudgetError: the budget ended; what was said is kept.
        """
        found: dict[int, SpokenTurn] = {}
        stopped: list[BudgetError] = []

        async def work(session: Session, place: int) -> None:
            try:
                found[place] = await self._say(session, asked[place])
            except BudgetError as error:
                stopped.append(error)
            except (JudgeError, AudioError) as error:
                found[place] = SpokenTurn(failed=str(error))
            if on_progress:
                on_progress(len(found), len(asked))

        asyncio.run(self._caller.spread(range(len(asked)), work))
        if stopped:
            raise stopped[0]
        return [found[place] for place in range(len(asked))]

    async def _say(self, session: Session, asked: AudioChatRequest) -> SpokenTurn:
        turns = [one if isinstance(one, str) else one.at(RATE_HZ) for one in asked.turns]
        sent = [one if isinstance(one, str) else encode_clip(one) for one in turns]
        base = self._place(asked, sent)
        if not base.with_suffix(".json").is_file():
            heard_s = sum(one.duration_s for one in turns if isinstance(one, Clip))
            got = await self._caller.call(
                lambda: session.attempt(lambda: self._ask(session, sent, asked.seed)),
                0.0 if self._price is None else chat_usd(self._price, heard_s, self._longest_s()),
                lambda turn: None if self._price is None else chat_usd(self._price, heard_s, _length_s(turn)),
            )
            if got.value.clip is not None:
                write_bytes(base.with_suffix(".wav"), encode_clip(got.value.clip))
            # This last, as the sign that the sound is there; a turn without any was paid for as well.
            said = {"text": got.value.text, "cut": got.value.cut, "failed": got.value.failed}
            write_json(base.with_suffix(".json"), said)
        kept = read_json(base.with_suffix(".json"))
        if kept["failed"] is not None:
            return SpokenTurn(failed=kept["failed"])
        clip = read_clip(base.with_suffix(".wav"), max_duration_s=self._max_clip_s)
        return SpokenTurn(kept["text"], clip, cut=kept["cut"])

    def _place(self, asked: AudioChatRequest, sent: Sequence[str | bytes]) -> Path:
        config = self.config
        model = [config.base_url, config.model, config.voice, config.system, config.temperature, self._limits]
        digests = [one if isinstance(one, str) else hashlib.sha256(one).hexdigest() for one in sent]
        key = key_of([*model, asked.number, asked.seed, digests])
        return self._cache / key[:2] / key

    def _longest_s(self) -> float:
        limit, per_s = self._limits.get("max_completion_tokens"), self._price and self._price.audio_out_tokens_per_s
        return limit / per_s if limit and per_s else LONG_ANSWER_S

    async def _ask(self, session: Session, sent: Sequence[str | bytes], seed: int | None) -> SpokenTurn:
        messages: Any = [{"role": "system", "content": self.config.system}] if self.config.system else []
        for one in sent:
            if isinstance(one, str):
                messages.append({"role": "assistant", "content": one})
            else:
                sound = {"data": base64.b64encode(one).decode(), "format": "wav"}
                messages.append({"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]})
        more: Any = self._limits | ({} if seed is None else {"seed": seed})
        found = await session.client.chat.completions.create(
            model=self.config.model, messages=messages, modalities=["text", "audio"],
            audio={"voice": self.config.voice, "format": "wav"}, temperature=self.config.temperature, **more,
        )  # fmt: skip
        choice = found.choices[0]
        if choice.message.audio is None:
            # Paid for, and no better the next time.
            return SpokenTurn(failed=f"the reply has no audio, only {str(choice.message.content)[:100]!r}")
        try:
            clip = read_clip(base64.b64decode(choice.message.audio.data), max_duration_s=self._max_clip_s)
        except AudioError as error:
            raise ValueError(str(error)) from error
        said = session.without_key(choice.message.audio.transcript or "")
        return SpokenTurn(said, clip, cut=choice.finish_reason == "length")


def _length_s(turn: SpokenTurn) -> float:
    return turn.clip.duration_s if turn.clip else 0.0


def chat_usd(price: Price, heard_s: float, spoken_s: float) -> float | None:
    """What hearing and speaking so long costs; None where no price of either is known."""
    known = (price.audio_in, price.audio_tokens_per_s, price.audio_out, price.audio_out_tokens_per_s)
    if None in known:
        return None
    heard = heard_s * (price.audio_tokens_per_s or 0) * (price.audio_in or 0)
    return (heard + spoken_s * (price.audio_out_tokens_per_s or 0) * (price.audio_out or 0)) / 1e6
