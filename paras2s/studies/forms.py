"""The forms of a study: what an annotator is shown and may choose, by kind."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["pair", "single", "style_following", "role_play", "check"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_min_length=1)


class Choice(_Record):
    """One value that a question may have, and the key that chooses it, if there is one."""

    value: str
    title: str
    key: str | None = Field(default=None, max_length=1)
    help: str | None = None


class FormQuestion(_Record):
    """A question of a form; with `comes_last` it can be answered only after all the others."""

    name: str
    title: str
    text: str
    comes_last: bool = False
    choices: tuple[Choice, ...] = Field(min_length=2)

    @property
    def values(self) -> tuple[str, ...]:
        """The values that it may have."""
        return tuple(choice.value for choice in self.choices)

    @property
    def is_score(self) -> bool:
        """Whether its values are numbers."""
        return all(value.isdigit() for value in self.values)


class Form(_Record):
    """The form of one kind of study, over `answers` clips.

    With `takes`, the clips are takes of one recording, as many as an item has: people choose one or reject all. Such items come
    in the study's order, and only the chosen take must be played.
    """

    title: str
    answers: int = Field(ge=1)
    takes: bool = False
    instructions: tuple[str, ...]
    questions: tuple[FormQuestion, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _share_choices(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Give each question the choices that are listed beside the questions."""
        own = {name: value for name, value in values.items() if name != "choices"}
        if "choices" in values:
            own["questions"] = [{**question, "choices": values["choices"]} for question in values["questions"]]
        return own

    def with_takes(self, count: int) -> Form:
        """Return the form of takes for an item of `count` takes: a choice for each, and the form's own last one, to reject."""
        question = self.questions[0]
        keys = {number: str(number % 10) for number in range(1, 11)}
        takes = [Choice(value=str(n), title=f"Accept take {n}", key=keys.get(n)) for n in range(1, count + 1)]
        choices = (*takes, question.choices[-1])
        return self.model_copy(update={"answers": count, "questions": (question.model_copy(update={"choices": choices}),)})

    def question(self, name: str) -> FormQuestion | None:
        """Return the question of that name, if there is one."""
        return next((question for question in self.questions if question.name == name), None)


@functools.cache
def load_forms() -> dict[Kind, Form]:
    """Return the shipped forms by kind, in the order of `KINDS`."""
    values = yaml.safe_load(resources.files(__package__).joinpath("forms.yaml").read_text(encoding="utf-8"))
    return {kind: Form.model_validate(values[kind]) for kind in KINDS}
