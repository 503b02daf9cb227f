"""Who answers spoken questions: a folder of clips, an audio chat endpoint, a policy checkpoint, and two yardsticks.

The words-only cascade is told the words and nothing of the voice, the topline the words and the true style; an LLM writes their
answers and a TTS speaks them (ParaS2S, section 5.6). An answer that is not there is a reason, never silence.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from paras2s.audio import Clip, encode_clip, read_clip
from paras2s.config import AudioChatConfig, CurationConfig
from paras2s.endpoint import Caller, Price, Session
from paras2s.errors import AudioError, BudgetError, ConfigError, JudgeError
from paras2s.kept import key_of
from paras2s.records import Query
from paras2s.storage import read_json, write_bytes, write_json

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
RATE_HZ = 16_000
# A spoken answer is hardly longer; for the most that a call may cost.
LONG_ANSWER_S = 40.0
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SpokenQuestion:
    """What is asked. A respondent may read `clip`, and `heard` where it needs words; `text` and `style` are for yardsticks."""

    id: str
    clip: Path
    heard: str
    text: str | None = None
    style: str | None = None


@dataclass(frozen=True)
class Response:
    """One answer: its text stream ("" where there is none) and its sound, or why there is none."""

    text: str = ""
    clip: Clip | None = None
    failed: str | None = None


class Respondent(Protocol):
    """Answers every question `count` times."""

    def respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """Responses [n questions][count].

        Raises:
            BudgetError: the budget ended; a later run goes on from there.
        """


def question_of_query(query: Query, folder: Path) -> SpokenQuestion:
    """A manifest's query as a question."""
    return SpokenQuestion(query.id, folder / query.clip, query.heard, query.text, query.style)


@dataclass(frozen=True)
class FolderRespondent:
    """Clips that another program made: ID.wav, or ID-0.wav, ID-1.wav and so on where there are several answers."""

    folder: Path

    def respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """Read all; one that is missing or broken is a reason."""
        found = []
        for number, question in enumerate(questions, 1):
            names = [question.id] if count == 1 else [f"{question.id}-{n}" for n in range(count)]
            found.append([self._read(name) for name in names])
            on_progress(number, len(questions))
        if all(response.failed for row in found for response in row):
            raise ConfigError(f"{self.folder}: holds no answer to any question; expected files such as {questions[0].id}.wav")
        return found

    def _read(self, name: str) -> Response:
        path = next((one for suffix in SUFFIXES if (one := self.folder / f"{name}{suffix}").is_file()), None)
        if path is None:
            return Response(failed=f"no answer: {self.folder / name}.wav is missing")
        try:
            return Response(clip=read_clip(path))
        except AudioError as error:
            return Response(failed=str(error))


class EndpointRespondent:
    """A model that hears and speaks, behind OpenAI-compatible audio chat. Answers are kept: none is paid for twice."""

    def __init__(self, config: AudioChatConfig, cache: Path) -> None:
        self.config, self._cache = config, cache / "answers"
        self._caller = Caller(config, "endpoint")
        if config.budget_usd is not None and self._caller.price and chat_usd(self._caller.price, 1.0, 1.0) is None:
            raise ConfigError(f"endpoint.budget_usd: {config.model} has no price of its audio; add it to a table")

    def respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """As many at once as the endpoint has slots."""
        return asyncio.run(self._respond(questions, count, on_progress))

    async def _respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        found: dict[int, Response] = {}
        stopped: list[BudgetError] = []

        async def work(session: Session, place: int) -> None:
            try:
                found[place] = await self._one(session, questions[place // count], place % count)
            except BudgetError as error:
                stopped.append(error)
            except (JudgeError, AudioError) as error:
                found[place] = Response(failed=str(error))
            on_progress(len(found), len(questions) * count)

        await self._caller.spread(range(len(questions) * count), work)
        if stopped:
            raise stopped[0]
        return [[found[row * count + n] for n in range(count)] for row in range(len(questions))]

    async def _one(self, session: Session, question: SpokenQuestion, number: int) -> Response:
        clip = read_clip(question.clip).at(RATE_HZ)
        wav = encode_clip(clip)
        config = self.config
        asked = [config.base_url, config.model, config.voice, config.system, config.temperature, number]
        key = key_of([*asked, hashlib.sha256(wav).hexdigest()])
        base = self._cache / key[:2] / key
        if base.with_suffix(".json").is_file():
            return Response(read_json(base.with_suffix(".json"))["text"], read_clip(base.with_suffix(".wav")))
        most_usd = 0.0 if self._caller.price is None else chat_usd(self._caller.price, clip.duration_s, LONG_ANSWER_S)
        got = await self._caller.call(
            lambda: session.attempt(lambda: self._ask(session, wav)),
            most_usd,
            lambda response: self._paid(clip.duration_s, response),
        )
        response = got.value
        if response.clip is None:
            return response
        # The text last, as the sign that both are there.
        write_bytes(base.with_suffix(".wav"), encode_clip(response.clip))
        write_json(base.with_suffix(".json"), {"text": response.text, "question": question.id})
        return replace(response, clip=read_clip(base.with_suffix(".wav")))

    def _paid(self, heard_s: float, response: Response) -> float | None:
        spoken_s = response.clip.duration_s if response.clip else 0.0
        return None if self._caller.price is None else chat_usd(self._caller.price, heard_s, spoken_s)

    async def _ask(self, session: Session, wav: bytes) -> Response:
        data = base64.b64encode(wav).decode()
        heard = [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
        messages: Any = [{"role": "system", "content": self.config.system}] if self.config.system else []
        messages.append({"role": "user", "content": heard})
        audio: Any = {"voice": self.config.voice, "format": "wav"}
        found = await session.client.chat.completions.create(
            model=self.config.model, messages=messages, modalities=["text", "audio"], audio=audio,
            temperature=self.config.temperature,
        )  # fmt: skip
        spoken = found.choices[0].message.audio
        if spoken is None:
            # Paid for, and no better the next time.
            return Response(failed=f"the reply has no audio, only {str(found.choices[0].message.content)[:100]!r}")
        try:
            clip = read_clip(base64.b64decode(spoken.data))
        except AudioError as error:
            raise ValueError(str(error)) from error
        return Response(session.without_key(spoken.transcript or ""), clip)


def chat_usd(price: Price, heard_s: float, spoken_s: float) -> float | None:
    """What hearing and speaking so long costs; None where no price of either is known."""
    known = (price.audio_in, price.audio_tokens_per_s, price.audio_out, price.audio_out_tokens_per_s)
    if None in known:
        return None
    heard = heard_s * (price.audio_tokens_per_s or 0) * (price.audio_in or 0)
    return (heard + spoken_s * (price.audio_out_tokens_per_s or 0) * (price.audio_out or 0)) / 1e6


class PolicyRespondent:
    """A checkpoint of a policy, whatever its kind: it reads the sound and what a recogniser heard in it, as in training."""

    BATCH, TEMPERATURE, SEED = 32, 1.0, 0

    def __init__(self, folder: Path) -> None:
        from paras2s.policy.table import load_policy

        self._policy = load_policy(folder)

    def respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """By the native sampler; every checkpoint gets the same seeds."""
        from paras2s.language import embed_sentences
        from paras2s.policy.interface import Sampling, Turn
        from paras2s.rollout.engine import NativeEngine, answer_seeds

        embed_sentences([question.heard for question in questions])
        engine = NativeEngine(self._policy)
        sampling = Sampling(self.TEMPERATURE, self.TEMPERATURE, MAX_STEPS)
        found: list[list[Response]] = []
        for start in range(0, len(questions), self.BATCH):
            part = questions[start : start + self.BATCH]
            prompts = [self._policy.encode_prompt([Turn("user", one.heard, read_clip(one.clip))]) for one in part]
            seeds = answer_seeds(self.SEED, 4_000_000 + start, range(len(part)), count)
            for rollout in engine.generate([one.id for one in part], prompts, count, sampling, seeds):
                row = zip(rollout.texts, rollout.waves, strict=True)
                found.append([_sounding(text, Clip(wave, rollout.sample_rate_hz)) for text, wave in row])
            on_progress(len(found), len(questions))
        return found


# 4.2 s at 12.5 steps a second: the embedded policy's longest answer.
MAX_STEPS = 52


def _sounding(text: str, clip: Clip) -> Response:
    return Response(text, clip) if len(clip.samples) else Response(text, failed="the policy ended its answer before it began")


class WrittenRespondent:
    """A yardstick: an LLM writes the answer from the words, told the style or not, and a TTS speaks it in the tone it chose."""

    def __init__(self, config: CurationConfig, told_style: bool) -> None:
        self.config, self.told_style = config, told_style

    def respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """One text a question, `count` renderings; the cascade speaks without a tone, since it knows of none."""
        from paras2s.data_gen.curation.asking import Asker, WrittenAnswer
        from paras2s.data_gen.curation.text_tests import tones_asked
        from paras2s.data_gen.curation.voicing import Engines
        from paras2s.data_gen.tts.base import Line, speak_all

        asker = Asker.open(self.config, lambda *_: None)
        values = [{"line": self._told(question)} for question in questions]
        plain = {"tones": tones_asked(self.config.agent_tones)}
        written = asker.check("answers", asker.prompt("answer_system", "answer"), WrittenAnswer, values, plain)
        agent = self.config.agent
        lines, places = [], []
        for place, one in enumerate(written):
            if isinstance(one, WrittenAnswer):
                tone = one.tone if self.told_style else "neutral"
                manner = one.tone if self.told_style and agent.engine == "openai" else ""
                lines += [Line(one.answer, agent, tone, manner, take) for take in range(count)]
                places += [place] * count
        spoken = speak_all(Engines(self.config).of(agent), lines, self.config.cache_dir, on_progress)
        found: list[list[Response]] = [[] for _ in questions]
        for place, line, said in zip(places, lines, spoken, strict=True):
            sound = Response(line.text, said) if isinstance(said, Clip) else Response(line.text, failed=said.reason)
            found[place].append(sound)
        return [row or [Response(failed=str(written[place]))] * count for place, row in enumerate(found)]

    def _told(self, question: SpokenQuestion) -> dict[str, str]:
        if not self.told_style:
            return {"words": question.heard}
        if question.text is None or question.style is None:
            raise ConfigError(f"{question.id}: the topline must be told words and style, and this query has no labels")
        return {"words": question.text, "spoken": question.style}
