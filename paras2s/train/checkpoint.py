"""Training checkpoints (weights, optimiser, RNG, data position): a killed run continues to the same weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.weights import check_state, shapes_of
from paras2s.utils.io import read_json, write_bytes, write_json


def save_training(folder: Path, policy: Policy, optimiser: torch.optim.Optimizer, next_step: int) -> None:
    """Write a checkpoint; `trainer.json` comes last, as the sign that it is complete. With LoRA it holds the adapters alone.

    What no gradient has reached yet has no state in the optimiser: all of it, before the first update.
    """
    from safetensors.torch import save

    trained = {name: value.detach().cpu().contiguous() for name, value in policy.trainable().items()}
    write_bytes(folder / "trained.safetensors", save(trained))
    state = optimiser.state_dict()["state"]
    tensors = {f"{index}.{key}": value for index, held in state.items() for key, value in held.items()}
    tensors["torch_rng"] = torch.get_rng_state()
    write_bytes(folder / "optimiser.safetensors", save(tensors))
    write_json(folder / "trainer.json", {"next_step": next_step})


def restore_training(folder: Path, policy: Policy, optimiser: torch.optim.Optimizer) -> int:
    """Fill policy and optimiser from a checkpoint and return the step to do next.

    Raises:
        PolicyError: the files do not fit this policy. DataError: `trainer.json` is missing: not a complete checkpoint.
    """
    position = read_json(folder / "trainer.json")
    trained, wanted = _read(folder / "trained.safetensors"), policy.trainable()
    check_state(shapes_of(wanted), shapes_of(trained), str(folder / "trained.safetensors"))
    for name, value in trained.items():
        wanted[name].data.copy_(value)
    path = folder / "optimiser.safetensors"
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
            raise PolicyError(f"{path}: is of another policy: its tensor {number} fits none of the {len(learning)}; start anew")
    optimiser.load_state_dict({"state": states, "param_groups": groups})
    torch.set_rng_state(rng)
    return int(position["next_step"])


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (FileNotFoundError, SafetensorError) as error:
        where = f"delete {path.parent} and resume from an older one"
        raise PolicyError(f"{path}: cannot be read ({error}); {where}") from error


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint among `step_NNNNNN` folders, None if there is none."""
    complete = [path.parent for path in folder.glob("step_*/trainer.json")]
    return max(complete, key=lambda path: path.name) if complete else None
