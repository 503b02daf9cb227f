"""Demonstrations on disk for the anchor of an alignment (`train/anchor.py`), encoded by rollout workers as prompts are.

A target's file is named by its content, as a prompt's is: a hash of the clip, of its words, and of the encoder.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paras2s.policy.base import Policy
from paras2s.policy.types import ClipStore
from paras2s.rollout.prompts import PromptFiles
from paras2s.train.anchor import Augment
from paras2s.train.sft import Example
from paras2s.types import Block, Demonstration, Query
from paras2s.utils.cache import key_of
from paras2s.utils.io import reading, write_bytes


class Encoders(Protocol):
    """Rollout workers, which encode what is not in the folder yet; both return the files' names."""

    def encode(self, folder: Path, clips: ClipStore, queries: Sequence[Query], done: Callable[[int, int], None]) -> list[str]:
        """Encode the prompts of queries."""

    def encode_targets(
        self, folder: Path, clips: ClipStore, demonstrations: Sequence[Demonstration], done: Callable[[int, int], None]
    ) -> list[str]:
        """Encode demonstrations as targets."""


@dataclass
class DemonstrationFiles:
    """Demonstrations as the policy reads them, each read when it is requested.

    `queries` are the queries that they answer, each once; `augment` changes a prompt before the policy reads it. The names
    of the files are known once workers have encoded them.
    """

    folder: Path
    clips: ClipStore
    demonstrations: Sequence[Demonstration]
    queries: Sequence[Query]
    augment: Augment
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._prompts = PromptFiles(self.folder, self.clips, self.queries)
        self._row_of = {query.id: row for row, query in enumerate(self.queries)}

    def __len__(self) -> int:
        return len(self.demonstrations)

    def __getitem__(self, row: int) -> Example:
        prompt = self._prompts[self._row_of[self.demonstrations[row].query_id]]
        return Example(prompt, read_target(self.folder / self.names[row]))

    def encode(self, workers: Encoders, done: Callable[[int, int], None]) -> None:
        """Have the workers encode all prompts and targets that are not in the folder yet."""
        self._prompts.names = workers.encode(self.folder, self.clips, self.queries, lambda *_: None)
        self.names = workers.encode_targets(self.folder, self.clips, self.demonstrations, done)


def encode_targets_into(
    folder: Path, policy: Policy, encoder: str, clips: ClipStore, demonstrations: Sequence[Demonstration]
) -> tuple[list[str], int]:
    """Encode demonstrations into files of a folder, where a file is missing; return all names, and how many were encoded."""
    names, encoded = [], 0
    for demonstration in demonstrations:
        beside = clips.cached_features(demonstration.clip)
        features = None if beside is None else hashlib.sha256(beside).hexdigest()
        key = key_of(["target", encoder, clips.clip(demonstration.clip).digest, features, demonstration.text])
        names.append(f"{key[:2]}/{key}.npz")
        if not (folder / names[-1]).is_file():
            write_target(folder / names[-1], policy.encode_demonstration(clips, demonstration.clip, demonstration.text))
            encoded += 1
    return names, encoded


def write_target(path: Path, blocks: Sequence[Block]) -> None:
    """Write a demonstration's blocks; they were not sampled, so there are no log-probs of a sampler."""
    arrays: dict[str, Any] = {"blocks": len(blocks)}
    for number, block in enumerate(blocks):
        arrays |= {
            f"slots{number}": np.array(block.slots),
            f"tokens{number}": block.tokens.astype(np.int32),
            f"sampled{number}": block.sampled,
        }
        if block.labels is not None:
            arrays[f"labels{number}"] = block.labels
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def read_target(path: Path) -> tuple[Block, ...]:
    """Read what `write_target` wrote.

    Raises:
        DataError: the file is missing or broken.
    """
    with reading(path, "not an encoded demonstration", "; delete it, and --resume encodes it again"), np.load(path) as held:
        return tuple(_block(held, number) for number in range(int(held["blocks"])))


def _block(held: Any, number: int) -> Block:
    tokens, sampled = held[f"tokens{number}"].astype(np.int64), held[f"sampled{number}"]
    labels = held.get(f"labels{number}")
    return Block(tuple(held[f"slots{number}"].tolist()), tokens, sampled, np.zeros(tokens.shape), labels)
