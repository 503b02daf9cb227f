"""Systems that answer spoken questions: a folder of clips, an audio chat endpoint, a policy, and the two baseline systems.

The baselines are ParaS2S's (section 5.6): the cascade knows the words and nothing of the voice, the topline the words and the
true style. An LLM writes their answers and a TTS speaks them, or, offline, both come from the shipped scripts. A missing
answer has a reason, and is never silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paras2s.audio.clip import Clip, read_clip
from paras2s.clients.audio_chat import AudioChat, AudioChatRequest
from paras2s.configs.schema.curation import CurationConfig, load_curation
from paras2s.configs.schema.endpoints import AudioChatConfig, load_audio_chat
from paras2s.errors import AudioError, ConfigError
from paras2s.policy.registry import is_checkpoint
from paras2s.policy.types import SampleRequest
from paras2s.types import PastTurn, Query
from paras2s.utils.io import without_mac_files
from paras2s.utils.seeds import FirstStep, seed_of
from paras2s.utils.suggest import nearest_file

if TYPE_CHECKING:
    from paras2s.policy.base import Policy
    from paras2s.policy.types import Prompt, Sampling

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
CASCADE, TOPLINE = "cascade", "topline"
BASELINES = (CASCADE, TOPLINE)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SpokenQuestion:
    """One spoken question. A system may read `clip` and its ASR `transcript`; the labels after them are for baselines alone.

    `history` are the turns before it, their clips by absolute paths.
    """

    id: str
    clip: Path
    transcript: str
    text: str | None = None
    style: str | None = None
    category: str | None = None
    history: tuple[PastTurn, ...] = ()


@dataclass(frozen=True)
class Response:
    """One answer: its text stream ("" where there is none) and its sound, or why there is none.

    A policy that ended its answer before it began gives an empty clip and the reason.
    """

    text: str = ""
    clip: Clip | None = None
    failed: str | None = None

    @property
    def missing(self) -> str | None:
        """The reason why there is nothing to judge, or None."""
        return "no answer" if self.clip is None and not self.failed else self.failed


class System(Protocol):
    """Answers every question `count` times."""

    def answer(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """Return the responses [n questions, count].

        Raises:
            BudgetError: the budget ended; a later run goes on from there.
        """


def question_of_query(query: Query, folder: Path) -> SpokenQuestion:
    """Return a manifest's query as a question."""
    history = history_of(query, folder)
    return SpokenQuestion(query.id, folder / query.clip, query.transcript, query.text, query.style, query.category, history)


def history_of(query: Query, folder: Path) -> tuple[PastTurn, ...]:
    """Return the turns before a manifest's query, their clips by absolute paths."""
    return tuple(replace(turn, clip=turn.clip and str((folder / turn.clip).resolve())) for turn in query.history)


def histories_of(queries: Iterable[Query], folder: Path) -> dict[str, tuple[PastTurn, ...]]:
    """Return the turns before each query that has any, by its id."""
    return {query.id: history_of(query, folder) for query in queries if query.history}


def blind_name(id: str) -> str:
    """Return a question's name for a team that answers it: ids of the shipped scripts tell category and style."""
    return f"q-{seed_of('question', id):08x}{seed_of('question', id, 1):08x}"


def answer_names(name: str, count: int) -> list[str]:
    """Return the names, without a suffix, of the answers to a question of this name."""
    return [name] if count == 1 else [f"{name}-{number}" for number in range(count)]


def find_clip(folder: Path, name: str) -> Path | None:
    """Return the clip NAME.wav of a folder, or of another known suffix, or None."""
    return next((path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()), None)


def open_system(spec: str, curation: Path | None, cache_dir: Path) -> System:
    """Return a system by its spec: `cascade`, `topline`, an endpoint's YAML, a checkpoint's folder, or a folder of clips.

    Raises:
        ConfigError: it is none of these, or a baseline without a curation's config.
    """
    if spec in BASELINES:
        return LLMBaseline(_curation_of(spec, curation), knows_style=spec == TOPLINE)
    path = Path(spec)
    if path.suffix in (".yaml", ".yml"):
        return EndpointSystem(load_audio_chat(path), cache_dir)
    if is_checkpoint(path / "aligned") and not is_checkpoint(path):
        # A run's folder stands for the policy that it trained.
        path = path / "aligned"
    if is_checkpoint(path):
        from paras2s.policy.registry import load_policy

        return PolicySystem(load_policy(path))
    if path.is_dir():
        return FolderSystem(path)
    known = f"no folder, no YAML of an endpoint, and neither {' nor '.join(BASELINES)}"
    raise ConfigError(f"--system: {spec!r} is {known}{nearest_file(path)}")


def _curation_of(baseline: str, curation: Path | None) -> CurationConfig:
    if curation is None:
        raise ConfigError(f"--curation: the {baseline} needs a curation's YAML: its tester writes, its agent speaks")
    return load_curation(curation)


def answered_folder(spec: str) -> FolderSystem:
    """Return a folder of finished answers, for an estimate. Raises ConfigError: the system is still to answer."""
    if not is_finished(spec):
        raise ConfigError(f"--estimate: {spec} is still to answer; what judging costs is known of a folder of answers")
    return FolderSystem(Path(spec))


def is_finished(spec: str) -> bool:
    """Return whether a system is a folder of finished clips."""
    path = Path(spec)
    return path.is_dir() and not is_checkpoint(path) and not is_checkpoint(path / "aligned")


def fingerprint(spec: str, curation: Path | None = None) -> list[Any]:
    """Return a system's identity: an endpoint's model and settings, a baseline's curation, a folder's file names, sizes, times.

    The path as it was typed is no part of it.

    Raises:
        ConfigError: it is no system.
    """
    path = Path(spec)
    if spec in BASELINES:
        return [spec, _curation_of(spec, curation).model_dump(mode="json", exclude={"cache_dir"})]
    if path.is_file() and path.suffix in (".yaml", ".yml"):
        return [load_audio_chat(path).model_dump(include={"base_url", "model", "voice", "system", "temperature"})]
    if not path.is_dir():
        raise ConfigError(f"--system: {spec!r} is no folder and no YAML of an endpoint")
    files = without_mac_files(clip for clip in path.iterdir() if clip.is_file())
    return [[clip.name, clip.stat().st_size, clip.stat().st_mtime_ns] for clip in files]


@dataclass(frozen=True)
class FolderSystem:
    """Clips that another program made: ID.wav, or ID-0.wav, ID-1.wav and so on where there are several answers.

    In place of the question's id, a file may have its `blind_name`.
    """

    folder: Path

    def answer(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """Read every clip; a missing or broken clip is a reason.

        Raises:
            ConfigError: no clip can be read.
        """
        responses = []
        # A missing file is named as the others of the folder are.
        blind = any(
            find_clip(self.folder, name) for question in questions for name in answer_names(blind_name(question.id), count)
        )
        for number, question in enumerate(questions, 1):
            names = zip(answer_names(question.id, count), answer_names(blind_name(question.id), count), strict=True)
            responses.append([self._read(name, other, blind) for name, other in names])
            on_progress(number, len(questions))
        if all(response.failed for row in responses for response in row):
            raise ConfigError(
                f"{self.folder}: holds no answer to any of these {len(questions)} questions; expected files such as "
                f"{questions[0].id}.wav, or {blind_name(questions[0].id)}.wav after `bench template`"
            )
        return responses

    def _read(self, name: str, other: str, blind: bool) -> Response:
        path = find_clip(self.folder, name) or find_clip(self.folder, other)
        if path is None:
            return Response(failed=f"no answer: {self.folder / (other if blind else name)}.wav is missing")
        try:
            return Response(clip=read_clip(path))
        except AudioError as error:
            return Response(failed=str(error))


class EndpointSystem:
    """A speech-to-speech model behind OpenAI-compatible audio chat."""

    def __init__(self, config: AudioChatConfig, cache: Path) -> None:
        self._chat = AudioChat(config, cache / "answers")

    def answer(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """Send as many requests at once as the endpoint has slots.

        Raises:
            ConfigError: a turn before a question is not of the kind that an endpoint is given.
        """
        requests = [AudioChatRequest(_chat_turns(question), number) for question in questions for number in range(count)]
        turns = [Response(turn.text, turn.clip, turn.failed) for turn in self._chat.complete_all(requests, on_progress)]
        return [turns[start : start + count] for start in range(0, len(turns), count)]


def _chat_turns(question: SpokenQuestion) -> tuple[str | Clip, ...]:
    turns: list[str | Clip] = []
    for number, turn in enumerate(question.history):
        if turn.speaker == "assistant" and turn.text:
            turns.append(turn.text)
        elif turn.speaker == "user" and turn.clip:
            turns.append(read_clip(Path(turn.clip)))
        else:
            lacks = "words" if turn.speaker == "assistant" else "clip"
            raise ConfigError(
                f"question {question.id}: turns.{number} of its history is the {turn.speaker}'s and has no {lacks}; add it: an "
                "endpoint hears the user and reads the assistant"
            )
    return (*turns, read_clip(question.clip))


def _prompts_from_clips(policy: Policy, questions: Sequence[SpokenQuestion]) -> list[Prompt]:
    from paras2s.policy.types import Turn

    def turns(question: SpokenQuestion) -> list[Turn]:
        past = [Turn(turn.speaker, turn.text, read_clip(Path(turn.clip)) if turn.clip else None) for turn in question.history]
        return [*past, Turn("user", question.transcript, read_clip(question.clip))]

    return [policy.encode_prompt(turns(question)) for question in questions]


@dataclass(frozen=True)
class PolicySystem:
    """A policy, sampled by the native engine; every policy gets the same seeds. It reads the sound and its ASR transcript.

    `sampling` None: as its checkpoint says (`Policy.sampling`). `prompts` makes prompts of questions where they are not to be
    made from the clips. `first` is the place of the first question among all, where they are
    asked in parts: it shifts the seeds.
    """

    policy: Policy
    seed: int = 0
    sampling: Sampling | None = None
    prompts: Callable[[Policy, Sequence[SpokenQuestion]], list[Prompt]] = _prompts_from_clips
    first: int = 0

    BATCH = 32

    def answer(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """Sample the responses in batches of questions."""
        from paras2s.audio.text_embedding import embed_sentences
        from paras2s.rollout.engine import NativeEngine, answer_seeds

        embed_sentences([question.transcript for question in questions])
        engine = NativeEngine(self.policy)
        sampling = self.sampling or self.policy.sampling
        responses: list[list[Response]] = []
        for start in range(0, len(questions), self.BATCH):
            batch = questions[start : start + self.BATCH]
            seeds = answer_seeds(self.seed, FirstStep.BENCHMARK + self.first + start, range(len(batch)), count)
            prompts = self.prompts(self.policy, batch)
            for rollout in engine.generate([prompt.id for prompt in batch], SampleRequest(prompts, seeds, sampling)):
                row = zip(rollout.texts, rollout.waves, strict=True)
                responses.append([_sampled(text, Clip(wave, rollout.sample_rate_hz)) for text, wave in row])
            on_progress(len(responses), len(questions))
        return responses


def _sampled(text: str, clip: Clip) -> Response:
    return Response(text, clip, None if len(clip.samples) else "the policy ended its answer before it began")


@dataclass(frozen=True)
class LLMBaseline:
    """The cascade or the topline at scale: an LLM writes the answer from the words, and for the topline from the style as
    well; a TTS speaks it, the topline's in the tone that the LLM chose.
    """

    config: CurationConfig
    knows_style: bool

    def answer(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """Write a text for each question and speak it `count` times.

        Raises:
            ConfigError: a question has turns before it.
        """
        if behind := [question.id for question in questions if question.history]:
            name = TOPLINE if self.knows_style else CASCADE
            raise ConfigError(f"{name}: answers one question, and {behind[0]} has turns before it; leave the baseline out")
        from paras2s.data_gen.curation.llm_calls import CurationLLM, WrittenAnswer
        from paras2s.data_gen.curation.text_filters import tone_instruction
        from paras2s.data_gen.curation.voices import Engines
        from paras2s.data_gen.tts.base import Line, synthesise_all

        llm = CurationLLM.open(self.config, lambda *_: None)
        values = [{"line": self._line(question)} for question in questions]
        plain = {"tones": tone_instruction(self.config.agent_tones)}
        written = llm.check("answers", llm.prompt("answer_system", "answer"), WrittenAnswer, values, plain)
        agent = self.config.agent
        lines, places = [], []
        for index, answer in enumerate(written):
            if isinstance(answer, WrittenAnswer):
                tone = answer.tone if self.knows_style else "neutral"
                manner = answer.tone if self.knows_style and agent.engine == "openai" else ""
                lines += [Line(answer.answer, agent, tone, manner, take) for take in range(count)]
                places += [index] * count
        spoken = synthesise_all(Engines(self.config).of(agent), lines, self.config.cache_dir, on_progress)
        responses: list[list[Response]] = [[] for _ in questions]
        for index, line, made in zip(places, lines, spoken, strict=True):
            sound = Response(line.text, made) if isinstance(made, Clip) else Response(line.text, failed=made.reason)
            responses[index].append(sound)
        return [row or [Response(failed=str(written[index]))] * count for index, row in enumerate(responses)]

    def _line(self, question: SpokenQuestion) -> dict[str, str]:
        if not self.knows_style:
            return {"words": question.transcript}
        if question.text is None or question.style is None:
            raise ConfigError(f"{question.id}: the topline needs the true words and style, and this query has no labels")
        return {"words": question.text, "spoken": question.style}
