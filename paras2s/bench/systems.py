"""Who answers spoken questions: a folder of clips, an audio chat endpoint, a policy checkpoint, and two yardsticks.

The words-only cascade is told the words and nothing of the voice, the topline the words and the true style; an LLM writes their
answers and a TTS speaks them (ParaS2S, section 5.6). An answer that is not there is a reason, never silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paras2s.audio.clip import Clip, read_clip
from paras2s.clients.audio_chat import AudioChat, AudioChatRequest
from paras2s.configs.schema.run import AudioChatConfig, CurationConfig
from paras2s.errors import AudioError, ConfigError
from paras2s.types import Query

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SpokenQuestion:
    """One spoken question. A system may read `clip` and its ASR `transcript`; `text` and `style` are for baselines alone."""

    id: str
    clip: Path
    transcript: str
    text: str | None = None
    style: str | None = None


@dataclass(frozen=True)
class Response:
    """One answer: its text stream ("" where there is none) and its sound, or why there is none."""

    text: str = ""
    clip: Clip | None = None
    failed: str | None = None


class System(Protocol):
    """Answers every question `count` times."""

    def respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """Responses [n questions][count].

        Raises:
            BudgetError: the budget ended; a later run goes on from there.
        """


def question_of_query(query: Query, folder: Path) -> SpokenQuestion:
    """A manifest's query as a question."""
    return SpokenQuestion(query.id, folder / query.clip, query.transcript, query.text, query.style)


@dataclass(frozen=True)
class FolderSystem:
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


class EndpointSystem:
    """A model that hears and speaks, behind OpenAI-compatible audio chat."""

    def __init__(self, config: AudioChatConfig, cache: Path) -> None:
        self._chat = AudioChat(config, cache / "answers")

    def respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """As many at once as the endpoint has slots."""
        asked = [AudioChatRequest((read_clip(one.clip),), number) for one in questions for number in range(count)]
        said = [Response(one.text, one.clip, one.failed) for one in self._chat.complete_all(asked, on_progress)]
        return [said[start : start + count] for start in range(0, len(said), count)]


class PolicySystem:
    """A checkpoint of a policy, whatever its kind: it reads the sound and what a recogniser heard in it, as in training."""

    BATCH, TEMPERATURE, SEED = 32, 1.0, 0

    def __init__(self, folder: Path) -> None:
        from paras2s.policy.registry import load_policy

        self._policy = load_policy(folder)

    def respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """By the native sampler; every checkpoint gets the same seeds."""
        from paras2s.audio.text_embedding import embed_sentences
        from paras2s.policy.types import Sampling, Turn
        from paras2s.rollout.engine import NativeEngine, answer_seeds

        embed_sentences([question.transcript for question in questions])
        engine = NativeEngine(self._policy)
        sampling = Sampling(self.TEMPERATURE, self.TEMPERATURE, MAX_STEPS)
        found: list[list[Response]] = []
        for start in range(0, len(questions), self.BATCH):
            part = questions[start : start + self.BATCH]
            prompts = [self._policy.encode_prompt([Turn("user", one.transcript, read_clip(one.clip))]) for one in part]
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


class CascadeSystem:
    """A yardstick: an LLM writes the answer from the words, told the style or not, and a TTS speaks it in the tone it chose."""

    def __init__(self, config: CurationConfig, told_style: bool) -> None:
        self.config, self.told_style = config, told_style

    def respond(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """One text a question, `count` renderings; the cascade speaks without a tone, since it knows of none."""
        from paras2s.data_gen.curation.llm_calls import CurationLLM, WrittenAnswer
        from paras2s.data_gen.curation.text_filters import tone_instruction
        from paras2s.data_gen.curation.voices import Engines
        from paras2s.data_gen.tts.base import Line, synthesise_all

        asker = CurationLLM.open(self.config, lambda *_: None)
        values = [{"line": self._told(question)} for question in questions]
        plain = {"tones": tone_instruction(self.config.agent_tones)}
        written = asker.check("answers", asker.prompt("answer_system", "answer"), WrittenAnswer, values, plain)
        agent = self.config.agent
        lines, places = [], []
        for place, one in enumerate(written):
            if isinstance(one, WrittenAnswer):
                tone = one.tone if self.told_style else "neutral"
                manner = one.tone if self.told_style and agent.engine == "openai" else ""
                lines += [Line(one.answer, agent, tone, manner, take) for take in range(count)]
                places += [place] * count
        spoken = synthesise_all(Engines(self.config).of(agent), lines, self.config.cache_dir, on_progress)
        found: list[list[Response]] = [[] for _ in questions]
        for place, line, said in zip(places, lines, spoken, strict=True):
            sound = Response(line.text, said) if isinstance(said, Clip) else Response(line.text, failed=said.reason)
            found[place].append(sound)
        return [row or [Response(failed=str(written[place]))] * count for place, row in enumerate(found)]

    def _told(self, question: SpokenQuestion) -> dict[str, str]:
        if not self.told_style:
            return {"words": question.transcript}
        if question.text is None or question.style is None:
            raise ConfigError(f"{question.id}: the topline must be told words and style, and this query has no labels")
        return {"words": question.text, "spoken": question.style}
