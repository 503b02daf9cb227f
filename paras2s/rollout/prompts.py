"""Prompts on disk: rollout workers encode each once, and it is read when it is needed, so no process holds all prompts.

A file is named by its content: a hash of the clip, of its transcript, of the turns before it, and of the encoder, by its
checkpoint's files. So a restart encodes nothing again, and another checkpoint reads only its own prompts. Continuous features
are kept for the steps that have them; in half precision where the policy's weights are, since they are thousands of numbers a
step. Sampler and learner read the same rounded numbers, so their log-probs still agree; a policy in float32 reads what its
encoder gave.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s import __version__
from paras2s.policy.base import Policy
from paras2s.policy.components import POINTERS
from paras2s.policy.types import ClipStore, Prompt
from paras2s.types import Query
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, reading, sample_digest, write_bytes

FOLDER = "prompts"
# Queries of one call to a worker.
ENCODED_AT_ONCE = 32


@dataclass
class PromptFiles:
    """The encoded prompts of queries, in order; `names` of their files follow once encoded. No `queries`: the files exist."""

    folder: Path
    clips: ClipStore | None = None
    queries: Sequence[Query] = ()
    names: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.queries) or len(self.names)

    def __getitem__(self, row: int) -> Prompt:
        return read_prompt(self.folder / self.names[row])


def encoder_version(policy: Policy, checkpoint: Path) -> str:
    """Return a hash of the encoder: this package, the policy's class and precision, and each file of its checkpoint.

    Files count by name and by samples of their content, also those of frozen components elsewhere: a checkpoint that was
    copied is the same encoder, and to read all of 20 GB takes a minute.
    """
    pointers = checkpoint / POINTERS
    elsewhere = sorted(dict(read_json(pointers)).values()) if pointers.is_file() else []
    places = [checkpoint, *map(Path, elsewhere)]
    files = [
        [number, str(path.relative_to(folder)), sample_digest(path).hex()]
        for number, folder in enumerate(places)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    return key_of([__version__, type(policy).__qualname__, str(_dtype(policy)), files])


def _dtype(policy: Policy) -> torch.dtype:
    return next(policy.model.parameters()).dtype


def encode_into(
    folder: Path, policy: Policy, encoder: str, clips: ClipStore, queries: Sequence[Query]
) -> tuple[list[str], int]:
    """Encode queries into files of a folder if any is missing; return all names and the number encoded."""
    names = [_name(encoder, clips, query) for query in queries]
    if all((folder / name).is_file() for name in names):
        return names, 0
    # All of them: an encoder may round by a query's company, and a run that was stopped between two files must end as another.
    half = _dtype(policy) in (torch.float16, torch.bfloat16)
    for name, prompt in zip(names, policy.encode_queries(clips, queries), strict=True):
        write_prompt(folder / name, prompt, half)
    return names, len(names)


def _name(encoder: str, clips: ClipStore, query: Query) -> str:
    beside = clips.cached_features(query.clip)
    features = None if beside is None else hashlib.sha256(beside).hexdigest()
    parts: list[Any] = [encoder, clips.clip(query.clip).digest, features, query.transcript]
    # Behind the rest, so that files of questions without a history keep their names.
    parts += [[turn.speaker, turn.text, turn.clip and clips.clip(turn.clip).digest] for turn in query.history]
    key = key_of(parts)
    return f"{key[:2]}/{key}.npz"


def write_prompt(path: Path, prompt: Prompt, half: bool) -> None:
    """Write a prompt: ids as int32, the features of continuous steps; `half` keeps these in 2 bytes where they fit."""
    arrays: dict[str, Any] = {
        "audio_ids": prompt.audio_ids.astype(np.int32),
        "text_ids": prompt.text_ids.astype(np.int32),
        "continuous": prompt.continuous,
        "words_dim": prompt.words_dim,
        "code_offsets": np.array(prompt.code_offsets, dtype=np.int64),
        "hidden_ids": np.array(prompt.hidden_ids, dtype=np.int64),
    }
    if prompt.features is not None:
        rows = prompt.features[prompt.continuous]
        fits = half and (not rows.size or np.abs(rows).max() <= np.finfo(np.float16).max)
        arrays["features"] = rows.astype(np.float16) if fits else rows
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def read_prompt(path: Path) -> Prompt:
    """Read what `write_prompt` wrote, in its precision. Raises DataError: the file is missing or broken."""
    with reading(path, "not an encoded prompt", "; delete it, and --resume encodes it again"), np.load(path) as held:
        continuous, features = held["continuous"], None
        if "features" in held:
            rows = held["features"]
            features = np.zeros((len(continuous), rows.shape[1]), dtype=rows.dtype)
            features[continuous] = rows
        return Prompt(
            audio_ids=held["audio_ids"].astype(np.int64),
            text_ids=held["text_ids"].astype(np.int64),
            features=features,
            continuous=continuous,
            words_dim=int(held["words_dim"]),
            code_offsets=tuple(held["code_offsets"].tolist()),
            hidden_ids=tuple(held["hidden_ids"].tolist()),
        )
