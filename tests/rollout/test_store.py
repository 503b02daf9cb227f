"""The answers that a run keeps: what is written comes back, steps are discarded, and a full disk stops only the keeping.

Not covered: what a step costs on a real run (benchmarks/studio.py measures it).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from paras2s.errors import DataError
from paras2s.rollout.store import (
    INDEX,
    IndexedGroup,
    KeptAnswer,
    RolloutKeeper,
    indexed,
    read_answers,
    read_index,
    read_tokens,
    step_path,
    steps_kept,
)
from paras2s.train.advantages import Values
from paras2s.train.learner import answer_metrics
from paras2s.types import Block, Reward, Rollout, Unscored


def rollout(query_id: str = "q0", texts: tuple[str, ...] = ("hi", "no"), version: int = 3) -> Rollout:
    """Two answers of two slots: the first of three steps, of which the first text token was forced; the second of one."""
    tokens = np.arange(12).reshape(2, 3, 2) + 100
    sampled = np.array([[[False, True], [True, True], [True, True]], [[True, True], [False, False], [False, False]]])
    logp = np.where(sampled, -np.arange(1.0, 13.0).reshape(2, 3, 2), 0.0)
    return Rollout(
        query_id=query_id, policy_version=version, blocks=(Block(("text", "audio"), tokens, sampled, logp),),
        finish_reason=("eos", "length"), seeds=(7, 2**32 - 1), texts=texts,
        codes=(np.array([[1, 2], [3, 4]]), np.zeros((0, 2), int)),
        waves=(np.zeros(0, np.float32),) * 2, sample_rate_hz=8000, code_format="test/1",
    )  # fmt: skip


REWARDS = [[Reward(4.0, {"rubric": 5.0, "length": 3.0}), Reward(2.0, {"rubric": 2.0})]]
ADVANTAGES: Values = [[1.0, -1.0]]


def keep(folder: Path, *steps: int) -> RolloutKeeper:
    keeper = RolloutKeeper(folder, 1, print)
    for step in steps:
        keeper.keep(step, [rollout()], REWARDS, ADVANTAGES)
    return keeper


def test_answers_come_back(tmp_path: Path) -> None:
    keep(tmp_path, 12)
    assert read_answers(step_path(tmp_path / "rollouts", 12)) == [
        KeptAnswer(0, 0, "q0", "hi", 7, 3, "eos", 3, 4.0, {"rubric": 5.0, "length": 3.0}, None, 1.0),
        KeptAnswer(0, 1, "q0", "no", 2**32 - 1, 3, "length", 1, 2.0, {"rubric": 2.0}, None, -1.0),
    ]


def test_tokens_come_back_without_padding(tmp_path: Path) -> None:
    keep(tmp_path, 0)
    path = step_path(tmp_path / "rollouts", 0)
    first, second = read_tokens(path, 0, 0), read_tokens(path, 0, 1)
    assert first.tokens[0].tolist() == [[100, 101], [102, 103], [104, 105]]
    np.testing.assert_array_equal(first.logprobs[0], [[np.nan, -2], [-3, -4], [-5, -6]])
    assert (first.slots, first.code_format, first.codes.tolist()) == ((("text", "audio"),), "test/1", [[1, 2], [3, 4]])
    assert first.streams[0].tolist() == [[0, 1]] * 3
    assert (second.tokens[0].tolist(), second.codes.shape) == ([[106, 107]], (0, 2))
    with pytest.raises(DataError, match="no answer 5 in group 0"):
        read_tokens(path, 0, 5)


def test_an_unscored_answer_has_its_reason_and_neither_reward_nor_advantage(tmp_path: Path) -> None:
    keeper = RolloutKeeper(tmp_path, 1, print)
    keeper.keep(0, [rollout()], [[Unscored("llm", "refused"), REWARDS[0][1]]], [[None, None]])
    first, second = read_answers(step_path(tmp_path / "rollouts", 0))
    assert (first.reward, first.unscored, first.advantage, second.advantage) == (None, "llm: refused", None, None)
    assert read_index(tmp_path / "rollouts") == {0: [IndexedGroup("q0", 2.0, 0.0, 1)]}


def test_the_newest_steps_of_the_index_are_those_of_all(tmp_path: Path) -> None:
    keeper = RolloutKeeper(tmp_path, 1, print)
    for step in range(4):
        keeper.keep(step, [rollout()], REWARDS, [[None, None]])
    every = read_index(tmp_path / "rollouts")
    assert read_index(tmp_path / "rollouts", newest=2) == {step: every[step] for step in (2, 3)}
    assert read_index(tmp_path / "rollouts", newest=9) == every


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4.0, 2.0], ("q", 3.0, 1.0, 0)),
        ([0.1, 0.1, 0.1], ("q", pytest.approx(0.1), 0.0, 0)),
        ([None, None], ("q", None, None, 2)),
    ],
)
def test_index(values: list[float | None], expected: tuple) -> None:
    found = indexed("q", values)
    assert (found.query_id, found.mean, found.spread, found.unscored) == expected


def test_only_every_nth_step_is_kept(tmp_path: Path) -> None:
    for every, expected in ((2, [0, 2]), (0, [])):
        keeper = RolloutKeeper(tmp_path / str(every), every, print)
        for step in range(4):
            keeper.keep(step, [rollout()], REWARDS, ADVANTAGES)
        assert list(steps_kept(keeper.folder)) == expected


def test_steps_that_are_done_again_are_discarded(tmp_path: Path) -> None:
    """A resumed run then has the very files of an uninterrupted one."""
    keep(tmp_path / "stopped", 0, 1, 2).discard_from(1)
    assert list(steps_kept(tmp_path / "stopped/rollouts")) == list(read_index(tmp_path / "stopped/rollouts")) == [0]
    keep(tmp_path / "stopped", 1, 2)
    keep(tmp_path / "expected", 0, 1, 2)
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name / "rollouts").iterdir()} for name in ("stopped", "expected")
    ]
    assert files[0] == files[1]


def test_a_disk_that_refuses_ends_the_keeping_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "rollouts").write_text("a file stands in the folder's place")
    said: list[str] = []
    keeper = RolloutKeeper(tmp_path, 1, said.append)
    for step in range(3):
        keeper.keep(step, [rollout()], REWARDS, ADVANTAGES)
    assert len(said) == 1
    assert "not kept from step 0 on" in said[0]


def test_neither_a_broken_index_nor_a_broken_word_stops_a_run(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / INDEX).write_text("no json\n{}\n")
    RolloutKeeper(tmp_path, 1, said.append).discard_from(0)
    assert "not kept from step 0 on" in said[0]
    # A judge's JSON may hold half of a character.
    half = [[REWARDS[0][0], Unscored("llm", "\ud83d")]]
    RolloutKeeper(tmp_path / "other", 1, said.append).keep(0, [rollout()], half, ADVANTAGES)
    assert "not kept from step 0 on" in said[1]


def test_groups_that_the_learner_leaves_out_have_no_advantage(tmp_path: Path) -> None:
    near = [Reward(3.0, {"length": 3.0}), Reward(3.2, {"length": 3.2})]
    far = [Reward(1.0, {"length": 1.0}), Reward(5.0, {"length": 5.0})]
    advantages = [[None, None], [-2.0, 2.0]]
    RolloutKeeper(tmp_path, 1, print).keep(0, [rollout(), rollout("q1")], [near, far], advantages)
    found = read_answers(step_path(tmp_path / "rollouts", 0))
    assert [one.advantage for one in found] == [None, None, -2.0, 2.0]
    assert [one.reward for one in found] == [3.0, 3.2, 1.0, 5.0]


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing", b"x" * 5000])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = step_path(tmp_path, 3)
    path.write_bytes(content)
    for read in (read_answers, lambda path: read_tokens(path, 0, 0)):
        with pytest.raises(DataError, match=r"step_000003.parquet: cannot be read"):
            read(path)


@pytest.mark.parametrize("column", ["parts", "logprobs"])
def test_a_file_without_a_column_is_named(tmp_path: Path, column: str) -> None:
    keeper = RolloutKeeper(tmp_path, 1, print)
    keeper.keep(0, [rollout()], REWARDS, ADVANTAGES)
    path = step_path(keeper.folder, 0)
    pq.write_table(pq.read_table(path).drop_columns(column), path)
    with pytest.raises(DataError, match=f"step_000000.parquet: has no column {column}"):
        read_answers(path)


@pytest.mark.parametrize(
    "row", ['{"step": 0}', '{"step": "x", "groups": []}', '{"step": 0, "groups": [["q", "high", 0, 0]]}', "[1]"]
)
def test_a_broken_index_is_named(tmp_path: Path, row: str) -> None:
    (tmp_path / INDEX).write_text(row + "\n")
    with pytest.raises(DataError, match="holds another kind of rows"):
        read_index(tmp_path)


def test_metrics_of_answers_by_hand() -> None:
    rewards = [[REWARDS[0][0], Unscored("x", "y")], [Reward(1.0, {"rubric": 1.0}), Reward(1.0, {"rubric": 3.0})]]
    found = answer_metrics([rollout(), rollout(texts=("hi", "hi"))], rewards)
    assert found["reward/rubric"] == 3.0
    assert found["reward/length"] == 3.0
    # Text: -(−3 −5 −7) / 3; audio: -(−2 −4 −6 −8) / 4.
    assert (found["entropy_text"], found["entropy_audio"], found["same_text_share"]) == (5.0, 5.0, 0.75)
