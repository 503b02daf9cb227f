"""Which device a config means, and what is switched off on a GPU. Not covered: a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paras2s.utils.device import found_device, give_back


@pytest.mark.parametrize("has_gpu", [True, False])
def test_auto_is_a_gpu_where_there_is_one(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Any]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", calls.append)
    with torch.backends.cudnn.flags(allow_tf32=True):
        assert found_device("cpu") == "cpu"
        assert torch.backends.cudnn.allow_tf32
        assert found_device() == ("cuda" if has_gpu else "cpu")
        assert torch.backends.cudnn.allow_tf32 is not has_gpu
    assert calls == [False] * has_gpu
    assert found_device("cuda:1") == "cuda:1"
    assert calls == [False] * (1 + has_gpu) + [1]


def test_each_of_several_processes_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    current = list[int]()
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    with torch.backends.cudnn.flags(allow_tf32=True):
        assert found_device() == "cuda:2"
    assert current == [2]


@pytest.mark.parametrize("opened", [True, False])
def test_memory_is_given_back_where_a_gpu_was_opened(opened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `empty_cache` would open one."""
    calls = list[bool]()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: opened)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(True))
    give_back()
    assert calls == [True] * opened
