"""A learner on one device; `fsdp.py` has the same methods for several ranks that share its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paras2s.policy.base import Policy
from paras2s.train.checkpoint import Position, restore_training, save_training


class Devices:
    """One device, nothing shared; the interface of `Sharded`."""

    rank, world = 0, 1
    # Whether weights are gathered around each pass, so that no two passes may run at once: also in a group of one.
    sharded = False

    def spread(self, policy: Policy) -> None:
        """Put the policy, and its frozen copy if it has one, on the devices."""

    def share(self, items: Sequence[int]) -> list[int]:
        """Return the part of them that is for this rank."""
        return list(items)

    def passes(self, own: int) -> int:
        """Return the number of passes that this rank must make where `own` are its own."""
        return own

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over all ranks."""
        return values

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Return the maxima over all ranks."""
        return values

    @contextmanager
    def gathered(self, policy: Policy) -> Iterator[None]:
        """Around a step's passes: inside, the weights are gathered; afterwards the gradients are those of all devices."""
        yield

    @contextmanager
    def gathered_reference(self, policy: Policy) -> Iterator[None]:
        """Around the reference's passes: inside, its weights are gathered."""
        yield

    def clip(self, parameters: Iterable[Tensor], norm: float) -> float:
        """Scale gradients down to `norm`; return what it was."""
        return float(torch.nn.utils.clip_grad_norm_(list(parameters), norm))

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor by its name, in full if it is sharded."""
        yield from tensors.items()

    def save(self, folder: Path, policy: Policy, optimiser: torch.optim.Optimizer, position: Position) -> None:
        """Write a checkpoint."""
        save_training(folder, policy, optimiser, position)

    def restore(self, folder: Path, policy: Policy, optimiser: torch.optim.Optimizer) -> int:
        """Fill policy and optimiser from a checkpoint; return the step to do next."""
        return restore_training(folder, policy, optimiser)

    def export(self, folder: Path, policy: Policy, reopen: Callable[[], Policy]) -> None:
        """Write the policy itself, adapters merged; `reopen` loads the policy that training began with."""
        policy.merge_lora()
        policy.narrow_trained()
        policy.save(folder)

    def close(self) -> None:
        """Leave the process group."""
