"""Training checkpoints (weights, optimiser, RNG, data position): a killed run continues to the same weights.

A folder is complete once it has `trainer.json`, which is written last and removed first. So whenever a run is killed, the
newest complete folder is one to go on from.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from paras2s.errors import DataError, PolicyError, one_line
from paras2s.policy.weights import check_rank, check_state, shapes_of
from paras2s.utils.io import read_json, reading, write_bytes, write_json
from paras2s.utils.tables import size_text

# The layout of these folders; those from before it had a number are of the first.
VERSION = 1
COMPLETE, TRAINED, OPTIMISER = "trainer.json", "trained.safetensors", "optimiser.safetensors"
# In place of the two files: what several ranks write together (fsdp.py).
PARTS = "parts"


@dataclass(frozen=True)
class Position:
    """The number of updates a checkpoint has seen, and the fingerprint of the weights that its training began with.

    `rl_share` is the adaptive anchor's last share of the policy gradient, None without such an anchor.
    """

    next_step: int
    base: str | None = None
    rl_share: float | None = None


def write_position(folder: Path, position: Position) -> None:
    """Write `trainer.json`, which makes the checkpoint complete."""
    adaptive = {} if position.rl_share is None else {"rl_share": position.rl_share}
    write_json(folder / COMPLETE, {"version": VERSION, "next_step": position.next_step, "base": position.base, **adaptive})


def read_position(folder: Path) -> Position:
    """Read `trainer.json`.

    Raises:
        DataError: it is missing, or broken: not a complete checkpoint. PolicyError: it is of a newer version.
    """
    path = folder / COMPLETE
    held = read_json(path)
    try:
        position = Position(int(held["next_step"]), held.get("base"), held.get("rl_share"))
        version = int(held.get("version", 1))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: does not say which step it is of ({one_line(error)}); take another checkpoint") from error
    if version > VERSION:
        raise PolicyError(f"{path}: is of version {version} of checkpoints, this program reads {VERSION}; install a newer one")
    return position


def check_base(folder: Path, base: str | None) -> None:
    """Compare what a checkpoint began with and the weights that it is to be laid on; where either is unknown nothing is.

    Raises:
        PolicyError: they are others.
    """
    began = read_position(folder).base
    if began is not None and base is not None and began != base:
        raise PolicyError(
            f"{folder / COMPLETE}: was trained from other weights than those of this run's sft folder ({began}, here {base}); "
            "put those back, or start again without --resume"
        )


def updates_of(checkpoint: Path | None) -> int:
    """Return the number of updates that a checkpoint has seen; 0 without a checkpoint."""
    return 0 if checkpoint is None else read_position(checkpoint).next_step


class Trainable(Protocol):
    """Something that is trained: a policy, or a reward model."""

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters that learn, by name."""


def save_training(folder: Path, policy: Trainable, optimiser: torch.optim.Optimizer, position: Position) -> None:
    """Write a checkpoint; `trainer.json` comes last, as the sign that it is complete. With LoRA it holds the adapters alone.

    A parameter that no gradient has reached has no state in the optimiser; before the first update none has.
    """
    from safetensors.torch import save

    trained = {name: value.detach().cpu().contiguous() for name, value in policy.trainable().items()}
    write_bytes(folder / TRAINED, save(trained))
    state = optimiser.state_dict()["state"]
    tensors = {f"{index}.{key}": value for index, held in state.items() for key, value in held.items()}
    tensors["torch_rng"] = torch.get_rng_state()
    write_bytes(folder / OPTIMISER, save(tensors))
    write_position(folder, position)


def fill_trained(folder: Path, policy: Trainable) -> None:
    """Fill what the policy trains from a checkpoint, whether one process wrote it or several ranks did.

    Raises:
        PolicyError: a file is missing or broken, or does not fit this policy.
    """
    learning = policy.trainable()
    if (folder / PARTS).is_dir():
        _fill_from_parts(folder / PARTS, learning)
        return
    trained = _read(folder / TRAINED)
    check_rank(shapes_of(learning), shapes_of(trained), str(folder / TRAINED))
    check_state(shapes_of(learning), shapes_of(trained), str(folder / TRAINED))
    for name, value in trained.items():
        learning[name].data.copy_(value)


def _fill_from_parts(parts: Path, learning: Mapping[str, Tensor]) -> None:
    """Put together what several ranks wrote."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    held: dict[str, Any] = {"model": {name: value.detach() for name, value in learning.items()}}
    try:
        described = FileSystemReader(parts).read_metadata().state_dict_metadata
        sizes = {name: tuple(getattr(described.get(f"model.{name}"), "size", ())) for name in learning}
        present = {name: size for name, size in sizes.items() if f"model.{name}" in described}
        check_rank(shapes_of(learning), present, str(parts))
        check_state(shapes_of(learning), present, str(parts))
        load(held, checkpoint_id=parts, no_dist=True)
    # Torch derives the first from BaseException.
    except (CheckpointException, RuntimeError, ValueError, EOFError, OSError) as error:
        raise PolicyError(f"{parts}: cannot be read ({type(error).__name__}); take another checkpoint") from error


def restore_training(folder: Path, policy: Trainable, optimiser: torch.optim.Optimizer) -> int:
    """Fill policy and optimiser from a checkpoint and return the step to do next.

    Raises:
        PolicyError: the files do not fit this policy. DataError: `trainer.json` is missing: not a complete checkpoint.
    """
    position = read_position(folder)
    if (folder / PARTS).is_dir():
        raise PolicyError(
            f"{folder}: a checkpoint of several learners; set align.workers.learner.count (a warm-up: warmup.learner) to go on"
        )
    fill_trained(folder, policy)
    path = folder / OPTIMISER
    tensors = _read(path)
    rng = tensors.pop("torch_rng")
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        states.setdefault(int(index), {})[key] = value
    groups = optimiser.state_dict()["param_groups"]
    learning = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for number, state in states.items():
        if number >= len(learning) or state["exp_avg"].shape != learning[number].shape:
            raise PolicyError(
                f"{path}: is of another policy: its tensor {number} fits none of the {len(learning)}; start again"
            )
    optimiser.load_state_dict({"state": states, "param_groups": groups})
    torch.set_rng_state(rng)
    return position.next_step


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    with reading(path, "cannot be read", f"; delete {path.parent} and resume from an older one", PolicyError):
        return dict(load_file(path))


# -- which of them stay -------------------------------------------------------------------------------------------------


def step_name(updates: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"step_{updates:06d}"


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Return the complete checkpoints among `step_NNNNNN` folders by the number of their updates, in order."""
    named = {path.parent.name[5:]: path.parent for path in folder.glob(f"step_*/{COMPLETE}")}
    return dict(sorted((int(number), path) for number, path in named.items() if number.isdecimal()))


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, None if there is none."""
    return next(reversed(checkpoints_in(folder).values()), None)


def best_by_validation(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the updates of the highest validation reward in the log, the first of equals; None if none was scored."""
    scored = [(row["validation_reward"], row["step"] + 1) for row in rows if row.get("validation_reward") is not None]
    return max(scored, key=lambda row: (row[0], -row[1]))[1] if scored else None


def under_one_model(
    rows: Sequence[Mapping[str, Any]], refreshed: int, rewards: Mapping[int, float | None], existing: Collection[int]
) -> list[Mapping[str, Any]]:
    """Return the log's rows whose checkpoints are `existing`, by updates, with validation rewards that compare.

    A reward model that was trained again after `refreshed` updates gives other scores than the model before it, so
    evaluations of earlier steps have the `rewards` that it gives their answers, by step; without one they are not compared.
    """
    return [
        row if row["step"] >= refreshed else {**row, "validation_reward": rewards.get(row["step"])}
        for row in rows
        if row["step"] + 1 in existing
    ]


def superseded(updates: Sequence[int], keep: int | None, best: int | None) -> list[int]:
    """Return the checkpoints to remove: all but the `keep` newest (None: all stay) and the best."""
    return [] if keep is None else [update for update in sorted(updates)[:-keep] if update != best]


def remove_superseded(folder: Path, keep: int | None, best: int | None) -> None:
    """Remove checkpoints that newer ones supersede, and what a kill left half written or half removed.

    Called after a new one is complete. Each loses its sign of completeness first: a kill in the middle leaves a folder that
    nothing resumes from, and the next call removes it.
    """
    complete = checkpoints_in(folder)
    for updates in superseded(list(complete), keep, best):
        _remove(complete[updates])
    for path in folder.glob("step_*"):
        if path.is_dir() and not (path / COMPLETE).is_file():
            _remove(path)


def remove_all(folder: Path) -> None:
    """Remove every checkpoint, so that nothing resumes from a run that is begun again."""
    for path in folder.glob("step_*"):
        _remove(path)


def _remove(folder: Path) -> None:
    (folder / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def training_bytes(trained: Trainable) -> int:
    """Size of a checkpoint: the trained weights, and two numbers of the optimiser for each."""
    return 3 * sum(value.numel() * value.element_size() for value in trained.trainable().values())


def describe_size(each_bytes: int, most: int, adapters: bool) -> str:
    """Return a line on how much disk a run's checkpoints take."""
    what = "adapters" if adapters else "all weights"
    each, total = size_text(each_bytes), size_text(each_bytes * most)
    return f"checkpoints: {each} each ({what} and optimiser), at most {most} at once: {total}"
