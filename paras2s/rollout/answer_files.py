"""Sampled answers on disk, shard by shard, for `paras2s distill` to judge.

A shard holds the answers to a few neighbouring queries. Its seeds depend on its place alone, so it does not matter which
worker samples it, or when. Its sound is stored beside it, a file an answer, where the policy has a codec of its own; where that
is the embedded one, the codes are the sound. The codes are written last: a shard that has them is complete.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip, read_written_clip, write_clip
from paras2s.errors import DataError
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.types import ClipStore, SampleRequest, Sampling
from paras2s.rollout.engine import Engine, answer_seeds, spoken
from paras2s.rollout.reward_inputs import embedded_codes
from paras2s.types import Query
from paras2s.utils.io import reading, write_bytes

CODEC = Codec2Pairs()
# Queries of a shard. Seeds are drawn by shard, so another number gives other answers.
SHARD_QUERIES = 16
# Answers that are sampled together.
SAMPLED_TOGETHER = 128


@dataclass(frozen=True)
class AnswerShard:
    """Neighbouring queries [B], and a seed for each of their answers [B, G].

    `start` is the first query's position among all. `made_of` names what else the answers depend on: if it differs, the shard
    is sampled again.
    """

    folder: Path
    start: int
    queries: tuple[Query, ...]
    seeds: tuple[tuple[int, ...], ...]
    sampling: Sampling
    made_of: str

    @property
    def path(self) -> Path:
        """The file of its codes."""
        return self.folder / f"{self.start:07d}.npz"

    @property
    def sounds(self) -> Path:
        """The folder of its sound."""
        return self.path.with_suffix("")

    def sound(self, number: int) -> Path:
        """Return the file of an answer's sound; they are numbered through the queries."""
        return self.sounds / f"{number:05d}.wav"

    @property
    def group_size(self) -> int:
        """G."""
        return len(self.seeds[0])


@dataclass(frozen=True)
class StoredAnswer:
    """An answer as the embedded codec's codes [T, K], and the file of its sound, None if only codes exist."""

    codes: np.ndarray
    file: Path | None

    def sound(self) -> Clip:
        """Return the answer's sound, which is not kept in memory."""
        return CODEC.decode(self.codes) if self.file is None else read_written_clip(self.file)


def plan_shards(
    folder: Path, queries: Sequence[Query], group_size: int, sampling: Sampling, seed: int, stream: int, made_of: str
) -> list[AnswerShard]:
    """Return the shards of G answers to each query; `stream` sets them apart from other answers of the run."""
    shards = []
    for start in range(0, len(queries), SHARD_QUERIES):
        part = tuple(queries[start : start + SHARD_QUERIES])
        seeds = answer_seeds(seed, stream + start, range(len(part)), group_size)
        shards.append(AnswerShard(folder, start, part, tuple(map(tuple, seeds)), sampling, made_of))
    return shards


def sample_into(engine: Engine, clips: ClipStore, shard: AnswerShard) -> None:
    """Sample a shard's answers and write them. At most `SAMPLED_TOGETHER` answers' sound is in memory."""
    policy = engine.policy
    # Codes are the embedded policy's sound.
    with_sound = policy.spec.code_format != CODEC.version
    prompts = policy.encode_queries(clips, shard.queries)
    shutil.rmtree(shard.sounds, ignore_errors=True)
    codes: list[np.ndarray] = []
    ids = (query.id for query in shard.queries)
    for part in SampleRequest(prompts, shard.seeds, shard.sampling).parts(SAMPLED_TOGETHER):
        rollouts = engine.generate([next(ids) for _ in part.prompts], part, with_waves=False)
        for rollout in spoken(policy, rollouts) if with_sound else rollouts:
            for number, wave in enumerate(rollout.waves, len(codes)):
                if with_sound and len(wave):
                    write_clip(shard.sound(number), Clip(wave, rollout.sample_rate_hz))
            codes += embedded_codes(rollout, CODEC)
    _write_codes(shard, codes, with_sound)


def _write_codes(shard: AnswerShard, codes: Sequence[np.ndarray], with_sound: bool) -> None:
    buffer = io.BytesIO()
    width = CODEC.num_codebooks
    flat = np.concatenate([np.zeros((0, width), dtype=np.int16), *(rows.astype(np.int16) for rows in codes)])
    described: dict[str, Any] = {
        "queries": np.array([query.id for query in shard.queries]),
        "group_size": shard.group_size,
        "made_of": shard.made_of,
        "with_sound": with_sound,
    }
    np.savez(buffer, **described, steps=[len(rows) for rows in codes], codes=flat)
    write_bytes(shard.path, buffer.getvalue())


def read_shard(shard: AnswerShard) -> list[StoredAnswer] | None:
    """Return a shard's answers, G for each query in order; None if it is incomplete, or `made_of` differs."""
    try:
        with reading(shard.path), np.load(shard.path) as held:
            described = held["queries"].tolist(), int(held["group_size"]), str(held["made_of"])
            if described != ([query.id for query in shard.queries], shard.group_size, shard.made_of):
                return None
            codes = np.split(held["codes"].astype(np.int64), np.cumsum(held["steps"])[:-1])
            with_sound = bool(held["with_sound"])
    except DataError:
        return None
    # An answer that nothing was said in has no file.
    files = [shard.sound(number) if with_sound and len(rows) else None for number, rows in enumerate(codes)]
    if any(file is not None and not file.is_file() for file in files):
        return None
    return [StoredAnswer(rows, file) for rows, file in zip(codes, files, strict=True)]
