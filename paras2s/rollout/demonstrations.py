"""Demonstrations on disk for the anchor of an alignment (`train/anchor.py`), encoded by rollout workers as prompts are.

Recorded preferences are encoded in the same way (`align/recorded.py`).

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

from paras2s.audio.clip import Clip, read_clip
from paras2s.policy.base import Policy
from paras2s.policy.types import ClipStore
from paras2s.rollout.prompts import PromptFiles
from paras2s.train.anchor import Augment
from paras2s.train.sft import Example
from paras2s.types import Block, Demonstration, Query
from paras2s.utils.cache import key_of
from paras2s.utils.io import reading, write_bytes


@dataclass(frozen=True)
class RecordedClips:
    """Clips of a file of preferences by their names, relative to its folder, and what is stored beside them.

    Beside an answer's clip may be the tokens that a policy sampled (`CLIP.tokens.npz`), with the codec that its codes are of.
    """

    folder: Path

    def clip(self, name: str) -> Clip:
        """Read a clip. Raises AudioError: it cannot be decoded."""
        return read_clip(self.folder / name)

    def cached_features(self, name: str) -> bytes | None:
        """Return the features that are stored beside a clip; None if there are none."""
        beside = (self.folder / name).with_suffix(".npz")
        return beside.read_bytes() if beside.is_file() else None

    def sampled_digest(self, name: str) -> str | None:
        """Return a hash of the tokens beside an answer's clip; None if there are none."""
        beside = tokens_file(self.folder / name)
        return hashlib.sha256(beside.read_bytes()).hexdigest() if beside.is_file() else None

    def sampled_by(self, policy: Policy, name: str, text: str) -> tuple[Block, ...] | None:
        """Return the tokens beside an answer's clip if they are this policy's: of its codec, and the same words in it."""
        beside = tokens_file(self.folder / name)
        if not beside.is_file():
            return None
        blocks, code_format = read_sampled(beside)
        own = code_format == policy.spec.code_format and policy.decode_text(blocks, 0) == text
        return blocks if own else None


def tokens_file(clip: Path) -> Path:
    """Return the file beside an answer's clip with the tokens that a policy sampled."""
    return clip.with_suffix(".tokens.npz")


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
    names, missing = list[str](), dict[str, tuple[str, str]]()
    for demonstration in demonstrations:
        beside = clips.cached_features(demonstration.clip)
        features = None if beside is None else hashlib.sha256(beside).hexdigest()
        made_of = ["target", encoder, clips.clip(demonstration.clip).digest, features, demonstration.text]
        if isinstance(clips, RecordedClips) and (tokens := clips.sampled_digest(demonstration.clip)) is not None:
            made_of.append(tokens)
        key = key_of(made_of)
        names.append(f"{key[:2]}/{key}.npz")
        if not (folder / names[-1]).is_file():
            missing[names[-1]] = demonstration.clip, demonstration.text
    for name, target in zip(missing, _targets(policy, clips, list(missing.values())), strict=True):
        write_target(folder / name, target)
    return names, len(missing)


def _targets(policy: Policy, clips: ClipStore, answers: Sequence[tuple[str, str]]) -> list[tuple[Block, ...]]:
    """Return answers as blocks: as this policy sampled them where that is recorded, else as demonstrations are encoded."""
    recorded = clips if isinstance(clips, RecordedClips) else None
    sampled = [recorded.sampled_by(policy, *answer) if recorded else None for answer in answers]
    others = [answer for answer, blocks in zip(answers, sampled, strict=True) if blocks is None]
    encoded = iter(policy.encode_demonstrations(clips, others))
    return [next(encoded) if blocks is None else blocks for blocks in sampled]


def write_target(path: Path, blocks: Sequence[Block], **more: Any) -> None:
    """Write a demonstration's blocks without log-probs of a sampler; `more` are further arrays of the file."""
    arrays: dict[str, Any] = {"blocks": len(blocks), **more}
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
    """Read what `write_target` wrote. Raises DataError: the file is missing or broken."""
    with reading(path, "not an encoded demonstration", "; delete it, and --resume encodes it again"), np.load(path) as held:
        return tuple(_block(held, number) for number in range(int(held["blocks"])))


def read_sampled(path: Path) -> tuple[tuple[Block, ...], str]:
    """Read the tokens beside an answer's clip, and the codec that its codes are of. Raises DataError: the file is broken."""
    with reading(path, "not the tokens of an answer", "; delete it, and the sound is encoded"), np.load(path) as held:
        return tuple(_block(held, number) for number in range(int(held["blocks"]))), str(held["code_format"])


def _block(held: Any, number: int) -> Block:
    tokens, sampled = held[f"tokens{number}"].astype(np.int64), held[f"sampled{number}"]
    labels = held.get(f"labels{number}")
    return Block(tuple(held[f"slots{number}"].tolist()), tokens, sampled, np.zeros(tokens.shape), labels)
