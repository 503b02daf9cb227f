"""The device that models run on, and its memory."""

from __future__ import annotations

import os


def found_device(device: str = "auto") -> str:
    """Return the device that a config means; by "auto" a GPU where there is one, else the processor.

    On a GPU cuDNN's attention is off from then on: it seems to make a plan for every new length, and an answer has a new
    length at every step. On an H200 Qwen2.5-Omni took 87 ms a step where lengths were new, else 23 (docs/gpu.md).
    """
    import torch

    if device == "auto":
        # Of several processes on a machine, which `accelerate launch` and `torchrun` start, each has its own.
        rank = os.environ.get("LOCAL_RANK")
        device = ("cuda" if rank is None else f"cuda:{rank}") if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)
        # Convolutions in float32 as they say: TF32, the default, gives other codes and sound than a processor.
        torch.backends.cudnn.allow_tf32 = False
        if (index := torch.device(device).index) is not None:
            # Graphs are recorded on the current device; those of work on another would be empty.
            torch.cuda.set_device(index)
    return device


def use_threads(count: int) -> None:
    """Give torch `count` threads on the processor, and let numbers below 1e-38 be 0 in this thread and those that it starts.

    A batch that is learned again and again ends with gradients full of such numbers, and Adam keeps their squares: an update
    of `quick`'s policy took 1.8 s in place of 0.5. In float32 they weigh nothing. Of a run of `quick` no bit changes.
    """
    import torch

    torch.set_flush_denormal(True)
    torch.set_num_threads(count)


def give_back() -> None:
    """Return freed memory to the device at the end of a role's turn: torch would keep it, and other roles share the device."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
