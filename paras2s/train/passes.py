"""Passes with a gradient: one after the other, or side by side on a processor, a core each.

torch's own threads share out single operations and wait for each other at every one. Those of a small model are so short that
most of the second core's time is waiting, the more so beside other programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from paras2s.policy.base import Policy
from paras2s.utils.process_pool import TORCH_THREADS

Result = TypeVar("Result")


def passes_at_once(policy: Policy, sharded: bool, micro_batch_size: int | None) -> int:
    """Return the number of passes of a batch, so that each has a core: 1 on a GPU, with sharded weights or a given size."""
    split = not sharded and micro_batch_size is None and policy.passes_in_threads and policy.device.type == "cpu"
    return torch.get_num_threads() if split else 1


def add_gradients(
    passes: Sequence[Callable[[], tuple[Tensor, Result]]], parameters: Sequence[Tensor], at_once: int
) -> list[Result]:
    """Add up the gradients of the passes' losses in `parameters`; return what each pass gives beside its loss.

    They are added in the passes' order, whichever ends first, so that the same passes give the same bits.
    """
    if at_once == 1:
        results = []
        for compute in passes:
            loss, result = compute()
            torch.autograd.backward(loss)
            results.append(result)
        return results
    learned = [parameter for parameter in parameters if parameter.requires_grad]

    def differentiated(compute: Callable[[], tuple[Tensor, Result]]) -> tuple[tuple[Tensor | None, ...], Result]:
        loss, result = compute()
        return torch.autograd.grad(loss, learned, allow_unused=True), result

    results = []
    for gradients, result in side_by_side([partial(differentiated, compute) for compute in passes], at_once):
        for parameter, gradient in zip(learned, gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        results.append(result)
    return results


def side_by_side(passes: Sequence[Callable[[], Result]], at_once: int) -> list[Result]:
    """Return the results of the passes, `at_once` in threads of their own; torch's modes belong to a thread."""
    if at_once == 1:
        return [compute() for compute in passes]
    return list(_pool(at_once).map(lambda compute: compute(), passes))


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    """Return threads of a core each, which have all begun.

    A thread takes its number of threads from the process when it first asks for it, whatever it set before. So each asks here,
    while all say 1, and only then does the process get its own number back.
    """
    threads, begun = torch.get_num_threads(), Barrier(count)
    pool = ThreadPoolExecutor(count, "pass")

    def begin(_: int) -> int:
        torch.set_num_threads(1)
        begun.wait()
        return torch.get_num_threads()

    with TORCH_THREADS:
        try:
            list(pool.map(begin, range(count)))
        finally:
            torch.set_num_threads(threads)
    return pool
