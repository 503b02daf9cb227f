"""Workers that share a device, and whether their memory fits.

Placement is Ray's: a fraction of a device is taken from the fullest device that has it free, learners first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paras2s.configs.schema.align import AlignConfig, RoleConfig
from paras2s.errors import ConfigError
from paras2s.planning.cluster import Cluster, LearnerPlan, Roles, check_cluster, override_by_run
from paras2s.planning.cluster import Rates as RatesTable
from paras2s.planning.cost import GIB, REMEDIES
from paras2s.planning.simulate import TURNS

# Answers that the native sampler has under way, and that a pass of the learner scores together (policy/dual_stream).
SAMPLED_ROWS, SCORED_ROWS, LOGITS_AT_ONCE = 256, 32, 2**25
# The order in which `Orchestrator` places them.
PLACED = ("learner", "rollout", "reward", "speak")


@dataclass(frozen=True)
class RoleMemory:
    """Bytes by part of one worker of a role: on its device, and in its process on the host."""

    device: dict[str, float]
    host: dict[str, float]

    @property
    def lasting(self) -> float:
        """Bytes that stay on the device between the role's turns."""
        return sum(size for part, size in self.device.items() if not self.in_turn(part))

    @property
    def turn(self) -> float:
        """Bytes besides while the role works."""
        return sum(size for part, size in self.device.items() if self.in_turn(part))

    def in_turn(self, part: str) -> bool:
        """Return whether a part is on the device only while the role works."""
        return any(part in parts for parts in TURNS.values())


@dataclass(frozen=True)
class DeviceLoad:
    """Devices with the same workers on them: their numbers, the roles, and the bytes that they need at the peak."""

    numbers: tuple[int, ...]
    roles: tuple[str, ...]
    needed: float

    @property
    def name(self) -> str:
        """Name of the devices, such as "devices 0 to 7"."""
        first, last = self.numbers[0], self.numbers[-1]
        return f"device {first}" if first == last else f"devices {first} to {last}"


def run_cluster(cluster: Cluster, align: AlignConfig, rates: RatesTable) -> Cluster:
    """Return the cluster as this run's own workers use it, to compare a plan with what they hold."""
    workers, optimizer = align.workers, align.optimizer
    changed = {
        "trainable": "full" if align.lora is None else "lora",
        "rows": optimizer.micro_batch_size,
        "chunk_rows": SCORED_ROWS,
        "logits_at_once": LOGITS_AT_ONCE,
        "checkpointing": optimizer.gradient_checkpointing,
        "shard_over": workers.learner.count,
    }
    counts = {role: role_config.count for role, role_config in workers.by_role.items()}
    roles = Roles(layout="apart", **counts)
    overridden = override_by_run(cluster, align)
    return check_cluster(
        overridden.model_copy(
            update={
                "devices": sum(counts.values()),
                "roles": roles,
                "engine": overridden.engine.model_copy(update={"rows": SAMPLED_ROWS, "batching": "continuous"}),
                "learner": LearnerPlan.model_validate(overridden.learner.model_dump() | changed),
            }
        ),
        rates,
    )


def place(workers: Mapping[str, RoleConfig], devices: int) -> list[tuple[str, ...]]:
    """Assign roles to devices, one entry a worker, none to roles without reservation. Raises ConfigError: they do not fit."""
    free: list[float] = [1.0] * devices
    held: list[list[str]] = [[] for _ in range(devices)]
    for role in (role_name for role_name in PLACED if role_name in workers):
        config = workers[role]
        for _ in range(config.count if config.gpus else 0):
            # A worker of several devices takes empty ones.
            n_gpus, share = math.ceil(config.gpus), min(config.gpus, 1.0)
            fitting = sorted((device for device in range(devices) if free[device] >= share - 1e-9), key=free.__getitem__)
            if len(fitting) < n_gpus:
                raise ConfigError(
                    f"align.workers.{role}: {config.count} workers with {config.gpus:g} of a device each do not fit the "
                    f"{devices} devices beside the others; lower align.workers.{role}.count or .gpus, or take more devices"
                )
            for number in fitting[:n_gpus]:
                free[number] -= share
                held[number].append(role)
    return [tuple(roles) for roles in held]


def device_loads(placed: Sequence[tuple[str, ...]], roles: Mapping[str, RoleMemory], in_turn: bool) -> list[DeviceLoad]:
    """Sum the needs of devices: all that lasts, and the most one role adds while it works; all at once unless `in_turn`."""
    loads = []
    for group in dict.fromkeys(placed):
        if not group:
            continue
        # Workers of one role work at once.
        turns = [group.count(role) * roles[role].turn for role in dict.fromkeys(group)]
        needed = sum(roles[role].lasting for role in group) + (max(turns) if in_turn else sum(turns))
        loads.append(DeviceLoad(tuple(number for number, other in enumerate(placed) if other == group), group, needed))
    return loads


def refusal(load: DeviceLoad, roles: Mapping[str, RoleMemory], room: float) -> str | None:
    """Name what does not fit: the device, its largest role, bytes, and what to change; None if all fits."""
    if load.needed <= room:
        return None
    role = max(load.roles, key=lambda name: load.roles.count(name) * sum(roles[name].device.values()))
    part, size = max(roles[role].device.items(), key=lambda item: item[1])
    shared = f"shared by {', '.join(load.roles)}, " if len(load.roles) > 1 else ""
    remedy = REMEDIES.get(part, "fewer roles on a device, or devices with more memory")
    return (
        f"{load.name}: {shared}needs {load.needed:,.0f} bytes ({load.needed / GIB:.1f} GiB) and has {room:,.0f} "
        f"({room / GIB:.1f}); the most is the {role}'s {part} ({size / GIB:.1f} GiB): {remedy}"
    )


def shared_ranks(loads: Sequence[DeviceLoad]) -> list[str]:
    """Return a line for each device that two of the learner's ranks would share."""
    return [
        f"{load.name}: {load.roles.count('learner')} of the learner's ranks share it, which NCCL refuses; raise "
        "align.workers.learner.gpus above 0.5"
        for load in loads
        if load.roles.count("learner") > 1
    ]
