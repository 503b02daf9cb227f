"""The interface of every judge, and the spoken questions and answers that a judge is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paras2s.audio.asr import EMBEDDED, transcribe
from paras2s.audio.clip import Clip, read_clip
from paras2s.errors import BudgetError, JudgeError
from paras2s.reward.judges.votes import POINTS, prefer
from paras2s.types import Blueprint, PairLabel, Preference, Unscored, Verdict

if TYPE_CHECKING:
    from paras2s.clients.chat import LLMClient, Request

MAX_CLIP_S = 600.0
# Alternatives that many judges take: words are transcribed where they are not given.
QUESTION_WORDS, ANSWER_WORDS = "question.text or question.audio", "answer.audio or answer.text"
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".m4a", ".opus")
# The longest file name; a longer text is never looked for on disk.
MAX_NAME_BYTES = 250

Progress = Callable[[int, int], None]
Scored = Verdict | Unscored | BudgetError
Preferred = Preference | Unscored | BudgetError


@dataclass(frozen=True)
class Utterance:
    """A spoken or written turn: its clip, its text, or both. `style` is the speaking style, where known (ParaS2S's s_i).

    `history` are the turns of the dialogue before it, each with its speaker, "user" or "assistant".
    """

    clip: Clip | None = None
    text: str | None = None
    style: str | None = None
    history: tuple[tuple[str, Utterance], ...] = ()

    @property
    def said_before(self) -> list[dict[str, str]]:
        """The words of the history, for a judge that reads them."""
        return [{"speaker": speaker, "words": said.text or "(not transcribed)"} for speaker, said in self.history]


@dataclass(frozen=True)
class Pair:
    """An instruction and two answers to it; `words` are the answers' transcripts, where they are known."""

    instruction: Utterance
    first: Clip
    second: Clip
    words: tuple[str, str] | None = None


@dataclass(frozen=True)
class Exchange:
    """A question and one answer.

    `words` is the answer's transcript, `blueprint` its measurements, where they exist; `task_inputs` are the texts that a
    task's prompt names.
    """

    question: Utterance
    answer: Clip
    words: str | None = None
    blueprint: Blueprint | None = None
    task_inputs: Mapping[str, str] = field(default_factory=dict)


class Judge:
    """Base class of all judges. A subclass implements `score_batch`, `compare_batch`, or both.

    `name` identifies the judge and its model, `version` its settings, `prompt_hash` the prompt or the rules for single
    answers; all are stored with every verdict. A judge with `scores_alone` scores each answer without the other one, so the
    order of a pair cannot change its preference. `needs_question_audio` tells whether the question's sound matters beside its
    words and style, `reads_history` whether it judges an answer by the turns before the question too. `needs` are the parts of
    a question and an answer without which it cannot score, by their names in the protocol of a reward server. `client` is None
    for a judge that runs on this machine.
    """

    name: str
    version: str
    prompt_hash: str = ""
    scores_alone: bool = False
    needs_question_audio: bool = True
    reads_history: bool = False
    needs: tuple[str, ...] = ("answer.audio",)
    client: LLMClient | None = None

    @property
    def fingerprint(self) -> str:
        """Changes with everything that may change a verdict: settings, prompts, weights."""
        return self.version

    @property
    def label(self) -> str:
        """Name, version and prompt: what a table's rows and a reward model say of the judge of their scores."""
        return f"{self.name}/{self.version}/{self.prompt_hash}"

    def exchange_of(self, text: str | None, style: str | None, question: Path | None, answer: Clip) -> Exchange:
        """Return a labelled question and an answer as this judge is to be given them."""
        clip = read_clip(question) if question is not None and self.needs_question_audio else None
        return Exchange(Utterance(clip, text, style), answer)

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Score answers, in order. An answer that cannot be judged is Unscored, one beyond the budget a BudgetError.

        Raises:
            JudgeError: this judge only compares pairs.
        """
        raise JudgeError(f"{self.name} compares two answers and cannot score a single one")

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Compare pairs, in order; by default by the scores of both answers, where equal scores tie (AudioJudge, appendix E).

        Raises:
            JudgeError: this judge only scores single answers on a scale that pairs cannot be compared by.
        """
        scores = self.score_batch([side for pair in pairs for side in sides_of(pair)])
        if on_progress:
            on_progress(len(pairs), len(pairs))
        return [self.prefer(*two) for two in zip(scores[::2], scores[1::2], strict=True)]

    def requests(self, items: Sequence[Pair | Exchange]) -> list[list[Request] | Unscored]:
        """Return the LLM calls that each item takes; none for a judge that runs on this machine."""
        return [[] for _ in items]

    def score(
        self,
        question: str | Path | Clip | Utterance,
        answer: str | Path | Clip,
        style: str | None = None,
        task_inputs: Mapping[str, str] | None = None,
    ) -> Verdict | Unscored:
        """Score one answer.

        Args:
            question: an audio file, a clip, or the text of the question.
            answer: an audio file or a clip.
            style: how the question was spoken, for judges that read it.
            task_inputs: texts that the prompt of an audio judge's task names.

        Raises:
            BudgetError: the budget does not allow the call. AudioError: a file cannot be read.
        """
        exchange = Exchange(as_utterance(question, style), as_clip(answer), task_inputs=task_inputs or {})
        verdict = self.score_batch([exchange])[0]
        if isinstance(verdict, BudgetError):
            raise verdict
        return verdict

    def compare(
        self,
        first: str | Path | Clip,
        second: str | Path | Clip,
        question: str | Path | Clip | Utterance | None = None,
        style: str | None = None,
    ) -> Preference | Unscored:
        """Compare two answers to one question.

        Raises:
            BudgetError: the budget does not allow the call. AudioError: a file cannot be read.
        """
        instruction = Utterance() if question is None else as_utterance(question, style)
        preference = self.compare_batch([Pair(instruction, as_clip(first), as_clip(second))])[0]
        if isinstance(preference, BudgetError):
            raise preference
        return preference

    def prefer(self, first: Scored, second: Scored) -> Preferred:
        """Return the preference that two scores make: the higher one wins, equal ones tie."""
        if not isinstance(first, Verdict):
            return first
        if not isinstance(second, Verdict):
            return second
        reason = f"scores {first.score:.3f} and {second.score:.3f}"
        return preference_of(self.name, self.version, "", "score", prefer(first.score, second.score), reason)


def as_clip(source: str | Path | Clip) -> Clip:
    """Return a clip as it is, or read from a file.

    Raises:
        AudioError: the file cannot be read, or is longer than 10 minutes.
    """
    return source if isinstance(source, Clip) else read_clip(Path(source), max_duration_s=MAX_CLIP_S)


def as_utterance(source: str | Path | Clip | Utterance, style: str | None = None) -> Utterance:
    """Return a turn from a clip, from an audio file, or from a text that names no file.

    Raises:
        AudioError: the name has the suffix of an audio file, and there is no such file.
    """
    if isinstance(source, Utterance):
        return source
    if isinstance(source, Clip):
        return Utterance(clip=source, style=style)
    if names_file(source):
        return Utterance(clip=as_clip(source), style=style)
    return Utterance(text=str(source), style=style)


def names_file(source: str | Path) -> bool:
    """Return whether a question is given as an audio file, and not in writing."""
    short = len(str(source).encode()) < MAX_NAME_BYTES
    return Path(source).suffix.lower() in AUDIO_SUFFIXES or (short and Path(source).is_file())


def with_words(exchanges: Sequence[Exchange], model: str = EMBEDDED) -> list[Exchange]:
    """Return exchanges whose questions have words: a question given as sound alone is transcribed, each clip once."""
    clips = {
        exchange.question.clip.digest: exchange.question.clip
        for exchange in exchanges
        if exchange.question.text is None and exchange.question.clip is not None
    }
    words = dict(zip(clips, transcribe([*clips.values()], model), strict=True)) if clips else {}
    return [
        replace(exchange, question=replace(exchange.question, text=words[exchange.question.clip.digest].text))
        if exchange.question.text is None and exchange.question.clip is not None
        else exchange
        for exchange in exchanges
    ]


def sides_of(pair: Pair) -> tuple[Exchange, Exchange]:
    """Return both answers of a pair as single exchanges, with their transcripts where these are known."""
    first, second = pair.words or (None, None)
    return Exchange(pair.instruction, pair.first, first), Exchange(pair.instruction, pair.second, second)


def preference_of(
    judge: str, version: str, prompt_hash: str, task: str, label: PairLabel, reason: str,
    cost_usd: float | None = 0.0, latency_s: float = 0.0,
) -> Preference:  # fmt: skip
    """Return the preference of a judge that gave one label."""
    points = POINTS[label]
    return Preference(
        judge, version, prompt_hash, task, label, points, (label,), (points,), None, None, reason, "",
        cost_usd=cost_usd, latency_s=latency_s,
    )  # fmt: skip
