"""StyleSet's items: sentences with a style, and situations for two, in words of our own; and the prompts made of them.

The paper's own items are of its authors and of IEMOCAP. Those of a user are read from files of the same form.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from paras2s.errors import DataError, checking
from paras2s.utils.io import read_yaml

# Style elements that an instruction may ask for (StyleSet, 3.1).
Element = Literal[
    "pace", "volume", "pitch", "stress", "pauses", "whisper", "sob", "stutter", "laughter", "sigh", "emotion"
]  # fmt: skip
ELEMENTS: tuple[Element, ...] = get_args(Element)
Task = Literal["following", "role_play"]
TASKS: tuple[Task, ...] = get_args(Task)
# A task's outputs are judged once for each of these, by the judges' tasks of these names.
VERDICT_TASKS: dict[Task, tuple[str, ...]] = {
    "following": ("style_following",),
    "role_play": ("role_play_style", "role_play_realism"),
}


class _Item(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, str_min_length=1)

    id: str

    @field_validator("id")
    @classmethod
    def _names_a_file(cls, name: str) -> str:
        if not re.fullmatch(r"\w[\w.-]{0,59}", name):
            raise ValueError("an id names files: letters, digits, '-', '_' and '.'")
        return name


class FollowingItem(_Item):
    """A sentence and the style to say it in. `changes_within`: the style is not the same from first word to last."""

    text: str
    style: str
    elements: tuple[Element, ...] = Field(min_length=1)
    changes_within: bool

    def judge_inputs(self) -> dict[str, str]:
        """Return the inputs of a judge's prompt beside the sound."""
        return {"text": self.text, "style": self.style}

    def requests(self) -> tuple[str, str]:
        """Return the user's turns: first the sentence alone, then its style. In one turn, models confuse the two."""
        return (
            f"Please say the following sentence, word for word, and nothing else. {self.text}",
            f"Thank you. Now say that same sentence once more, in this way. {self.style}",
        )


class RoleContext(_Item):
    """A situation for two. `relationship` completes the sentence "The two are ..."; role 1 begins with `first_line`."""

    situation: str
    role_1: str
    role_2: str
    relationship: str
    first_line: str

    def judge_inputs(self) -> dict[str, str]:
        """Return the inputs of a judge's prompt beside the sound."""
        return {"context": self._opening(self.role_1, self.role_2) + f" The first line is: {self.first_line}"}

    def prompts(self) -> tuple[str, str]:
        """Return the spoken prompts of the two roles; both end with the first line (StyleSet, A.2.1)."""
        return (
            f"{self._opening(self.role_1, self.role_2)} You speak first. Begin with the line that comes now, and say "
            f"nothing besides it. {self.first_line}",
            f"{self._opening(self.role_2, self.role_1)} Talk with me, and stay in your role all the time. I speak first. "
            f"{self.first_line}",
        )

    def _opening(self, mine: str, yours: str) -> str:
        return f"Picture this. {self.situation} The two are {self.relationship}. From now on you are {mine}, and I am {yours}."


ItemKind = TypeVar("ItemKind", FollowingItem, RoleContext)


def load_following(path: Path | None = None) -> list[FollowingItem]:
    """Return the shipped sentences, or a user's. Raises DataError: see `_load`."""
    return _load(path, "following.yaml", FollowingItem)


def load_contexts(path: Path | None = None) -> list[RoleContext]:
    """Return the shipped situations, or a user's. Raises DataError: see `_load`."""
    return _load(path, "role_play.yaml", RoleContext)


def _load(path: Path | None, shipped: str, kind: type[ItemKind]) -> list[ItemKind]:
    """Return the items of a YAML list. Raises DataError: missing, not YAML, a wrong item, or an id that occurs twice."""
    source = path or resources.files(__package__).joinpath(shipped)
    rows: Any = read_yaml(source, "cannot be read as a YAML list of items", DataError)
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{source}: expected a list of items, each with {', '.join(kind.model_fields)}")
    items: list[ItemKind] = []
    for number, row in enumerate(rows, 1):
        with checking(f"{source}: item {number}", "item"):
            items.append(kind.model_validate(row))
    names = [item.id for item in items]
    if twice := next((name for index, name in enumerate(names) if name in names[:index]), None):
        raise DataError(f"{source}: the id {twice!r} occurs twice")
    return items
