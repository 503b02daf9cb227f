"""The device that models run on."""

from __future__ import annotations


def found_device(device: str = "auto") -> str:
    """Return the device that a config means; by "auto" a GPU where there is one, else the processor.

    On a GPU cuDNN's attention is off from then on: it makes a plan for every new length, and an answer has a new length at
    every step. On an H200 Qwen2.5-Omni took 87 ms a step where lengths were new, and 23 ms where they were not (docs/gpu.md).
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device
