"""Counts the bytes of all tensors that are alive while code runs, as a device's allocator would."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside, `now` is the bytes of the storages that operations have made and that are still held, `peak` their most.

    `known` are tensors that were there before; they count while they live.
    """

    def __init__(self, known: Any = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._held: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self._see(tensor)

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._held:
            return

        def gone(_: Any, key: int = key, size: int = size) -> None:
            self.now -= size
            del self._held[key]

        self._held[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor):
                self._see(one)
        return made
