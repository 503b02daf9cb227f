"""Which device a config means, and what is switched off on a GPU. Not covered: a GPU."""

from __future__ import annotations

import pytest
import torch

from paras2s.utils.device import found_device


@pytest.mark.parametrize("has_gpu", [True, False])
def test_auto_is_a_gpu_where_there_is_one(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = list[bool]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", plans.append)
    assert found_device() == ("cuda" if has_gpu else "cpu")
    assert found_device("cpu") == "cpu"
    assert plans == [False] * has_gpu
    assert found_device("cuda:1") == "cuda:1"
    assert plans == [False] * (1 + has_gpu)
