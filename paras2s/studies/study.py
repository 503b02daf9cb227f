"""A study: the items that are played to annotators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paras2s.errors import DataError, checking, message_of
from paras2s.studies.forms import Kind, load_forms
from paras2s.utils.io import read_rows

STUDY_VERSION = 1
CLIP_SUFFIXES = {".wav": "audio/wav", ".flac": "audio/flac", ".ogg": "audio/ogg", ".opus": "audio/ogg", ".mp3": "audio/mpeg"}


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Answer(_Record):
    """One answer: the system that gave it, its clip, and judges' scores (a number, or why there is none) by judge."""

    system: str = Field(min_length=1)
    clip: str = Field(min_length=1)
    scores: dict[str, float | str] = {}


class StudyItem(_Record):
    """An item of a study. Annotators see `question_text` and `context`, and hear `question` and the answers.

    `id` is the question's; with the systems it names the item. `instruction_id` is the cluster of items that belong together,
    the id where none is given. `gold` holds the values that a careful annotator chooses: such an item is a check of the
    annotator, and counts nowhere else. Of takes, `picked` is the number of the one in use, from 0. A `retired` item is no
    longer shown.
    """

    id: str = Field(min_length=1)
    answers: tuple[Answer, ...] = Field(min_length=1)
    question: str | None = None
    question_text: str = ""
    context: str = ""
    category: str = "all"
    instruction_id: str = ""
    gold: dict[str, str] = {}
    picked: int | None = None
    retired: bool = False

    @property
    def cluster(self) -> str:
        """The name of its cluster."""
        return self.instruction_id or self.id

    @property
    def key(self) -> tuple[str, ...]:
        """The names that tell it from every other item."""
        return (self.id, *(answer.system for answer in self.answers))

    def clips(self) -> dict[str, str]:
        """Return its clips by the name that a page gives them."""
        answers = {str(number): answer.clip for number, answer in enumerate(self.answers, 1)}
        return answers if self.question is None else {"question": self.question, **answers}


class Study(_Record):
    """A study's description; the clips' names are relative to its folder."""

    kind: Kind
    title: str = Field(min_length=1, max_length=200)
    seed: int
    items: tuple[StudyItem, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Study:
        form = load_forms()[self.kind]
        seen: set[tuple[str, ...]] = set()
        for item in self.items:
            if not form.takes and len(item.answers) != form.answers:
                raise ValueError(f"item {item.id}: has {len(item.answers)} answers; kind {self.kind} has {form.answers}")
            if item.key in seen:
                raise ValueError(f"item {item.id}: occurs twice for {' and '.join(item.key[1:])}")
            seen.add(item.key)
            for name, value in item.gold.items():
                question = form.question(name)
                if question is None or value not in question.values:
                    raise ValueError(f"item {item.id}: gold: {name}: {value!r} is no answer of this kind of study")
        return self


def as_study(kind: Kind, title: str, seed: int, items: Sequence[StudyItem]) -> Study:
    """Check the values and return the study. Raises DataError: what is wrong with an item."""
    try:
        return Study(kind=kind, title=title, seed=seed, items=tuple(items))
    except ValidationError as error:
        raise DataError(f"study: {message_of(error.errors()[0])}") from error


def read_items(path: Path) -> tuple[list[StudyItem], Path]:
    """Read the items of a JSONL file, and their clips' folder. Raises DataError: missing or wrong; names file:line and key."""
    items = []
    for number, values in read_rows(path):
        with checking(f"{path}:{number}"):
            items.append(StudyItem.model_validate_json(json.dumps(values)))
    if not items:
        raise DataError(f"{path}: holds no items")
    return items, path.parent


def clip_names(items: Iterable[StudyItem]) -> list[str]:
    """Return the clips of all items, each once."""
    return list(dict.fromkeys(name for item in items for name in item.clips().values()))


def with_clips(item: StudyItem, names: dict[str, str]) -> StudyItem:
    """Return the item with its clips renamed."""
    values: dict[str, Any] = item.model_dump()
    values["question"] = None if item.question is None else names[item.question]
    values["answers"] = [{**answer.model_dump(), "clip": names[answer.clip]} for answer in item.answers]
    return StudyItem.model_validate(values)
