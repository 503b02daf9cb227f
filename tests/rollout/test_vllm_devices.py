"""vLLM over several devices: what it is made with, and how new weights reach its processes, at the seam to vLLM.

`FakeLlm` stands for `vllm.LLM`, since several devices are not here. Not covered: vLLM itself (tests/rollout_vllm has it on one
processor), NCCL, and whether its processes start.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paras2s.configs.schema.align import AlignConfig
from paras2s.rollout.vllm_worker import VllmWorker


class FakeLlm:
    """Keeps what it is given, and loads weights as vLLM's `reload_weights` does: from an iterator, or from a folder."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.weights, self.how = settings, dict[str, torch.Tensor](), ""

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights"
        ((self.how, given),) = kwargs.items()
        if self.how == "weights_iterator":
            self.weights = dict(given)
        else:
            (path,) = Path(given).glob("*.safetensors")
            self.weights = load_file(path)

    def reset_prefix_cache(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder, beside a fake vLLM; the environment is put back."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLlm))
    monkeypatch.setattr("os.environ", dict())
    save_file({"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(4)}, tmp_path / "model.safetensors")
    return tmp_path


def made(folder: Path, *devices: int) -> tuple[VllmWorker, Any]:
    worker = VllmWorker(str(folder), "bfloat16", 64, 1, 0.5, *devices)
    return worker, worker.llm


def new_weights() -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Tensors, and the same as they travel: bfloat16 as the int16 of its bits."""
    tensors = {"a": torch.arange(6).view(2, 3).to(torch.bfloat16) / 7, "b": torch.arange(4.0)}
    return tensors, {"a": tensors["a"].view(torch.int16).numpy(), "b": tensors["b"].numpy()}


@pytest.mark.parametrize(("devices", "how"), [((), "weights_iterator"), ((1,), "weights_iterator"), ((2,), "weights_path")])
def test_weights_reach_every_process_to_the_bit(devices: tuple[int, ...], how: str, folder: Path) -> None:
    worker, llm = made(folder, *devices)
    assert llm.settings["tensor_parallel_size"] == (devices or (1,))[0]
    assert llm.settings["distributed_executor_backend"] == ("mp" if how == "weights_path" else None)
    expected, arrays = new_weights()
    for version in (3, 4):
        worker.set_weights(arrays, version)
        assert llm.how == how
        assert worker.version == version
        assert llm.weights.keys() == expected.keys()
        for name, value in expected.items():
            assert llm.weights[name].dtype == value.dtype
            assert torch.equal(llm.weights[name], value)
        arrays["b"] += 1
    with pytest.raises(ValueError, match="not this model's weights: b"):
        worker.set_weights({"a": arrays["a"]}, 5)
    assert worker.version == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampling": {"tensor_parallel": 2}}, "only vLLM splits"),
        ({"sampling": {"tensor_parallel": 2, "engine": "vllm"}, "workers": {"rollout": {"gpus": 1}}}, "gpus to 2"),
    ],
)
def test_devices_that_are_not_reserved_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AlignConfig(**settings)


def test_devices_that_are_reserved_are_taken() -> None:
    sampling: Any = {"tensor_parallel": 2, "engine": "vllm"}
    workers: Any = {"rollout": {"gpus": 2}}
    assert AlignConfig(sampling=sampling, workers=workers).sampling.tensor_parallel == 2
    assert AlignConfig(sampling=sampling).workers.rollout.gpus == 0
