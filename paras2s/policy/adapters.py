"""Adapters by themselves, in the layout of peft: their weights, their sizes, and the folder of the weights beneath them.

Reading a folder of adapters opens the weights that it names, lays the adapters on them and folds them in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paras2s.errors import PolicyError
from paras2s.utils.io import write_bytes, write_json

if TYPE_CHECKING:
    # It brings torch: seconds for whoever only looks whether a folder holds adapters.
    from paras2s.policy.base import Policy

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Before the names of a model's modules, as peft writes them.
PREFIX = "base_model.model."


@dataclass(frozen=True)
class Adapters:
    """A folder of adapters: their sizes, the weights they belong on, and the fingerprint of those (None: not known)."""

    folder: Path
    base: Path
    rank: int
    alpha: int
    fingerprint: str | None

    def merge_into(self, policy: Policy) -> None:
        """Fold the adapters into a policy that was opened from `base`. Raises PolicyError: they do not fit it, by name."""
        from paras2s.policy.weights import check_rank, load_tensors, shapes_of, stored_shapes

        policy.add_lora(self.rank, self.alpha)
        tensors = policy.trainable()
        own = {_stored(name): name for name in tensors}
        check_rank(shapes_of(tensors), stored_shapes([self.folder / WEIGHTS]), str(self.folder / WEIGHTS))
        load_tensors(tensors, [self.folder / WEIGHTS], str(self.folder / WEIGHTS), lambda name: own.get(name, name))
        policy.merge_lora()
        policy.narrow_trained()


def _stored(name: str) -> str:
    return PREFIX + name.replace(".default.", ".")


def has_adapters(folder: Path) -> bool:
    """Return whether a folder holds adapters alone."""
    return (folder / CONFIG).is_file()


def save_adapters(policy: Policy, folder: Path, base: Path, rank: int, alpha: int) -> None:
    """Write the adapters of a policy with its other weights in `base`; the config comes last, as the sign of completeness."""
    from safetensors.torch import save

    from paras2s.policy.weights import fingerprint

    tensors = {_stored(name): value.detach().cpu().contiguous() for name, value in policy.trainable().items()}
    write_bytes(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    described = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": policy.spec.lora_targets,
        "base_model_name_or_path": str(base.resolve()),
        "base_fingerprint": fingerprint(base),
    }
    write_json(folder / CONFIG, described)


def read_adapters(folder: Path) -> Adapters:
    """Read what `save_adapters` wrote. Raises PolicyError: broken, or the weights beneath are missing or others."""
    from paras2s.policy.weights import fingerprint, read_config

    path = folder / CONFIG
    held = read_config(path, ("r", "lora_alpha", "base_model_name_or_path"))
    try:
        rank, alpha = int(str(held["r"])), int(str(held["lora_alpha"]))
    except ValueError as error:
        raise PolicyError(f"{path}: r and lora_alpha must be whole numbers ({error}); export the checkpoint again") from error
    base = Path(str(held["base_model_name_or_path"]))
    if not base.is_dir():
        raise PolicyError(f"{path}: the weights beneath the adapters are not at {base}; set base_model_name_or_path to them")
    known = held.get("base_fingerprint")
    present = fingerprint(base)
    if known is not None and present is not None and known != present:
        raise PolicyError(
            f"{path}: the adapters were trained on other weights than those in {base}; set base_model_name_or_path to theirs"
        )
    return Adapters(folder, base, rank, alpha, None if known is None else str(known))
