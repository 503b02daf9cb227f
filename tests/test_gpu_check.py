"""`make gpu-check TINY=--tiny`: every part runs on a processor and prints its line.

Not covered: a GPU, true sizes, and whether the numbers mean what they say.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

TOOL = Path(__file__).parents[1] / "tools" / "gpu_check.py"
sys.path.append(str(TOOL.parent))
LINES = {
    "versions": 1, "attention": 2, "build": 1, "sample plain": 1, "sample recorded": 3, "parity": 3, "sound": 1, "step": 5,
    "checkpoint": 1, "one rank": 1, "omni build": 1, "omni sample": 1, "omni pass": 2,
    "qwen3 omni build": 1, "qwen3 omni sample": 1, "qwen3 omni pass": 2, "embedded sample": 1, "embedded step": 1,
    "family": 2,
}  # fmt: skip


def test_every_part_runs_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--tiny", "--out", str(tmp_path / "gpu.jsonl")])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        code = runpy.run_path(str(TOOL))["main"]()
    finally:
        torch.set_num_threads(threads)
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [line for line in lines if "failed" in line] == []
    assert code == 0
    assert Counter(line["part"] for line in lines) == LINES
    (sound,) = [line for line in lines if line["part"] == "sound"]
    assert sound["same_again"]
    assert sound["batch_apart"] < 1e-3
    recorded = [line for line in lines if line["part"] == "sample recorded"]
    assert [line["same_as_plain"] for line in recorded] == [1, 1, 1]
    assert [line["same_as_before"] for line in recorded] == [None, 1, 1]
    assert all(line["audio_max"] < 1e-4 for line in lines if line["part"] == "parity")


def test_a_part_that_fails_is_a_line_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--tiny", "--out", str(tmp_path / "gpu.jsonl"), "attention", "versions"])

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no kernel")

    tool = runpy.run_path(str(TOOL))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", broken)
    assert tool["main"]() == 1
    first, second = (json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines())
    assert first["part"] == "versions"
    assert (second["part"], second["failed"]) == ("attention", "RuntimeError: no kernel")
