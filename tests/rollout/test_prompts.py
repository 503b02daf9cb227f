"""Encoded prompts on disk: what is read is what was written, nothing is encoded twice, and the driver holds a step's alone.

Not covered: encoders of released models (tests/policy), and workers that encode (tests/integration/test_released_policy.py).
"""

from __future__ import annotations

import os
import shutil
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny.dual_stream import small_config, small_prompt
from tiny.settings import align_config

from paras2s.align.answers_ahead import step_batch
from paras2s.align.job import GRPOJob
from paras2s.audio.clip import Clip
from paras2s.configs.schema.run import RunConfig
from paras2s.errors import DataError
from paras2s.policy.types import Prompt
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout.prompts import PromptFiles, encode_into, encoder_version, read_prompt, write_prompt
from paras2s.run import Run
from paras2s.types import PastTurn, Query
from paras2s.utils.cache import key_of


def made(seed: int = 0) -> Prompt:
    config = small_config()
    prompt = small_prompt(config, 2, 5, seed)
    return replace(prompt, words_dim=1, code_offsets=config.codebook_offsets, hidden_ids=(config.blank_id, config.pad_id))


def assert_equal_prompts(found: Prompt, expected: Prompt) -> None:
    for name in ("audio_ids", "text_ids", "continuous", "features"):
        one, other = getattr(found, name), getattr(expected, name)
        if other is None:
            assert one is None
        else:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    for name in ("words_dim", "code_offsets", "hidden_ids"):
        assert getattr(found, name) == getattr(expected, name)


def test_a_prompt_is_read_as_it_was_written(tmp_path: Path) -> None:
    for number, prompt in enumerate([made(), replace(made(1), features=None)]):
        write_prompt(tmp_path / f"{number}.npz", prompt, half=False)
        assert_equal_prompts(read_prompt(tmp_path / f"{number}.npz"), prompt)


def test_features_are_kept_in_half_precision_where_they_fit_and_only_where_they_are_used(tmp_path: Path) -> None:
    prompt = made()
    features = prompt.features
    assert features is not None
    write_prompt(tmp_path / "half.npz", prompt, half=True)
    assert_equal_prompts(read_prompt(tmp_path / "half.npz"), replace(prompt, features=features.astype(np.float16)))
    with np.load(tmp_path / "half.npz") as held:
        assert held["features"].shape == (prompt.continuous.sum(), features.shape[1])
        assert (held["features"].dtype, held["audio_ids"].dtype) == (np.float16, np.int32)
    large = replace(prompt, features=np.where(prompt.continuous[:, None], 1e5, 0.0).astype(np.float32))
    write_prompt(tmp_path / "large.npz", large, half=True)
    assert_equal_prompts(read_prompt(tmp_path / "large.npz"), large)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    write_prompt(tmp_path / "cut.npz", made(), half=False)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:200])
    for name in ("cut.npz", "missing.npz"):
        with pytest.raises(DataError, match=f"{name}: not an encoded prompt .*--resume encodes it again"):
            read_prompt(tmp_path / name)


class Clips:
    """Clips by name; equal names are equal clips."""

    def clip(self, name: str) -> Clip:
        return Clip(np.full(80, float(name), dtype=np.float32), 8000)

    def cached_features(self, name: str) -> bytes | None:
        return None


class Encoder:
    """In place of a policy: counts what it encodes."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.model = torch.nn.Linear(1, 1).to(dtype)
        self.encoded: list[str] = []

    def encode_queries(self, clips: Clips, queries: Sequence[Query]) -> list[Prompt]:
        self.encoded += [query.id for query in queries]
        return [made(int(float(query.clip) * 10)) for query in queries]


def query(name: str, clip: str, transcript: str = "hello") -> Query:
    return Query(name, name, None, None, "rl", "someone", clip, 0.01, transcript, None, None)


def encode(folder: Path, policy: Any, queries: Sequence[Query], encoder: str = "e") -> list[str]:
    before = len(policy.encoded)
    names, encoded = encode_into(folder, policy, encoder, Clips(), queries)
    assert encoded == len(policy.encoded) - before
    return names


def test_what_is_there_is_not_encoded_again(tmp_path: Path) -> None:
    policy, queries = Encoder(), [query("a", "0.1"), query("b", "0.2")]
    names = encode(tmp_path, policy, queries)
    assert encode(tmp_path, policy, queries) == names
    assert policy.encoded == ["a", "b"]
    assert_equal_prompts(read_prompt(tmp_path / names[1]), made(2))
    # A stopped run's last file is missing: what was encoded together is encoded together again.
    (tmp_path / names[1]).unlink()
    assert encode(tmp_path, policy, queries) == names
    assert policy.encoded == ["a", "b", "a", "b"]


def test_files_are_named_by_content_and_encoder(tmp_path: Path) -> None:
    policy = Encoder()
    [first] = encode(tmp_path, policy, [query("a", "0.1")])
    assert encode(tmp_path, policy, [query("another", "0.1")]) == [first]
    assert policy.encoded == ["a"]
    others = [
        *encode(tmp_path, policy, [query("a", "0.2")]),
        *encode(tmp_path, policy, [query("a", "0.1", "other words")]),
        *encode(tmp_path, policy, [query("a", "0.1")], encoder="another"),
    ]
    assert len({first, *others}) == 4


def test_a_history_names_another_file_and_its_absence_the_same(tmp_path: Path) -> None:
    policy, turn = Encoder(), PastTurn("assistant", "Yes.", "0.3")
    alone = query("a", "0.1")
    # The name that earlier versions gave.
    key = key_of(["e", Clips().clip("0.1").digest, None, "hello"])
    assert encode(tmp_path, policy, [alone]) == [f"{key[:2]}/{key}.npz"]
    histories = [(turn,), (replace(turn, clip=None),), (replace(turn, clip="0.4"),), (replace(turn, text="No."),), (turn, turn)]
    histories += [(replace(turn, speaker="user"),)]
    names = [encode(tmp_path, policy, [replace(alone, history=history)])[0] for history in histories]
    assert len({f"{key[:2]}/{key}.npz", *names}) == 7


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float32, np.float64), (torch.bfloat16, np.float16)])
def test_a_policy_in_half_precision_has_its_features_in_half_precision(dtype: torch.dtype, kept: type, tmp_path: Path) -> None:
    [name] = encode(tmp_path, Encoder(dtype), [query("a", "0.1")])
    features = read_prompt(tmp_path / name).features
    assert features is not None
    assert features.dtype == kept


def test_another_checkpoint_component_or_precision_is_another_encoder(tmp_path: Path) -> None:
    checkpoint, whisper = tmp_path / "sft", tmp_path / "whisper"
    for folder in (checkpoint, whisper):
        folder.mkdir()
        (folder / "weights").write_text("1")
    (checkpoint / "parts.json").write_text(f'{{"whisper": "{whisper}"}}')

    def version(dtype: torch.dtype = torch.float32) -> str:
        return encoder_version(Encoder(dtype), checkpoint)  # type: ignore[arg-type]

    seen = [version(), version(torch.bfloat16)]
    assert version() == seen[0]
    for folder in (checkpoint, whisper):
        (folder / "weights").write_text("longer")
        seen.append(version())
    # Of the same size.
    (whisper / "weights").write_text("larger")
    seen.append(version())
    assert len(set(seen)) == 5
    # A copy is the same: other times, and another place.
    os.utime(whisper / "weights", ns=(0, 0))
    shutil.copytree(checkpoint, tmp_path / "copy")
    assert version() == encoder_version(Encoder(), tmp_path / "copy") == seen[-1]  # type: ignore[arg-type]


PROMPT_BYTES = 64 * 512 * 4


def linked_prompts(folder: Path, count: int) -> PromptFiles:
    """So many files of prompts, all of the same bytes."""
    rng, everywhere = np.random.default_rng(0), np.ones(64, dtype=bool)
    features = rng.normal(size=(64, 512)).astype(np.float32)
    write_prompt(folder / "made.npz", Prompt(np.zeros((64, 1), np.int64), np.zeros(64, np.int64), features, everywhere), False)
    names = [f"{number}.npz" for number in range(count)]
    for name in names:
        os.link(folder / "made.npz", folder / name)
    return PromptFiles(folder, names=names)


def peak_of_a_run(folder: Path, prompts: int, steps: int) -> int:
    """The most bytes that the driver's decisions over some steps add to the prompts' names."""
    config = RunConfig(run_dir=folder, align=align_config(queries_per_step=4))
    files = linked_prompts(folder / "prompts", prompts)
    tracemalloc.start()
    try:
        questions = [RewardQuestion("q", None, "hello")] * prompts
        run = Run(config, Console(quiet=True), quiet=True)
        job = GRPOJob(run, files, questions, PromptFiles(folder), [], lambda prompt, _: prompt)
        seen: set[int] = set()
        for step in range(steps):
            batch = step_batch(job, step)
            seen.add(len(batch.prompts))
            del batch
        assert seen == {4}
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_drivers_memory_does_not_grow_with_the_prompts(tmp_path: Path) -> None:
    """Of ten times the prompts it holds a step's as well, and less than one more; all of them would be 0.5 GB."""
    few, many = (peak_of_a_run(tmp_path / str(count), count, steps=20) for count in (400, 4000))
    assert few > 4 * PROMPT_BYTES
    assert many - few < PROMPT_BYTES
