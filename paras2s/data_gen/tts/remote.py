"""TTS engines over HTTP: OpenAI-compatible speech with instructions in words, and CosyVoice with a voice to copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip, make_clip, read_clip
from paras2s.clients.chat import count_tokens
from paras2s.clients.endpoint import EndpointClient, Price, Session, run_calls
from paras2s.configs.schema.endpoints import EndpointConfig
from paras2s.data_gen.tts.base import FailedSpeech, Line, OnClip, SpeechResult
from paras2s.errors import AudioError, BudgetError, JudgeError

# Slow speech, for an upper estimate of a line's cost.
SLOW_CHARACTERS_PER_S = 8.0


def speech_usd(price: Price | None, line: Line, duration_s: float) -> float | None:
    """Return the cost of a rendering of this length; None if no price of spoken output is known."""
    if price is None or price.audio_out is None or price.audio_out_tokens_per_s is None:
        return None
    text_tokens = count_tokens(line.text) + count_tokens(line.manner)
    return (text_tokens * price.text_in + duration_s * price.audio_out_tokens_per_s * price.audio_out) / 1e6


class _RemoteTTS(ABC):
    """Base of remote engines: attempts, concurrency, budget."""

    section = ""

    def __init__(self, endpoint: EndpointConfig, cache: Path | None = None) -> None:
        self.config = endpoint
        self._endpoint = EndpointClient(endpoint, self.section)

    @property
    def version(self) -> str:
        """Names engine, model and endpoint."""
        return f"{self.section}:{self.config.model}@{self.config.base_url}/1"

    @property
    def spent_usd(self) -> float | None:
        """Cost of this instance's calls so far; None if no price of speech is known."""
        price = self._endpoint.price
        return None if price is None or price.audio_out is None else self._endpoint.budget.spent_usd

    def speak(self, lines: Sequence[Line], on_clip: OnClip) -> None:
        """Synthesise lines, `concurrency` calls at once."""
        run_calls(self._speak(lines, on_clip))

    async def _speak(self, lines: Sequence[Line], on_clip: OnClip) -> None:
        stopped: list[BudgetError] = []

        async def work(session: Session, index: int) -> None:
            line = lines[index]
            most_usd = speech_usd(self._endpoint.price, line, len(line.text) / SLOW_CHARACTERS_PER_S)
            try:
                result = await self._endpoint.call(
                    lambda: session.attempt(lambda: self._post(session, line)),
                    # A server of the user's own has no price, and needs none.
                    most_usd if self._endpoint.price else 0.0,
                    lambda clip: speech_usd(self._endpoint.price, line, clip.duration_s),
                )
                spoken: SpeechResult = result.value
            except BudgetError as error:
                stopped.append(error)
                return
            except (JudgeError, AudioError, OSError) as error:
                spoken = FailedSpeech(str(error))
            on_clip(index, spoken)

        await self._endpoint.run_all(range(len(lines)), work)
        if stopped:
            raise stopped[0]

    @abstractmethod
    async def _post(self, session: Session, line: Line) -> Clip:
        """Send the HTTP request of one line; raise ValueError where the reply is no audio."""


class OpenAITTS(_RemoteTTS):
    """An engine with an OpenAI-compatible `/audio/speech`, such as gpt-4o-mini-tts. Voice option: voice (alloy, coral ...)."""

    section = "openai"
    options = frozenset({"voice"})

    async def _post(self, session: Session, line: Line) -> Clip:
        optional: dict[str, Any] = {"instructions": line.manner} if line.manner else {}
        response = await session.client.audio.speech.create(
            model=self.config.model,
            voice=str(line.voice.options.get("voice", "alloy")),
            input=line.text,
            response_format="wav",
            **optional,
        )
        return _decoded(response.content)


class CosyVoiceTTS(_RemoteTTS):
    """CosyVoice's own FastAPI server, zero-shot. Voice options: clip (the voice to copy) and text (the words of that clip).

    The option `sample_rate_hz` serves where the server does not send it: 24000 for CosyVoice 2, 22050 for the first. The
    server is the user's own and costs nothing.
    """

    section = "cosyvoice"
    options = frozenset({"clip", "text", "sample_rate_hz"})
    spent_usd = 0.0

    async def _post(self, session: Session, line: Line) -> Clip:
        import openai

        options = line.voice.options
        response = await session.client.post(
            "/inference_zero_shot",
            cast_to=openai.HttpxBinaryResponseContent,
            body={"tts_text": line.text, "prompt_text": str(options.get("text", ""))},
            files={"prompt_wav": ("voice.wav", Path(str(options["clip"])).read_bytes(), "audio/wav")},
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )
        header = response.response.headers.get("X-Custom-Header-sampleRate")
        rate_hz = int(header) if header else int(options.get("sample_rate_hz", 24_000))
        samples = np.frombuffer(response.content[: len(response.content) // 2 * 2], dtype="<i2").astype(np.float32) / 32768.0
        try:
            return make_clip(samples, rate_hz)
        except AudioError as error:
            raise ValueError(str(error)) from error


def _decoded(data: bytes) -> Clip:
    """Decode audio; raise ValueError where it is none, since a wrong body is worth another attempt."""
    try:
        return read_clip(data)
    except AudioError as error:
        raise ValueError(str(error)) from error
