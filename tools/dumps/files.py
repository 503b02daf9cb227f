"""The clip that a dump is made of, and the file that `paras2s check-policy --against` reads."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

# The layout that paras2s/policy/official.py reads.
VERSION = 1
RATE_HZ = 16_000
Parts = dict[str, np.ndarray]


@dataclass
class Made:
    """A dump's parts by name, the slots of each block of an answer, and what else is said of it."""

    parts: Parts
    blocks: list[list[str]]
    dtype: torch.dtype
    said: dict[str, Any] = field(default_factory=dict)


def slots_of(codebooks: int, text: bool = True) -> list[str]:
    """Names of a block's slots."""
    return [*(["text"] if text else []), *(f"audio{k}" for k in range(codebooks))]


def read_wav(path: Path) -> np.ndarray:
    """Samples [n] between -1 and 1."""
    with wave.open(str(path)) as held:
        shape = held.getframerate(), held.getnchannels(), held.getsampwidth()
        if shape != (RATE_HZ, 1, 2):
            raise SystemExit(f"{path}: {shape[0]} Hz, {shape[1]} channels, {8 * shape[2]} bit; give 16 kHz, mono, 16 bit")
        return np.frombuffer(held.readframes(held.getnframes()), dtype="<i2").astype(np.float32) / 32768


def resampled(samples: np.ndarray, rate_hz: int, frame_hz: float) -> np.ndarray:
    """At a codec's rate by soxr, which paras2s uses too, and padded to whole frames."""
    import soxr

    made = soxr.resample(samples, RATE_HZ, rate_hz).astype(np.float32)
    return np.pad(made, (0, -len(made) % round(rate_hz / frame_hz)))


def as_array(row: torch.Tensor) -> np.ndarray:
    """On the CPU, in float32 where it is narrower, since numpy has no bfloat16."""
    row = row.detach()
    return row.to(torch.promote_types(row.dtype, torch.float32)).cpu().numpy() if row.is_floating_point() else row.cpu().numpy()


def last_rows(kept: list[torch.Tensor], forbidden: Callable[[int], torch.Tensor] | None = None) -> Callable[..., Any]:
    """A hook of a head [1, L, V] that keeps each call's last row; greedy decoding then never draws what is `forbidden`."""

    def hook(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor | None:
        kept.append(logits[0, -1].detach())
        return None if forbidden is None else logits.masked_fill(forbidden(logits.shape[-1]).to(logits.device), -1e9)

    return hook


def first_noise(seed: int) -> list[float]:
    """The first numbers that torch draws after a seed: another torch may draw others, and then sound is not comparable."""
    return torch.randn(32, generator=torch.Generator().manual_seed(seed)).tolist()


def write(made: Made, out: Path, model: str, question: np.ndarray, seed: int) -> None:
    blocks: Sequence[Any] = made.blocks[0] if len(made.blocks) == 1 else made.blocks
    said = {
        "version": VERSION, "model": model, "dtype": str(made.dtype).removeprefix("torch."), "torch": torch.__version__,
        "slots": blocks, "question_hz": RATE_HZ, "seed": seed, "noise": first_noise(seed), **made.said,
    }  # fmt: skip
    held = {name: np.ascontiguousarray(part) for name, part in (made.parts | {"question": question}).items()}
    save_file(held, str(out), metadata={"dump_official": json.dumps(said)})
    sizes = ", ".join(f"{name} {'x'.join(map(str, part.shape))}" for name, part in held.items())
    print(f"{out}: {sizes}")
