"""A learner as one of several ranks that share its weights, by FSDP2 (`torch.distributed.fsdp.fully_shard`).

Between steps every rank holds its part of the float32 weights, of the frozen copy and of the optimiser's states. Two ways
to gather them for a step (`align.workers.learner.gather`):

- `step`: all gather the weights once, do their own passes, and exchange gradients once. Ranks may differ in how many passes
  they make. The cost is one full copy of the weights, and of their gradients, a device during the passes.
- `layer` (ZeRO-3): each layer is gathered when it is read and put back behind it, and its gradients are exchanged at once;
  embedding, norms and heads are there all through a pass. A rank waits for the others at every layer, so all make equally
  many passes (`passes`; the learner fills up), and a pass reads every layer equally often whatever its answers are (a
  policy's part of the contract, which `Policy.model` states).

Left out: tensor parallelism, offloading to the host.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from paras2s.errors import ConfigError, PolicyError
from paras2s.policy.base import Policy
from paras2s.train.checkpoint import PARTS, Position, read_position, write_position
from paras2s.train.single_device import Devices

# How long a rank waits for the others before it gives up.
TIMEOUT = datetime.timedelta(minutes=10)
# The most of several tensors that are gathered together; a larger one is gathered alone.
GATHERED_BYTES = 2**28


NO_NCCL = (
    "align.workers.learner: ranks on GPUs meet by NCCL, and this torch is built without it; install torch's build for CUDA on "
    "Linux, or set align.workers.learner.count to 1 and align.optimizer.mixed_precision to false"
)


class Sharded(Devices):
    """One rank of `world`; they meet at `host`:`port`, where rank 0 listens."""

    sharded = True

    def __init__(
        self,
        rank: int,
        world: int,
        host: str,
        port: int,
        device: str,
        mixed_precision: bool,
        gather: Literal["step", "layer"] = "step",
    ) -> None:
        self.rank, self.world, self.device = rank, world, torch.device(device)
        self.mixed_precision, self._by_layer = mixed_precision, gather == "layer"
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        if backend == "nccl" and not dist.is_nccl_available():
            raise ConfigError(NO_NCCL)
        tcp_store: Any = getattr(dist, "TCPStore")  # noqa: B009 - torch does not export it to type checkers
        store = tcp_store(host, port, world, is_master=rank == 0, timeout=TIMEOUT, wait_for_workers=False)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
        self._parts: list[Any] = []
        self._reference_parts: list[Any] = []

    def spread(self, policy: Policy) -> None:
        """Shard the layers that the spec names and the rest; adapters and the frozen copy must be there already."""
        self._parts = self._shard(policy.model, policy.spec.sharded)
        self._reference_parts = self._parts
        if policy.frozen is not None:
            self._reference_parts = self._shard(policy.frozen, policy.spec.sharded)
        if not self._by_layer:
            _allow_empty_call(policy.model, self.device)

    def _shard(self, model: nn.Module, layers: str) -> list[Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(self.device.type, (self.world,))
        precision = MixedPrecisionPolicy()
        if self.mixed_precision:
            precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        named = [module for name, module in model.named_modules() if re.fullmatch(layers, name)]
        if not named:
            raise PolicyError(f"no module of the policy is named like {layers!r}, so there is nothing to shard")
        for module in (*named, model):
            # The root's own, embedding and heads, are read all through a pass.
            back = self._by_layer and module is not model
            fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=back)
        assert isinstance(model, FSDPModule)
        model.set_reshard_after_backward(self._by_layer)
        # Passes of this rank may not have reached every weight, and the exchange must be of the same ones everywhere.
        model.set_reduce_scatter_unused_params(True)
        return [module for module in model.modules() if isinstance(module, FSDPModule)]

    def share(self, items: Sequence[int]) -> list[int]:
        """Return every `world`-th group; none for a rank without a group."""
        return list(items[self.rank :: self.world])

    def passes(self, own: int) -> int:
        """Return the number of passes that this rank must make: its own; layer by layer, as many as the rank that has most."""
        return int(self.largest(np.array([own]))[0]) if self._by_layer else own

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over all ranks."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Return the maxima over all ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: np.ndarray, reduction: Any) -> np.ndarray:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, reduction)
        return tensor.cpu().numpy()

    @contextmanager
    def gathered(self, policy: Policy) -> Iterator[None]:
        """Around a step's passes: inside, the weights are gathered; afterwards the gradients are those of all ranks."""
        model: Any = policy.model
        for part in () if self._by_layer else self._parts:
            part.unshard()
        model.set_requires_gradient_sync(self._by_layer)
        try:
            yield
            if not self._by_layer:
                model.set_requires_gradient_sync(True)
                # A backward pass without inputs: gradients are exchanged in one order, the same on every rank.
                model(None, None, None).backward()
        finally:
            # Before clipping and stepping, which would otherwise change gathered weights that the next gathering overwrites.
            for part in self._parts:
                part.reshard()

    @contextmanager
    def gathered_reference(self, policy: Policy) -> Iterator[None]:
        """Around the reference's passes: inside, its weights are gathered; with adapters they are the policy's own."""
        for part in () if self._by_layer else self._reference_parts:
            part.unshard()
        try:
            yield
        finally:
            for part in self._reference_parts:
                part.reshard()

    def clip(self, parameters: Iterable[Tensor], norm: float) -> float:
        """Scale the gradients of all ranks' parts down to `norm`; return what it was."""
        total: Any = torch.nn.utils.clip_grad_norm_(list(parameters), norm)
        return float(total.full_tensor())

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Gather tensors from all ranks, which must all call this: many in one exchange, which has a cost of its own."""
        batch: dict[str, Tensor] = {}
        held = 0
        for name, tensor in tensors.items():
            size = tensor.numel() * tensor.element_size()
            if batch and (held + size > GATHERED_BYTES or tensor.dtype != next(iter(batch.values())).dtype):
                yield from self._gather(batch)
                batch, held = {}, 0
            batch[name] = tensor
            held += size
        if batch:
            yield from self._gather(batch)

    def _gather(self, batch: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Gather tensors of one precision, with some rows at every rank: filled up, so that all send equally many."""
        parts = []
        for tensor in batch.values():
            own: Tensor = getattr(tensor, "to_local")()  # noqa: B009 - a method of DTensor alone
            filled = own.new_zeros(self._rows(tensor), *tensor.shape[1:])
            filled[: len(own)] = own
            parts.append(filled.reshape(-1))
        sent = torch.cat(parts)
        received = sent.new_empty(self.world * len(sent))
        # Torch 2.13 has it under a new name, and warns of the old one.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(received, sent)
        places = torch.split(received.view(self.world, -1), [len(part) for part in parts], dim=1)
        for (name, tensor), gathered in zip(batch.items(), places, strict=True):
            rows = gathered.reshape(self.world * self._rows(tensor), *tensor.shape[1:])
            yield name, rows[: len(tensor)]

    def _rows(self, tensor: Tensor) -> int:
        """Return the most rows of a tensor that a rank holds."""
        return -(-len(tensor) // self.world)

    def save(self, folder: Path, policy: Policy, optimiser: torch.optim.Optimizer, position: Position) -> None:
        """Write every rank's part of the trained weights; `trainer.json` comes last, as the sign of completeness."""
        from torch.distributed.checkpoint.state_dict import get_state_dict
        from torch.distributed.checkpoint.state_dict_saver import save

        model, states = get_state_dict(policy.model, optimiser, options=_trained())
        save({"model": model, "optimiser": states}, checkpoint_id=folder / PARTS)
        dist.barrier()
        if self.rank == 0:
            write_position(folder, position)
        dist.barrier()

    def restore(self, folder: Path, policy: Policy, optimiser: torch.optim.Optimizer) -> int:
        """Fill policy and optimiser from a checkpoint of any number of ranks; return the step to do next."""
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        position = read_position(folder)
        if not (folder / PARTS).is_dir():
            raise PolicyError(f"{folder}: a checkpoint of one learner; continue it with one (align.workers.learner.count: 1)")
        model, states = get_state_dict(policy.model, optimiser, options=_trained())
        held: dict[str, Any] = {"model": model, "optimiser": states}
        load(held, checkpoint_id=folder / PARTS)
        set_state_dict(
            policy.model, optimiser, model_state_dict=held["model"], optim_state_dict=held["optimiser"], options=_trained()
        )
        return position.next_step

    def export(self, folder: Path, policy: Policy, reopen: Callable[[], Policy]) -> None:
        """Rank 0 fills a policy of its own with the full weights, merges adapters, and writes it."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        full = get_model_state_dict(policy.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if self.rank == 0:
            plain = reopen()
            plain.model.load_state_dict(full)
            plain.merge_lora()
            plain.save(folder)
        dist.barrier()

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()


def _trained() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(ignore_frozen_params=True, strict=False)


def _allow_empty_call(model: Any, device: torch.device) -> None:
    """Let the root be called without inputs: its hooks then exchange the gradients accumulated before, on their device."""
    original = model.forward

    def forward(prompts: Any, answers: Any, sampling: Any) -> Any:
        if prompts is None:
            return torch.zeros((), requires_grad=True, device=device) * 0.0
        return original(prompts, answers, sampling)

    model.forward = forward
