"""Labelled examples that a listening judge is shown before it judges: one JSON object a line, clips beside the file.

{"first": "a.wav", "second": "b.wav", "instruction": "i.wav", "labels": {"lexical": "1"}, "reason": "..."}; `label` is for a
file of one task. A single clip is `clip`. A match is "same" or "different".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from paras2s.audio.clip import Clip, read_clip
from paras2s.errors import AudioError, DataError, one_line
from paras2s.reward.judges.llm_judge import Utterance


@dataclass(frozen=True)
class Example:
    """One example: its clips, what they answer, and the right verdict of each task. `name` is where it stands."""

    name: str
    clips: tuple[Clip, ...]
    instruction: Utterance
    labels: Mapping[str, str]
    label: str | None
    reason: str
    words: tuple[str, ...] | None = None
    told: Mapping[str, str] = field(default_factory=dict)

    def label_for(self, task: str) -> str:
        """The right verdict of a task.

        Raises:
            DataError: there is none; an example without one teaches nothing.
        """
        found = self.labels.get(task, self.label)
        if found is None:
            raise DataError(f"{self.name}: the example has no label for {task}; give 'label', or 'labels' with {task!r}")
        return found

    @property
    def digest(self) -> str:
        """Changes with anything that a judge would hear or read of it."""
        sound = [clip.digest.encode() for clip in self.clips]
        asked = b"" if self.instruction.clip is None else self.instruction.clip.digest.encode()
        text = repr((self.instruction.text, sorted(self.labels.items()), self.label, self.reason, self.words, self.told))
        return hashlib.sha256(b"\0".join([*sound, asked, text.encode()])).hexdigest()[:16]


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
    told: dict[str, str] = {}

    @model_validator(mode="after")
    def _check(self) -> _Row:
        pair = [one for one in (self.first, self.second) if one is not None]
        if len(pair) != (2 if self.clip is None else 0):
            raise ValueError("give either 'clip', or both 'first' and 'second'")
        if self.words is not None and len(self.words) != len(self.paths):
            raise ValueError(f"words: expected {len(self.paths)}, one a clip")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.clip,) if self.clip is not None else (self.first or "", self.second or "")


def load_examples(path: Path) -> list[Example]:
    """The examples of a file, in its order; clips are looked for beside it.

    Raises:
        DataError: missing, a wrong row, or a clip that cannot be read; names the line.
    """
    found = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)}); give a file of examples (JSONL)") from error
    for number, line in enumerate(lines, 1):
        # No log of ours, in which a last line may be cut off: every line that says something must be whole.
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = _Row.model_validate_json(line)
            clips = tuple(read_clip(path.parent / name) for name in row.paths)
            asked = None if row.instruction is None else read_clip(path.parent / row.instruction)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise DataError(f"{where}: {'.'.join(map(str, wrong['loc'])) or 'row'}: {wrong['msg']}") from error
        except AudioError as error:
            raise DataError(f"{where}: {error}") from error
        instruction = Utterance(asked, row.instruction_text)
        found.append(Example(where, clips, instruction, row.labels, row.label, row.reason, row.words, row.told))
    if not found:
        raise DataError(f"{path}: holds no example")
    return found
