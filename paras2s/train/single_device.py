"""The devices that a learner runs on: one, or several that share its weights (FSDP2).

Everything a rank does differently from a lone process is here; the learner calls the same methods on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paras2s.policy.base import Policy
from paras2s.train.checkpoint import restore_training, save_training


class Devices:
    """One device: nothing is shared."""

    rank, world = 0, 1

    def spread(self, policy: Policy) -> None:
        """Put the policy, and its frozen copy if it has one, on the devices."""

    def share(self, items: Sequence[int]) -> list[int]:
        """The part of them that is for this rank."""
        return list(items)

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sums over all ranks."""
        return values

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Maxima over all ranks."""
        return values

    @contextmanager
    def gathered(self, policy: Policy) -> Iterator[None]:
        """Around a step's passes: inside, the weights are whole; afterwards the gradients are those of all devices."""
        yield

    @contextmanager
    def gathered_reference(self, policy: Policy) -> Iterator[None]:
        """Around the reference's passes: inside, its weights are whole."""
        yield

    def clip(self, parameters: Iterable[Tensor], norm: float) -> float:
        """Scale gradients down to `norm`; returns what it was."""
        return float(torch.nn.utils.clip_grad_norm_(list(parameters), norm))

    def whole(self, tensor: Tensor) -> Tensor:
        """The whole of what may be sharded."""
        return tensor

    def save(self, folder: Path, policy: Policy, optimiser: torch.optim.Optimizer, next_step: int) -> None:
        """Write a checkpoint."""
        save_training(folder, policy, optimiser, next_step)

    def restore(self, folder: Path, policy: Policy, optimiser: torch.optim.Optimizer) -> int:
        """Fill policy and optimiser from a checkpoint; returns the step to do next."""
        return restore_training(folder, policy, optimiser)

    def export(self, folder: Path, policy: Policy, reopen: Callable[[], Policy]) -> None:
        """Write the policy itself, adapters folded in; `reopen` makes the one that training began with."""
        policy.merge_lora()
        policy.save(folder)

    def close(self) -> None:
        """Leave the others."""
