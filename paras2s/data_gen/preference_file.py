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
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paras2s.errors import DataError, first_problem
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
    """A row: its line, its question's clip and words, and its answers: the chosen and the rejected one, or one with a label."""

    line: int
    question: str
    words: str | None
    answers: tuple[RecordedAnswer, ...]

    @property
    def is_pair(self) -> bool:
        """Whether it has two answers."""
        return len(self.answers) == 2

    @property
    def clips(self) -> tuple[str, ...]:
        """Its clips: the question's first."""
        return (self.question, *(answer.clip for answer in self.answers))


def read_preferences(path: Path) -> list[PreferenceRow]:
    """Read a file of preferences without decoding its clips. Raises DataError: names file:line, key, and what to do."""
    rows = [_checked(f"{path}:{line}", line, values, path.parent) for line, values in read_rows(path)]
    if not rows:
        raise DataError(f"{path}: holds no rows; `paras2s rollouts RUN --preferences OUT` writes some")
    return rows


def _checked(name: str, line: int, values: Any, folder: Path) -> PreferenceRow:
    try:
        row = _Row.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{name}: {first_problem(error)}") from error
    question, words = _question(name, row)
    answers = _answers(name, row)
    for key, clip in (("audios", question), *((answer[0], answer[1].clip) for answer in answers)):
        if not os.path.isfile(folder / clip):
            raise DataError(f"{name}: {key}: {clip}: no such file in {folder}")
    if len(answers) == 2:
        chosen, rejected = (folder / answer.clip for _, answer in answers)
        if filecmp.cmp(chosen, rejected, shallow=False):
            raise DataError(
                f"{name}: rejected_audio: {rejected.name} is the same sound as the chosen answer's; give another answer, or "
                "leave the row out"
            )
    return PreferenceRow(line, question, words, tuple(answer for _, answer in answers))


def _question(name: str, row: _Row) -> tuple[str, str | None]:
    """Return clip and words of the question of a row. Raises DataError: its dialogue is not one spoken question."""
    if row.messages[-1].role == "assistant":
        raise DataError(
            f"{name}: messages: the last turn is the assistant's; end with the user's, and give the answer as sft_target_text "
            "and sft_target_audio (or answer_text, answer_audio and label)"
        )
    if len(row.messages) > 1 or row.messages[0].role != "user":
        roles = ", ".join(turn.role for turn in row.messages)
        raise DataError(f"{name}: messages: {roles}; policies are trained on one spoken question: give the user's turn alone")
    words = row.messages[0].content
    for tag in AUDIO_TAGS:
        words = words.replace(tag, "")
    words = words.strip()
    if len(row.audios) != 1:
        raise DataError(f"{name}: audios: {len(row.audios)} clips; give the question's, and that alone")
    if words and words != (row.question_text or "").strip():
        raise DataError(
            f"{name}: messages: has words beside the clip ({words[:40]!r}); leave {AUDIO_TAGS[1]} alone, and give the words "
            "that are spoken as question_text"
        )
    return row.audios[0], row.question_text


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


def _common(id: str, question: str, words: str) -> dict[str, Any]:
    return {
        "id": id,
        "messages": _turn("user", AUDIO_TAGS[1]),
        "audios": [question],
        "task_type": "s2s",
        "question_text": words,
        "prompt": _turn("user", words),
    }


def pair_row(
    id: str, question: str, words: str, chosen: tuple[str, str], rejected: tuple[str, str], **more: Any
) -> dict[str, Any]:
    """Return the row of a pair; an answer is its clip, relative to the file, and its words."""
    return _common(id, question, words) | {
        "sft_target_audio": chosen[0],
        "sft_target_text": chosen[1],
        "rejected_audio": rejected[0],
        "rejected_text": rejected[1],
        "chosen": _turn("assistant", chosen[1]),
        "rejected": _turn("assistant", rejected[1]),
        **more,
    }


def labelled_row(id: str, question: str, words: str, answer: tuple[str, str], good: bool, **more: Any) -> dict[str, Any]:
    """Return the row of an answer with a label."""
    return _common(id, question, words) | {
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
