"""Which device a config means, and what is switched off on a GPU. Not covered: a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from paras2s.utils.device import found_device, give_back, use_threads


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


def test_numbers_too_small_to_weigh_are_0_in_a_thread_and_in_those_that_it_starts() -> None:
    """In a thread of its own, since the setting is a thread's: other tests' arithmetic stays as it was."""

    def smallest() -> float:
        return float(torch.full((64,), 1e-30).mul_(1e-10)[0])

    def with_threads() -> tuple[float, float]:
        use_threads(1)
        with ThreadPoolExecutor(1) as pool:
            return smallest(), pool.submit(smallest).result()

    before = torch.get_num_threads()
    with ThreadPoolExecutor(1) as pool:
        try:
            assert pool.submit(with_threads).result() == (0, 0)
        finally:
            torch.set_num_threads(before)
    assert smallest() == pytest.approx(1e-40)
