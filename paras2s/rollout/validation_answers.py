"""The answers to validation queries that a run keeps at each evaluation, so that other judges may score them afterwards.

A step's answers are in `RUN/validation/step_000010`: a clip an answer, and `answers.jsonl` with their texts and rewards.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from paras2s.audio.clip import write_clip
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.rollout.reward_inputs import sounds
from paras2s.types import Reward, Rollout, Unscored
from paras2s.utils.io import write_jsonl

FOLDER = "validation"
# The answers that a step keeps: 60 MB where each is 10 s at 24 kHz, whatever the number of queries.
MOST_ANSWERS = 128


def save_answers(folder: Path, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]) -> None:
    """Keep the first answer to each query: its clip, its text and its reward.

    Of more than 128 queries, every second, third and so on is kept, the same queries in every step.

    Raises:
        StorageError: the disk refused.
    """
    rows, codec = [], Codec2Pairs()
    every = -(-len(rollouts) // MOST_ANSWERS) or 1
    for rollout, (reward, *_) in list(zip(rollouts, rewards, strict=True))[::every]:
        paid = {"reward": reward.value} if isinstance(reward, Reward) else {"unscored": reward.reason}
        # Rollouts of the embedded policy come without waves, since its reward model reads codes.
        sound = sounds(rollout, codec)[0]
        empty = not len(sound.samples)
        rows.append({"query_id": rollout.query_id, "text": rollout.texts[0], "empty": empty, **paid})
        # A policy that ended its answer before it began has no clip to keep.
        if not empty:
            write_clip(folder / f"{rollout.query_id}.wav", sound)
    # Last: a folder with this file is complete.
    write_jsonl(folder / "answers.jsonl", rows)


def kept_evaluations(run_folder: Path) -> dict[int, Path]:
    """Return the folders of kept answers by step, in order."""
    files = run_folder.glob(f"{FOLDER}/*/answers.jsonl")
    return dict(sorted((int(path.parent.name.removeprefix("step_")), path.parent) for path in files))


def step_folder(run_folder: Path, step: int) -> Path:
    """Return the folder of one step's answers."""
    return run_folder / FOLDER / f"step_{step:06d}"


def discard_from(run_folder: Path, step: int) -> None:
    """Remove the answers of steps that are about to be done again."""
    for number, folder in kept_evaluations(run_folder).items():
        if number >= step:
            shutil.rmtree(folder, ignore_errors=True)
