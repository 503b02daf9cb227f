"""What workers do with GPUs, on a machine without one: who sees them, and what a role leaves behind.

Not covered: real GPUs, and how much memory comes back.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paras2s.errors import ConfigError
from paras2s.rollout import local_ray, workers
from paras2s.rollout.timeline import SpanRecorder


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Calls to `torch.cuda.empty_cache` on a GPU that is only said to be in use."""
    calls: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(True))
    return calls


def actor(kind: Any, **parts: Any) -> Any:
    """An actor as the object it is in its process, made of these parts."""
    made = object.__new__(kind.__ray_metadata__.modified_class)
    vars(made).update(parts, _recorder=SpanRecorder("role"))
    return made


def test_a_turns_memory_goes_back_to_the_device(freed: list[bool]) -> None:
    learner = SimpleNamespace(step=lambda *_: {}, advantages=None)
    actor(workers.LearnerActor, learner=learner).step(((), (), (), ()))
    assert len(freed) == 1
    actor(workers.RewardWorker, _rewards=SimpleNamespace(score=lambda _: [])).score([], [], slice(0), [])
    assert len(freed) == 2
    actor(workers.SpeakWorker, _speaker=SimpleNamespace(speak=lambda *_: [])).speak(SimpleNamespace(codes=[], seeds=[]))
    assert len(freed) == 3


def test_a_worker_without_a_gpu_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    os.environ.pop("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", None)
    monkeypatch.setattr(local_ray.ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match="nothing listens"):
        local_ray.start_ray("127.0.0.1:1")
    assert os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "1"
