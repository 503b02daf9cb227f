"""A study: what is played to annotators. Made from a table of items, or from the benched systems of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paras2s.bench.results import AnswerRow, load_rows
from paras2s.errors import ConfigError, DataError
from paras2s.studio.annotation.forms import Kind, load_forms
from paras2s.utils.io import path_inside, read_jsonl
from paras2s.utils.seeds import seed_of

STUDY_VERSION = 1
CLIP_SUFFIXES = {".wav": "audio/wav", ".flac": "audio/flac", ".ogg": "audio/ogg", ".opus": "audio/ogg", ".mp3": "audio/mpeg"}


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Answer(_Record):
    """One answer: the system that gave it, its clip, and judges' scores (a number, or why there is none) by judge."""

    system: str = Field(min_length=1)
    clip: str = Field(min_length=1)
    scores: dict[str, float | str] = {}


class Item(_Record):
    """One item of a study. Annotators see `question_text` and `context`, and hear `question` and the answers.

    `id` is the question's; with the systems it names the item. `instruction_id` is the cluster of items that belong together,
    the id where none is given. `gold` holds the values that a careful annotator chooses: such an item is a check of the
    annotator, and counts nowhere else.
    """

    id: str = Field(min_length=1)
    answers: tuple[Answer, ...] = Field(min_length=1, max_length=2)
    question: str | None = None
    question_text: str = ""
    context: str = ""
    category: str = "all"
    instruction_id: str = ""
    gold: dict[str, str] = {}

    @property
    def cluster(self) -> str:
        """The name of its cluster."""
        return self.instruction_id or self.id

    @property
    def key(self) -> tuple[str, ...]:
        """The names that tell it from every other item."""
        return (self.id, *(answer.system for answer in self.answers))

    def clips(self) -> dict[str, str]:
        """Its clips by the name that a page gives them."""
        answers = {str(number): answer.clip for number, answer in enumerate(self.answers, 1)}
        return answers if self.question is None else {"question": self.question, **answers}


class Study(_Record):
    """A study's description; the clips' names are relative to its folder."""

    kind: Kind
    title: str = Field(min_length=1, max_length=200)
    seed: int
    items: tuple[Item, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Study:
        form = load_forms()[self.kind]
        seen: set[tuple[str, ...]] = set()
        for item in self.items:
            if len(item.answers) != form.answers:
                raise ValueError(f"item {item.id}: has {len(item.answers)} answers; kind {self.kind} has {form.answers}")
            if item.key in seen:
                raise ValueError(f"item {item.id}: stands twice for {' and '.join(item.key[1:])}")
            seen.add(item.key)
            for name, value in item.gold.items():
                question = form.question(name)
                if question is None or value not in question.values:
                    raise ValueError(f"item {item.id}: gold: {name}: {value!r} is no answer of this kind of study")
        return self


def as_study(kind: Kind, title: str, seed: int, items: Sequence[Item]) -> Study:
    """A checked study.

    Raises:
        DataError: what is wrong with an item.
    """
    try:
        return Study(kind=kind, title=title, seed=seed, items=tuple(items))
    except ValidationError as error:
        wrong = error.errors()[0]
        raise DataError(f"study: {wrong['msg'].removeprefix('Value error, ')}") from error


def read_items(path: Path) -> tuple[list[Item], Path]:
    """The items of a JSONL file, and the folder that its clips are relative to.

    Raises:
        DataError: missing, empty or a wrong row; names file:line and key.
    """
    items = []
    for number, values in enumerate(read_jsonl(path), 1):
        try:
            items.append(Item.model_validate_json(json.dumps(values)))
        except ValidationError as error:
            wrong = error.errors()[0]
            raise DataError(f"{path}:{number}: {'.'.join(map(str, wrong['loc'])) or 'row'}: {wrong['msg']}") from error
    if not items:
        raise DataError(f"{path}: holds no items")
    return items, path.parent


def items_of_run(run: Path, kind: Kind, systems: Sequence[str], limit: int | None, seed: int) -> list[Item]:
    """Items from a run's benched systems: pairs of two of them, or the answers of each. `limit` draws so many at random.

    Raises:
        ConfigError: a kind or a number of systems that a bench cannot give. DataError: a system has no rows, or none in common.
    """
    if kind not in ("pair", "single"):
        raise ConfigError(f"--kind {kind}: a bench has pair and single; give a JSONL file of items")
    if kind == "pair" and len(systems) != 2:
        raise ConfigError(f"--system: a pair needs two systems, and {len(systems)} are given")
    if not systems:
        raise ConfigError("--system: name at least one benched system")
    rows = {name: _rows_of(run, name) for name in systems}
    places: list[tuple[tuple[str, int], tuple[str, ...]]]
    if kind == "pair":
        places = [(key, tuple(systems)) for key in rows[systems[0]] if key in rows[systems[1]]]
    else:
        places = [(key, (name,)) for name in systems for key in rows[name]]
    if not places:
        raise DataError(f"{run}: {' and '.join(systems)} answered no question in common")
    if limit is not None:
        places = sorted(places, key=lambda place: seed_of(seed, "drawn", place))[:limit]
    several = any(number for one in rows.values() for _, number in one)
    return [_bench_item([rows[name][key] for name in names], several) for key, names in places]


Scored = tuple[AnswerRow, dict[str, float | str]]


def _rows_of(run: Path, system: str) -> dict[tuple[str, int], Scored]:
    """A system's rows with a sound by query and number, each with every judge's score."""
    if not (run / "bench").is_dir():
        raise DataError(f"{run}: no bench folder; run `paras2s bench contrasts` on it, or give a JSONL file of items")
    files = [run / "bench" / f"{system}.jsonl", *sorted((run / "bench").glob(f"*/{system}.jsonl"))]
    if path_inside(run / "bench", f"{system}.jsonl") is None or not files[0].is_file():
        there = sorted(path.stem for path in (run / "bench").glob("*.jsonl"))
        raise DataError(f"{run}: {system!r} was not benched; there are {', '.join(there) or 'none'}")
    found: dict[tuple[str, int], Scored] = {}
    for path in files:
        for row in load_rows(path):
            key = (row.query_id, row.answer_index)
            if key not in found and row.duration_s > 0:
                found[key] = (row, {})
            if key in found:
                found[key][1][row.judge] = row.unscored or "" if row.score is None else row.score
    return found


def _bench_item(scored: Sequence[Scored], several: bool) -> Item:
    row = scored[0][0]
    return Item(
        # As `bench paras2s --human` names answers.
        id=f"{row.query_id}-{row.answer_index}" if several else row.query_id,
        question=row.question_clip,
        # What was said is heard; its written form would tell the words that a bad recording hides.
        question_text="",
        category=row.category,
        instruction_id=row.contrast_id,
        answers=tuple(Answer(system=one.system, clip=one.answer_clip, scores=scores) for one, scores in scored),
    )


def clip_names(items: Iterable[Item]) -> list[str]:
    """The clips of all items, each once."""
    return list(dict.fromkeys(name for item in items for name in item.clips().values()))


def with_clips(item: Item, names: dict[str, str]) -> Item:
    """The item with its clips renamed."""
    values: dict[str, Any] = item.model_dump()
    values["question"] = None if item.question is None else names[item.question]
    values["answers"] = [{**answer.model_dump(), "clip": names[answer.clip]} for answer in item.answers]
    return Item.model_validate(values)
