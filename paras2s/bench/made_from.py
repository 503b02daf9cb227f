"""Everything that a verdict was made from, kept beside it in its file, so that the studio can show why it is what it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from paras2s.clients.chat import Request, prompts_of
from paras2s.reward.fusion import FusionRule
from paras2s.reward.judges.audio_judge.ensemble_rules import EnsembleRule
from paras2s.types import Dimension, Label, PairLabel, Unscored
from paras2s.utils.io import append_jsonl, reading, write_bytes

VERDICTS = "verdicts.jsonl"


class Fusion(BaseModel):
    """The fusion of several labels into one: the rule, and its steps in words with the label after each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: str
    says: str
    steps: tuple[tuple[str, str], ...]


class MadeFrom(BaseModel):
    """The clips of a verdict by what they are ("question", "answer 1"), as paths from the folder of the verdict's file.

    `prompts` are the messages that were sent, () if no call was made and None if they are not known; `words` is the
    question in writing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    clips: dict[str, str] = {}
    words: str = ""
    style: str = ""
    prompts: tuple[str, ...] | None = None
    fusion: tuple[Fusion, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the keys that are set, as plain JSON."""
        return self.model_dump(mode="json", exclude_defaults=True)


def fusion_of(name: str, rule: FusionRule, labels: dict[Dimension, Label]) -> Fusion:
    """Return the fusion of a pair's labels by a rule."""
    return Fusion(rule=name, says=rule.says, steps=tuple(rule.steps(labels)))


def ensemble_of(name: str, rule: EnsembleRule, labels: Mapping[str, PairLabel]) -> Fusion:
    """Return the fusion of the aspects' labels by an ensemble's rule."""
    return Fusion(rule=name, says=rule.says, steps=tuple(rule.steps(labels)))


def sent(requests: Sequence[Request] | Unscored) -> tuple[str, ...]:
    """Return the prompts of an item's requests; () for an item that cannot be judged."""
    return () if isinstance(requests, Unscored) else tuple(prompts_of(requests))


def clip_names(clips: Mapping[str, Path | None], folder: Path) -> dict[str, str]:
    """Return the clips as paths from a folder; those that are None are left out."""
    root = folder.resolve()
    return {name: os.path.relpath(path.resolve(), root) for name, path in clips.items() if path is not None}


def keep_verdict(folder: Path, kind: str, outcome: Mapping[str, Any], made_from: MadeFrom, clips: Mapping[str, Path]) -> Path:
    """Add a verdict to `folder`/verdicts.jsonl with copies of its clips; return the file. Raises DataError, StorageError."""
    kept = {}
    for name, path in clips.items():
        with reading(path):
            data = path.read_bytes()
        copy = folder / "clips" / f"{hashlib.sha256(data).hexdigest()[:16]}{path.suffix.lower()}"
        if not copy.is_file():
            write_bytes(copy, data)
        kept[name] = f"clips/{copy.name}"
    row = {"kind": kind, **outcome, "files": {name: str(path) for name, path in clips.items()}}
    append_jsonl(folder / VERDICTS, {**row, "made_from": made_from.model_copy(update={"clips": kept}).to_json()})
    return folder / VERDICTS
