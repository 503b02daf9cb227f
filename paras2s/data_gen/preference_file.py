"""Files of preferences: a row a spoken question with two answers, one chosen and one rejected, or one answer with a label.

A row has WavAlign's keys (`messages`, `audios`, `sft_target_text`, `sft_target_audio`, `rejected_text`, `rejected_audio`,
`question_text`), and those that TRL reads of a text model (`prompt`, `chosen`, `rejected`). An answer with a label has
`answer_text`, `answer_audio` and `label`, and TRL's `prompt` and `completion`. Clips are relative to the file's folder.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from paras2s.errors import DataError, checking
from paras2s.types import PastTurn
from paras2s.utils.io import read_rows, reading

FILE = "preferences.jsonl"
# How other trainers mark the place of a clip in a turn.
AUDIO_TAGS = ("<|audio|>", "<audio>")


class _Turn(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    role: str
    content: str = ""


class _Row(BaseModel):
    """A row as other trainers have it; what they add is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    messages: list[_Turn] = Field(min_length=1)
    audios: list[str]
    question_text: str | None = None
    sft_target_text: str | None = None
    sft_target_audio: str | None = None
    rejected_text: str | None = None
    rejected_audio: str | None = None
    answer_text: str | None = None
    answer_audio: str | None = None
    label: bool | None = None


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer of a row: its clip, relative to the file, its words (None: not given), and whether it is good."""

    clip: str
    text: str | None
    good: bool


@dataclass(frozen=True)
class PreferenceRow:
    """A row: its line, its question's clip and words, the turns before it, and its answers.

    These are the chosen and the rejected one, or one with a label.
    """

    line: int
    question: str
    words: str | None
    answers: tuple[RecordedAnswer, ...]
    history: tuple[PastTurn, ...] = ()

    @property
    def is_pair(self) -> bool:
        """Whether it has two answers."""
        return len(self.answers) == 2

    @property
    def clips(self) -> tuple[str, ...]:
        """Its clips: the question's first."""
        past = (turn.clip for turn in self.history if turn.clip is not None)
        return (self.question, *(answer.clip for answer in self.answers), *past)


def read_preferences(path: Path) -> list[PreferenceRow]:
    """Read a file of preferences without decoding its clips. Raises DataError: names file:line, key, and what to do."""
    rows = [_checked(f"{path}:{line}", line, values, path.parent) for line, values in read_rows(path)]
    if not rows:
        raise DataError(f"{path}: holds no rows; `paras2s rollouts RUN --preferences OUT` writes some")
    return rows


def _checked(name: str, line: int, values: Any, folder: Path) -> PreferenceRow:
    with checking(name):
        row = _Row.model_validate(values)
    history, question = _dialogue(name, row)
    answers = _answers(name, row)
    spoken = [("audios", turn.clip) for turn in history if turn.clip is not None]
    for key, clip in (*spoken, ("audios", question), *((answer[0], answer[1].clip) for answer in answers)):
        if not os.path.isfile(folder / clip):
            raise DataError(f"{name}: {key}: {clip}: no such file in {folder}")
    if len(answers) == 2:
        chosen, rejected = (folder / answer.clip for _, answer in answers)
        if filecmp.cmp(chosen, rejected, shallow=False):
            raise DataError(
                f"{name}: rejected_audio: {rejected.name} is the same sound as the chosen answer's; give another answer, or "
                "leave the row out"
            )
    return PreferenceRow(line, question, row.question_text, tuple(answer for _, answer in answers), history)


def _dialogue(name: str, row: _Row) -> tuple[tuple[PastTurn, ...], str]:
    """Return the turns before the question of a row, and its clip. A tag in a turn is the place of the next clip.

    Raises DataError: its dialogue does not end with one spoken question of the user.
    """
    if row.messages[-1].role == "assistant":
        raise DataError(
            f"{name}: messages: the last turn is the assistant's; end with the user's, and give the answer as sft_target_text "
            "and sft_target_audio (or answer_text, answer_audio and label)"
        )
    if strange := [turn.role for turn in row.messages if turn.role not in ("user", "assistant")]:
        raise DataError(f"{name}: messages: a turn of role {strange[0]!r}; give turns of user and assistant alone")
    *past, (words, _) = [_parts(turn.content) for turn in row.messages]
    expected = 1 + sum(count for _, count in past)
    if len(row.audios) != expected or any(count > 1 for _, count in past):
        raise DataError(
            f"{name}: audios: {len(row.audios)} clips, and messages have {expected} places; give the question's clip, and one "
            f"for each {AUDIO_TAGS[1]} in a turn before it, at most one a turn"
        )
    if words and words != (row.question_text or "").strip():
        raise DataError(
            f"{name}: messages: has words beside the clip ({words[:40]!r}); leave {AUDIO_TAGS[1]} alone, and give the words "
            "that are spoken as question_text"
        )
    clips, history = iter(row.audios), list[PastTurn]()
    for number, (turn, (said, count)) in enumerate(zip(row.messages, past, strict=False)):
        if not said and not count:
            raise DataError(f"{name}: messages.{number}: has neither words nor {AUDIO_TAGS[1]}; leave the turn out")
        speaker: Literal["user", "assistant"] = "user" if turn.role == "user" else "assistant"
        history.append(PastTurn(speaker, said, next(clips) if count else None))
    return tuple(history), row.audios[-1]


def _parts(content: str) -> tuple[str, int]:
    """Return the words of a turn, and the number of its clips."""
    count = sum(content.count(tag) for tag in AUDIO_TAGS)
    for tag in AUDIO_TAGS:
        content = content.replace(tag, "")
    return content.strip(), count


def _answers(name: str, row: _Row) -> list[tuple[str, RecordedAnswer]]:
    """Return a row's answers with the keys of their clips. Raises DataError: neither a pair nor a labelled answer."""
    if row.label is not None:
        if row.answer_audio is None:
            raise DataError(f"{name}: answer_audio: is missing, and label says whether that answer is good")
        return [("answer_audio", RecordedAnswer(row.answer_audio, row.answer_text, row.label))]
    if row.sft_target_audio is None:
        raise DataError(f"{name}: sft_target_audio: is missing; it is the chosen answer's clip")
    if row.rejected_audio is None:
        raise DataError(
            f"{name}: rejected_audio: is missing: the row has no rejected answer; add one, or give the answer a label "
            "(answer_audio, answer_text, label) for KTO"
        )
    chosen = RecordedAnswer(row.sft_target_audio, row.sft_target_text, True)
    rejected = RecordedAnswer(row.rejected_audio, row.rejected_text, False)
    return [("sft_target_audio", chosen), ("rejected_audio", rejected)]


@dataclass(frozen=True)
class SoundFacts:
    """Sample rate and length of a clip, by its header."""

    sample_rate_hz: int
    duration_s: float


def sound_facts(path: Path) -> SoundFacts:
    """Read the header of a clip. Raises DataError: it is no sound."""
    import soundfile

    with reading(path, "cannot be decoded as audio"):
        info = soundfile.info(os.fsencode(path))
    return SoundFacts(int(info.samplerate), float(info.duration))


# -- writing ----------------------------------------------------------------------------------------------------------


def _turn(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def _question(id: str, clip: str, words: str, history: Sequence[PastTurn]) -> dict[str, Any]:
    said = [(turn.speaker, f"{AUDIO_TAGS[1] if turn.clip else ''}{turn.text}", turn.text) for turn in history]
    said.append(("user", AUDIO_TAGS[1], words))
    return {
        "id": id,
        "messages": [turn for role, content, _ in said for turn in _turn(role, content)],
        "audios": [*(turn.clip for turn in history if turn.clip), clip],
        "task_type": "s2s",
        "question_text": words,
        "prompt": [turn for role, _, text in said for turn in _turn(role, text)],
    }


def pair_row(
    id: str, question: str, words: str, chosen: tuple[str, str], rejected: tuple[str, str],
    history: Sequence[PastTurn] = (), /, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the row of a pair; an answer is its clip, relative to the file, and its words."""
    return _question(id, question, words, history) | {
        "sft_target_audio": chosen[0],
        "sft_target_text": chosen[1],
        "rejected_audio": rejected[0],
        "rejected_text": rejected[1],
        "chosen": _turn("assistant", chosen[1]),
        "rejected": _turn("assistant", rejected[1]),
        **more,
    }


def labelled_row(
    id: str, question: str, words: str, answer: tuple[str, str], good: bool, history: Sequence[PastTurn] = (), /, **more: Any
) -> dict[str, Any]:
    """Return the row of an answer with a label."""
    return _question(id, question, words, history) | {
        "answer_audio": answer[0],
        "answer_text": answer[1],
        "completion": _turn("assistant", answer[1]),
        "label": good,
        **more,
    }


def without_words(rows: Sequence[PreferenceRow]) -> list[str]:
    """Return the clips whose words are not given, each once."""
    clips = [row.question for row in rows if row.words is None]
    clips += [answer.clip for row in rows for answer in row.answers if answer.text is None]
    return list(dict.fromkeys(clips))
