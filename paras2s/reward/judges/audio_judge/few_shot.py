"""Labelled examples that are shown to an audio judge first: one JSON object a line, with the clips beside the file.

{"first": "a.wav", "second": "b.wav", "instruction": "i.wav", "labels": {"lexical": "1"}, "reason": "..."}; `label` is for a
file of one task. A single clip is `clip`. A match is "same" or "different".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from paras2s.audio.clip import Clip, read_clip
from paras2s.errors import AudioError, DataError, first_problem
from paras2s.reward.judges.base import Utterance
from paras2s.utils.io import read_rows


@dataclass(frozen=True)
class Example:
    """One example: its clips, their instruction and the right verdict of each task. `name` is its file and line."""

    name: str
    clips: tuple[Clip, ...]
    instruction: Utterance
    labels: Mapping[str, str]
    label: str | None
    reason: str
    words: tuple[str, ...] | None = None
    task_inputs: Mapping[str, str] = field(default_factory=dict)

    def label_for(self, task: str) -> str:
        """Return the right verdict of a task. Raises DataError: there is none; an example without one teaches nothing."""
        label = self.labels.get(task, self.label)
        if label is None:
            raise DataError(f"{self.name}: the example has no label for {task}; give 'label', or 'labels' with {task!r}")
        return label

    @property
    def digest(self) -> str:
        """A hash of everything that a judge hears or reads of it."""
        sound = [clip.samples.tobytes() for clip in self.clips]
        instruction = b"" if self.instruction.clip is None else self.instruction.clip.samples.tobytes()
        texts = (self.instruction.text, sorted(self.labels.items()), self.label, self.reason, self.words, self.task_inputs)
        return hashlib.sha256(b"\0".join([*sound, instruction, repr(texts).encode()])).hexdigest()[:16]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    first: str | None = None
    second: str | None = None
    clip: str | None = None
    instruction: str | None = None
    instruction_text: str | None = None
    labels: dict[str, str] = {}
    label: str | None = None
    reason: str = ""
    words: tuple[str, ...] | None = None
    task_inputs: dict[str, str] = {}

    @model_validator(mode="after")
    def _check(self) -> _Row:
        pair = [name for name in (self.first, self.second) if name is not None]
        if len(pair) != (2 if self.clip is None else 0):
            raise ValueError("give either 'clip', or both 'first' and 'second'")
        if self.words is not None and len(self.words) != len(self.paths):
            raise ValueError(f"words: expected {len(self.paths)}, one a clip")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.clip,) if self.clip is not None else (self.first or "", self.second or "")


def load_examples(path: Path) -> list[Example]:
    """Load the examples of a file, in order; clips are relative to it. Raises DataError: a wrong row or clip; names it."""
    examples = []
    for number, values in read_rows(path):
        where = f"{path}:{number}"
        try:
            row = _Row.model_validate_json(json.dumps(values))
            clips = tuple(read_clip(path.parent / name) for name in row.paths)
            spoken = None if row.instruction is None else read_clip(path.parent / row.instruction)
        except ValidationError as error:
            raise DataError(f"{where}: {first_problem(error)}") from error
        except AudioError as error:
            raise DataError(f"{where}: {error}") from error
        instruction = Utterance(spoken, row.instruction_text)
        examples.append(Example(where, clips, instruction, row.labels, row.label, row.reason, row.words, row.task_inputs))
    if not examples:
        raise DataError(f"{path}: holds no example")
    return examples
