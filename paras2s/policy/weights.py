"""Tensors of a checkpoint: read, compared by name and shape with what a model wants, and written in shards.

A checkpoint that does not fit is refused whole, with the tensors at fault; nothing is ever filled in half.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.errors import PolicyError
from paras2s.utils.io import read_json, reading, sample_digest, write_bytes, write_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
Shapes = Mapping[str, tuple[int, ...]]
_SHOWN = 10


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Name to shape."""
    return {name: tuple(value.shape) for name, value in state.items()}


def check_state(expected: Shapes, stored: Shapes, where: str) -> None:
    """Compare a model's tensors with a checkpoint's. Raises PolicyError: names at most ten that are missing or differ."""
    faults = [f"{name} {list(expected[name])} is missing" for name in sorted(expected.keys() - stored.keys())]
    faults += [f"{name} {list(stored[name])} is not expected" for name in sorted(stored.keys() - expected.keys())]
    faults += [
        f"{name} is {list(stored[name])}, the config wants {list(expected[name])}"
        for name in sorted(expected.keys() & stored.keys())
        if tuple(expected[name]) != tuple(stored[name])
    ]
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise PolicyError(f"{where}: {len(faults)} tensors do not fit: {'; '.join(faults[:_SHOWN])}{more}")


def shard_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint, by its index or the only one. Raises PolicyError: one is missing."""
    index = folder / INDEX
    if index.is_file():
        with reading(index, "not an index of tensors", "; copy the checkpoint again", PolicyError):
            names = sorted(set(map(str, read_json(index)["weight_map"].values())))
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise PolicyError(f"{folder / missing[0]}: the index names it and it is missing; copy the checkpoint again")
        return [folder / name for name in names]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    raise PolicyError(f"{folder}: holds neither {SINGLE} nor {INDEX}")


def fingerprint(folder: Path) -> str | None:
    """Return a hash of a checkpoint's weights by samples of each file; None without files.

    Other weights of the same shapes differ nearly everywhere, so samples tell them apart; all of 20 GB would take minutes.
    """
    try:
        files = shard_files(folder)
    except PolicyError:
        return None
    return hashlib.sha256(b"".join(map(sample_digest, files))).hexdigest()[:32]


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file, whose tensors are read one by one. Raises PolicyError: it is missing, cut off or broken."""
    from safetensors import safe_open

    advice = "; copy the checkpoint again or make a new one"
    with reading(path, "cannot be read", advice, kind=PolicyError), safe_open(path, "pt") as held:
        yield held


def load_tensors(
    model: nn.Module | Mapping[str, Tensor],
    files: Iterable[Path],
    where: str,
    rename: Callable[[str], str | None] = lambda name: name,
) -> None:
    """Fill a model, or named tensors, from safetensors files, one at a time: a checkpoint is never in memory twice.

    `rename` gives the model's name of a stored tensor, None for a tensor to be ignored.

    Raises:
        PolicyError: a file cannot be read, or the tensors do not fit; the model is then unchanged.
    """
    own = {name: value.detach() for name, value in (model.state_dict() if isinstance(model, nn.Module) else model).items()}
    files = list(files)
    check_state(shapes_of(own), stored_shapes(files, rename), where)
    for path in files:
        with open_tensors(path) as held:
            for name in held.keys():  # noqa: SIM118
                if (ours := rename(name)) is not None:
                    own[ours].copy_(held.get_tensor(name))


def stored_shapes(files: Iterable[Path], rename: Callable[[str], str | None] = lambda name: name) -> dict[str, tuple[int, ...]]:
    """Return shapes by name from safetensors headers; `rename` as in `load_tensors`. Raises PolicyError: a file is broken."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        with open_tensors(path) as held:
            for name in held.keys():  # noqa: SIM118 - a safetensors file is no mapping
                if (ours := rename(name)) is not None:
                    shapes[ours] = tuple(held.get_slice(name).get_shape())
    return shapes


def adapter_rank(shapes: Shapes) -> int | None:
    """Return the rank of the adapters among tensors, or None without adapters."""
    return next((shape[0] for name, shape in sorted(shapes.items()) if "lora_A" in name and shape), None)


def check_rank(expected: Shapes, given: Shapes, where: str) -> None:
    """Compare the ranks of adapters, which differ in every tensor. Raises PolicyError: says which rank to set."""
    rank, stored = adapter_rank(expected), adapter_rank(given)
    if rank is not None and stored is not None and rank != stored:
        raise PolicyError(
            f"{where}: holds adapters of rank {stored}, and rank {rank} is requested; set lora: {{rank: {stored}}} to what "
            "they were trained with, or start again"
        )


def load_released(family: Any, folder: Path, dtype: torch.dtype | None) -> Any:
    """Load a model of transformers with a checkpoint's weights; `dtype` None: as stored. Raises PolicyError: no fit."""
    stored = stored_shapes(shard_files(folder))
    with reading(folder, advice="; copy the checkpoint again", kind=PolicyError):
        released, report = family.from_pretrained(
            folder,
            dtype="auto" if dtype is None else dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            local_files_only=True,
        )
    expected = shapes_of(released.state_dict())
    present = {name: shape for name, shape in expected.items() if name not in report["missing_keys"]}
    present |= {name: stored.get(name, ()) for name in report["unexpected_keys"]}
    present |= {name: tuple(shape) for name, shape, _ in report["mismatched_keys"]}
    check_state(expected, present, str(folder))
    return released


def stored_dtype(files: Iterable[Path]) -> torch.dtype:
    """Return the precision of a checkpoint's first floating-point tensor. Raises PolicyError: it is unreadable or has none."""
    names = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    path = None
    for path in files:
        with open_tensors(path) as held:
            for name in held.keys():  # noqa: SIM118 - a safetensors file is no mapping
                if (dtype := names.get(held.get_slice(name).get_dtype())) is not None:
                    return dtype
    raise PolicyError(f"{path}: holds no weights")


def write_tensors(folder: Path, state: Mapping[str, Tensor], shard_bytes: int = 5 * 2**30) -> None:
    """Write safetensors, in shards with an index where they are too large for one file."""
    from safetensors.torch import save

    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, value in state.items():
        held = value.detach().cpu().contiguous()
        if shards[-1] and size + held.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = held
        size += held.nbytes
    if len(shards) == 1:
        write_bytes(folder / SINGLE, save(shards[0], metadata={"format": "pt"}))
        # An index of earlier shards in the same folder would still be read instead.
        (folder / INDEX).unlink(missing_ok=True)
        return
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_bytes(folder / name, save(shard, metadata={"format": "pt"}))
    total = sum(value.nbytes for shard in shards for value in shard.values())
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def read_config(path: Path, keys: Iterable[str]) -> dict[str, object]:
    """Read a released `config.json`, never filled by a class's defaults. Raises PolicyError: keys are missing."""
    with reading(path, "not a model's config", kind=PolicyError):
        config = dict(read_json(path))
    if missing := sorted(set(keys) - config.keys()):
        raise PolicyError(f"{path}: {', '.join(missing)} missing; defaults of a class are not those of its checkpoint")
    return config


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Copy as arrays, which travel between processes; bfloat16, which numpy has not, as the int16 of its bits."""
    copied = {name: value.detach().cpu().clone() for name, value in tensors.items()}
    return {
        name: (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy() for name, value in copied.items()
    }


def fill(tensors: Mapping[str, Tensor], arrays: Mapping[str, np.ndarray], where: str) -> None:
    """Overwrite tensors by what `to_arrays` made of others. Raises PolicyError: names or shapes differ."""
    check_state(shapes_of(tensors), {name: value.shape for name, value in arrays.items()}, where)
    for name, value in arrays.items():
        held = torch.from_numpy(value)
        if held.dtype == torch.int16:
            held = held.view(torch.bfloat16)
        tensors[name].data.copy_(held)


def check_fixed(released: Mapping[str, Any], fixed: Mapping[str, Any], where: str) -> None:
    """Refuse a config that asks for what is not built; a missing key is the model's own default. Raises PolicyError: by key."""
    for key, value in fixed.items():
        if released.get(key, value) != value:
            raise PolicyError(f"{where}: {key} is {released[key]!r}; only {value!r} is built")
