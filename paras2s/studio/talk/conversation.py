"""A conversation with two checkpoints: each question, both answers, the verdicts of judges, and votes kept as preferences."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paras2s.audio.asr import transcribe
from paras2s.audio.clip import Clip, encode_clip
from paras2s.audio.synthesis import Style, analyse, speak_plain, synthesise
from paras2s.data_gen.preference_file import FILE, pair_row
from paras2s.data_gen.scripted.tones import KIND_OF_STYLE
from paras2s.data_gen.tts.piper_world import SPEAKERS, USER_STYLES
from paras2s.errors import AudioError, DataError
from paras2s.policy.base import Policy
from paras2s.policy.types import SampleRequest, Turn
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.blueprint.parallel import measure_answers
from paras2s.reward.judges.base import Exchange, Judge, Scored, Utterance
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.rollout.demonstrations import tokens_file, write_target
from paras2s.rollout.engine import NativeEngine
from paras2s.types import Blueprint, Rollout
from paras2s.utils.io import append_jsonl, write_bytes
from paras2s.utils.seeds import seed_of

# Whisper hears thirty seconds at once, and the questions of training take three.
MAX_QUESTION_S = 30.0
MAX_TYPED_CHARACTERS = 200
# A recording with a lower peak is silence.
SILENT_PEAK = 1e-3
# Measured for people, beside what the rubric reads.
EXTRACTORS = ("pitch", "loudness")
# The last questions are held with their sound; earlier ones leave the page.
HELD = 100
CLIPS = "clips"


@dataclass(frozen=True)
class Side:
    """A checkpoint that answers, by the name that is shown."""

    name: str
    policy: Policy


@dataclass(frozen=True)
class TalkQuestion:
    """A spoken question, the style that it is said in, and its words as they were typed; None if unknown."""

    clip: Clip
    style: str | None = None
    words: str | None = None


@dataclass(frozen=True)
class SideAnswer:
    """The answer of one side, what is measured on it, and each judge's verdict; an answer without sound has neither."""

    side: str
    rollout: Rollout
    blueprint: Blueprint | None
    verdicts: tuple[tuple[str, Scored], ...]

    @property
    def text(self) -> str:
        """Its text stream."""
        return self.rollout.texts[0]

    @property
    def clip(self) -> Clip:
        """Its sound, of 0 samples where the policy said nothing."""
        return Clip(self.rollout.waves[0], self.rollout.sample_rate_hz)


@dataclass(frozen=True)
class Answered:
    """A question with both answers as the page shows them, its transcript by ASR, and the preferred answer.

    `blind`: the person has not seen which side gave which answer, or had not before the vote.
    """

    number: int
    question: TalkQuestion
    transcript: str
    answers: tuple[SideAnswer, SideAnswer]
    preferred: int | None = None
    blind: bool = True

    @property
    def named(self) -> bool:
        """Whether the page says which side gave which answer."""
        return not self.blind or self.preferred is not None or bool(self.no_vote)

    @property
    def no_vote(self) -> str:
        """Why neither answer can be preferred; "" if one can."""
        if any(not len(answer.clip.samples) for answer in self.answers):
            return "An answer without sound is no preference."
        first, second = (encode_clip(answer.clip) for answer in self.answers)
        return "Both answers sound the same." if first == second else ""


class Conversation:
    """Two sides that answer one question after another, and their judges; votes are rows of `votes`/preferences.jsonl."""

    def __init__(self, sides: Sequence[Side], judges: Sequence[Judge], tone: ToneClassifier | None, votes: Path) -> None:
        self.sides, self.judges, self.votes = tuple(sides), tuple(judges), votes
        self.history: dict[int, Answered] = {}
        self._tone, self._lock, self._count = tone, threading.Lock(), 0

    def ask(self, question: TalkQuestion, blind: bool = True) -> Answered:
        """Let both sides answer a question, and judge them. Raises AudioError: silence. PolicyError. AssetError: no ASR.

        `blind`: the answers are in random order, without the names of their sides until a vote, or until `show_names`.
        """
        if float(np.abs(question.clip.samples).max(initial=0.0)) < SILENT_PEAK:
            raise AudioError("the recording is silent; check the microphone, or choose another file")
        with self._lock:
            transcript, number = transcribe([question.clip])[0].text.strip(), self._count
            turns = [Turn("user", transcript, question.clip)]
            # Two answers of one checkpoint would be the same by the same seed.
            rollouts = [_answer(side.policy, turns, 2 * number + index) for index, side in enumerate(self.sides)]
            both = zip(self.sides, rollouts, strict=True)
            first, second = (self._judged(side, question, transcript, rollout) for side, rollout in both)
            answers = (second, first) if blind and secrets.randbelow(2) else (first, second)
            answered = self.history[number] = Answered(number, question, transcript, answers, blind=blind)
            self._count += 1
            self.history.pop(number - HELD, None)
        return answered

    def find(self, number: int) -> Answered:
        """Return a question by its number. Raises DataError: it is not held."""
        if number not in self.history:
            raise DataError("this question is held no longer; ask it again")
        return self.history[number]

    def show_names(self, number: int) -> Answered:
        """Show which side gave which answer; a later vote on it is not blind. Raises DataError: no question."""
        with self._lock:
            answered = self.find(number)
            if not answered.named:
                answered = self.history[number] = replace(answered, blind=False)
        return answered

    def vote(self, number: int, better: int) -> Answered:
        """Keep the vote that answer `better` (0 or 1) wins. Raises DataError: no question, or already voted. StorageError."""
        with self._lock:
            answered = self.find(number)
            if answered.preferred is not None:
                raise DataError("this question has your vote already")
            if answered.no_vote:
                raise DataError(answered.no_vote)
            keep_vote(self.votes, answered, better)
            answered = self.history[number] = replace(answered, preferred=better)
        return answered

    def _judged(self, side: Side, question: TalkQuestion, transcript: str, rollout: Rollout) -> SideAnswer:
        clip = Clip(rollout.waves[0], rollout.sample_rate_hz)
        if not len(clip.samples):
            return SideAnswer(side.name, rollout, None, ())
        read = None if self._tone is None else measure_answers([clip], self._tone)[0]
        (blueprint,) = build_blueprints([clip], make_extractors(EXTRACTORS))
        if read is not None:
            blueprint = replace(blueprint, fields={**read.fields, **blueprint.fields})
        spoken = Utterance(question.clip, question.words or transcript, question.style)
        verdicts = []
        for judge in self.judges:
            known = read if isinstance(judge, RubricJudge) else None
            verdicts.append((judge.name, judge.score_batch([Exchange(spoken, clip, blueprint=known)])[0]))
        return SideAnswer(side.name, rollout, blueprint, tuple(verdicts))


def _answer(policy: Policy, turns: Sequence[Turn], seed: int) -> Rollout:
    request = SampleRequest([policy.encode_prompt(turns)], [[seed]], policy.sampling)
    return NativeEngine(policy).generate(["question"], request)[0]


def keep_vote(folder: Path, answered: Answered, better: int) -> None:
    """Add a preference to a folder's file, with its clips and the policies' sampled tokens. Raises StorageError: disk full."""
    question, answers = encode_clip(answered.question.clip), [encode_clip(answer.clip) for answer in answered.answers]
    id = hashlib.sha256(b"".join([question, *answers])).hexdigest()[:16]
    name = f"{CLIPS}/{id}-question.wav"
    write_bytes(folder / name, question)
    named = []
    for index, (answer, wave) in enumerate(zip(answered.answers, answers, strict=True)):
        clip = f"{CLIPS}/{id}-{index + 1}.wav"
        write_bytes(folder / clip, wave)
        write_target(tokens_file(folder / clip), answer.rollout.blocks, code_format=answer.rollout.code_format)
        named.append((clip, answer.text))
    chosen, rejected = better, 1 - better
    row = pair_row(
        id,
        name,
        answered.transcript,
        named[chosen],
        named[rejected],
        style=answered.question.style,
        chosen_system=answered.answers[chosen].side,
        rejected_system=answered.answers[rejected].side,
        blind=answered.blind,
    )
    append_jsonl(folder / FILE, row)


def speak(text: str, style: str | None) -> TalkQuestion:
    """Speak typed words in a style by the embedded world's voices; style None: plainly.

    Raises:
        DataError: nothing that an English voice can say, too much, or another style. AssetError: Piper is not installed.
    """
    words = " ".join(text.split())
    if re.search("[A-Za-z0-9]", words) is None:
        raise DataError("type a question in English words: the voice of this world speaks no other")
    if len(words) > MAX_TYPED_CHARACTERS:
        raise DataError(f"{len(words)} characters are too many; ask in at most {MAX_TYPED_CHARACTERS}")
    if style is not None and style not in USER_STYLES:
        raise DataError(f"style {style!r}: this world's voices speak {', '.join(USER_STYLES)}")
    speaker = SPEAKERS["test"][KIND_OF_STYLE.get(style or "", "male")][0]
    shape = Style() if style is None else USER_STYLES[style]
    return TalkQuestion(
        synthesise(analyse(speak_plain([words])[0]), speaker, shape, seed_of("talk", words, style)), style, words
    )
