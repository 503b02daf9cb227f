"""Engines behind HTTP: OpenAI-compatible speech, told in words how to speak, and CosyVoice, given a voice to speak like."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip, make_clip, read_clip
from paras2s.clients.chat import CHARACTERS_PER_TOKEN
from paras2s.clients.endpoint import Caller, Price, Session
from paras2s.configs.schema.run import EndpointConfig
from paras2s.data_gen.tts.base import Keep, Line, Spoken, Unspoken
from paras2s.errors import AudioError, BudgetError, JudgeError

# Slow speech, for the most that a line may cost.
SLOW_CHARACTERS_PER_S = 8.0


def speech_usd(price: Price | None, line: Line, duration_s: float) -> float | None:
    """What a rendering of this length costs; None where no price of spoken output is known."""
    if price is None or price.audio_out is None or price.audio_out_tokens_per_s is None:
        return None
    text_tokens = (len(line.text) + len(line.manner)) / CHARACTERS_PER_TOKEN
    return (text_tokens * price.text_in + duration_s * price.audio_out_tokens_per_s * price.audio_out) / 1e6


class _RemoteTTS(ABC):
    """What both have in common: attempts, slots, budget."""

    section = ""

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self._caller = Caller(config, self.section)

    @property
    def version(self) -> str:
        """Engine, model and where it runs."""
        return f"{self.section}:{self.config.model}@{self.config.base_url}/1"

    @property
    def spent_usd(self) -> float | None:
        """Paid by this instance so far; None where no price of speech is known."""
        price = self._caller.price
        return None if price is None or price.audio_out is None else self._caller.wallet.spent_usd

    def speak(self, lines: Sequence[Line], keep: Keep) -> None:
        """As many lines at once as the endpoint has slots."""
        asyncio.run(self._speak(lines, keep))

    async def _speak(self, lines: Sequence[Line], keep: Keep) -> None:
        stopped: list[BudgetError] = []

        async def work(session: Session, place: int) -> None:
            line = lines[place]
            most_usd = speech_usd(self._caller.price, line, len(line.text) / SLOW_CHARACTERS_PER_S)
            try:
                got = await self._caller.call(
                    lambda: session.attempt(lambda: self._ask(session, line)),
                    # A server of one's own has no price, and needs none.
                    most_usd if self._caller.price else 0.0,
                    lambda clip: speech_usd(self._caller.price, line, clip.duration_s),
                )
                spoken: Spoken = got.value
            except BudgetError as error:
                stopped.append(error)
                return
            except (JudgeError, AudioError, OSError) as error:
                spoken = Unspoken(str(error))
            keep(place, spoken)

        await self._caller.spread(range(len(lines)), work)
        if stopped:
            raise stopped[0]

    @abstractmethod
    async def _ask(self, session: Session, line: Line) -> Clip:
        """One HTTP request for one line; raises ValueError where the reply is no sound."""


class OpenAITTS(_RemoteTTS):
    """`/audio/speech`, as gpt-4o-mini-tts has it. Option of a voice: voice (alloy, coral ...)."""

    section = "openai"

    async def _ask(self, session: Session, line: Line) -> Clip:
        asked: dict[str, Any] = {"instructions": line.manner} if line.manner else {}
        found = await session.client.audio.speech.create(
            model=self.config.model,
            voice=str(line.voice.options.get("voice", "alloy")),
            input=line.text,
            response_format="wav",
            **asked,
        )
        return _decoded(found.content)


class CosyVoiceTTS(_RemoteTTS):
    """CosyVoice's own FastAPI server, zero-shot: a voice's options are clip (its sound) and text (what is said in it).

    `sample_rate_hz`, where the server does not say it: 24000 for CosyVoice 2, 22050 for the first. It is one's own, and free.
    """

    section = "cosyvoice"
    spent_usd = 0.0

    async def _ask(self, session: Session, line: Line) -> Clip:
        import openai

        options = line.voice.options
        found = await session.client.post(
            "/inference_zero_shot",
            cast_to=openai.HttpxBinaryResponseContent,
            body={"tts_text": line.text, "prompt_text": str(options.get("text", ""))},
            files={"prompt_wav": ("voice.wav", Path(str(options["clip"])).read_bytes(), "audio/wav")},
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )
        told = found.response.headers.get("X-Custom-Header-sampleRate")
        rate_hz = int(told) if told else int(options.get("sample_rate_hz", 24_000))
        samples = np.frombuffer(found.content[: len(found.content) // 2 * 2], dtype="<i2").astype(np.float32) / 32768.0
        try:
            return make_clip(samples, rate_hz)
        except AudioError as error:
            raise ValueError(str(error)) from error


def _decoded(data: bytes) -> Clip:
    """Raises ValueError where it is no audio: a body that is not what was asked for is worth another attempt."""
    try:
        return read_clip(data)
    except AudioError as error:
        raise ValueError(str(error)) from error
