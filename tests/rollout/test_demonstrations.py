"""Demonstrations on disk: what is read is what was encoded, in one slot or several, and nothing is encoded twice.

Not covered: encoders of released models (tests/policy), and what an update does with them (tests/train/test_anchor.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt
from tiny.interleaved import sliding, tiny_glm, tiny_turns

from paras2s.audio.clip import Clip
from paras2s.errors import DataError
from paras2s.policy.base import Policy
from paras2s.rollout.demonstrations import DemonstrationFiles, encode_targets_into, read_target, write_target
from paras2s.rollout.prompts import encode_into
from paras2s.train.sft import Example, stream_losses
from paras2s.types import Block, Demonstration, Query


def assert_equal_targets(found: Sequence[Block], expected: Sequence[Block]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.slots == other.slots
        assert one.tokens.dtype == other.tokens.dtype
        for name in ("tokens", "sampled", "behaviour_logp", "streams"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


class Clips:
    """Clips by name; equal names are equal clips."""

    def clip(self, name: str) -> Clip:
        return Clip(np.full(6400, float(name), dtype=np.float32), 8000)

    def cached_features(self, name: str) -> bytes | None:
        return None


class Counting:
    """In place of a policy: a tiny one's targets, counted."""

    def __init__(self) -> None:
        self.policy, self.encoded = small_policy(small_model(small_config())), list[str]()
        self.model = self.policy.model

    def encode_demonstrations(self, clips: Clips, answers: Sequence[tuple[str, str]]) -> list[tuple[Block, ...]]:
        self.encoded += [f"{name} {text}" for name, text in answers]
        codes = [np.ones((len(text) + 3, 2), dtype=np.int64) for _, text in answers]
        letters = [[ord(letter) - ord("a") for letter in text] for _, text in answers]
        return [(self.policy.target_block(*parts),) for parts in zip(codes, letters, strict=True)]

    def encode_queries(self, clips: Clips, queries: Sequence[Query]) -> list[Any]:
        return [small_prompt(small_config(), 1, 3, seed=int(query.id[1:])) for query in queries]


def demonstration(query: str, clip: str, text: str) -> Demonstration:
    return Demonstration(query, text, "calm", clip)


def test_a_target_of_two_streams_is_read_as_it_was_written(tmp_path: Path) -> None:
    policy = small_policy(small_model(small_config()))
    target = (policy.target_block(np.array([[4, 0], [1, 3]]), [0, 2]),)
    write_target(tmp_path / "one.npz", target)
    assert_equal_targets(read_target(tmp_path / "one.npz"), target)


def test_a_target_of_one_stream_keeps_its_labels_and_its_losses(tmp_path: Path) -> None:
    """Of one slot, which holds text and audio in turn: its labels say which is which."""
    policy: Policy = tiny_glm()
    target = policy.encode_target(sliding(0.3, 16_000, 100), "Hi")
    write_target(tmp_path / "one.npz", target)
    found = read_target(tmp_path / "one.npz")
    assert_equal_targets(found, target)
    assert found[0].labels is not None
    prompt = policy.encode_prompt(tiny_turns()[0])
    one, other = (stream_losses(policy, [Example(prompt, blocks)], 1.0) for blocks in (found, target))
    torch.testing.assert_close(one, other, atol=0, rtol=0)
    assert bool((one > 0).all())


def test_what_is_there_is_not_encoded_again(tmp_path: Path) -> None:
    """Two queries with one good answer share its file; another clip, other words and another encoder have their own."""
    policy: Any = Counting()
    rows = [demonstration("q0", "0.1", "ab"), demonstration("q1", "0.1", "ab"), demonstration("q1", "0.2", "ab"),
            demonstration("q2", "0.1", "ba")]  # fmt: skip
    names, encoded = encode_targets_into(tmp_path, policy, "e", Clips(), rows)
    assert (len(set(names)), encoded) == (3, 3)
    assert names[0] == names[1]
    assert encode_targets_into(tmp_path, policy, "e", Clips(), rows) == (names, 0)
    assert policy.encoded == ["0.1 ab", "0.2 ab", "0.1 ba"]
    assert not {*names} & {*encode_targets_into(tmp_path, policy, "another", Clips(), rows)[0]}


def test_a_row_is_its_query_and_its_answer(tmp_path: Path) -> None:
    policy: Any = Counting()
    queries = [Query(f"q{n}", f"q{n}", None, None, "demonstration", "someone", f"0.{n}", 0.1, "a", "a", "x") for n in range(2)]
    rows = [demonstration("q1", "0.1", "ab"), demonstration("q0", "0.2", "ba"), demonstration("q1", "0.2", "a")]

    class Encoders:
        def encode(self, folder: Path, clips: Any, queries: Sequence[Query], done: Any) -> list[str]:
            return encode_into(folder, policy, "e", clips, queries)[0]

        def encode_targets(self, folder: Path, clips: Any, rows: Sequence[Demonstration], done: Any) -> list[str]:
            done(len(rows), len(rows))
            return encode_targets_into(folder, policy, "e", clips, rows)[0]

    files, said = DemonstrationFiles(tmp_path, Clips(), rows, queries, lambda prompt, _: prompt), list[tuple[int, int]]()
    files.encode(Encoders(), lambda *now: said.append(now))
    assert (len(files), said) == (3, [(3, 3)])
    for number, (query, text) in enumerate([(1, "ab"), (0, "ba"), (1, "a")]):
        example = files[number]
        np.testing.assert_array_equal(example.prompt.audio_ids, small_prompt(small_config(), 1, 3, seed=query).audio_ids)
        assert_equal_targets(example.target, policy.encode_demonstrations(Clips(), [("", text)])[0])


@pytest.mark.parametrize("cut", [True, False], ids=["broken", "missing"])
def test_a_broken_file_is_named(cut: bool, tmp_path: Path) -> None:
    path, target = tmp_path / "one.npz", (small_policy(small_model(small_config())).target_block(np.array([[4, 0]]), [0]),)
    write_target(path, [replace(one, tokens=one.tokens.copy()) for one in target])
    if cut:
        path.write_bytes(path.read_bytes()[:200])
    else:
        path.unlink()
    with pytest.raises(DataError, match=r"one.npz: not an encoded demonstration .*--resume encodes it again"):
        read_target(path)
