"""`paras2s align --meta`: every role's networks on the meta device, what they hold and need, and whether devices have it.

Parameters, gradients, optimiser states and gathered weights are summed over the networks as they were built; activations and
caches are counted by `planning/cost.py`, as the plan does; so is what travels and what hosts hold (`planning/host.py`).
Left out: fragments and a device's context (the cluster's `reserve_gib`), and what vLLM takes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paras2s.configs.schema.run import RunConfig
from paras2s.errors import ConfigError
from paras2s.pipeline.skeletons import Skeleton, bytes_of, policy_skeleton, reward_skeletons
from paras2s.pipeline.stacks import corrected
from paras2s.planning import cost
from paras2s.planning.cluster import Cluster, KnownPolicy, Rates, load_cluster, policy_facts
from paras2s.planning.cost import GIB
from paras2s.planning.footprint import DeviceLoad, RoleMemory, device_loads, place, refusal, run_cluster, shared_ranks
from paras2s.planning.simulate import TURNS, hosts_of, load_of, role_memory
from paras2s.policy.base import Policy
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.registry import NEW_POLICY, kind_of
from paras2s.train.learner import prepare

# The cluster whose devices a run with GPUs is laid on where none are here.
KEPT = ("kept keys and values", "recorded steps", "context")
DEFAULT_CLUSTER, HERE = "h100x8", "this_machine"


@dataclass(frozen=True)
class DryRun:
    """Bytes by role and part, by device, and of hosts; `planned` are the plan's by role; `problems` what does not fit."""

    policy: str
    sizes_from: str
    parameters: dict[str, int]
    roles: dict[str, RoleMemory]
    devices: list[DeviceLoad]
    room: float
    devices_of: str
    planned: dict[str, float]
    hosts: dict[str, dict[str, float]]
    problems: list[str]

    def apart(self, role: str) -> float:
        """Return the plan's bytes less the summed ones, as a share of the latter."""
        summed = sum(self.roles[role].device.values())
        return self.planned[role] / summed - 1 if summed else 0.0


def devices_here() -> list[float]:
    """Return the memory in bytes of each GPU of this machine."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [float(torch.cuda.get_device_properties(number).total_memory) for number in range(count)]


def memory_here() -> float:
    """Return this machine's memory in bytes."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def choose_cluster(config: RunConfig, rates: Rates, name: str | None) -> tuple[Cluster, str]:
    """Return a named cluster, else this machine's GPUs or memory (`DEFAULT_CLUSTER` for lacking GPUs), and a word for it."""
    needs_gpus = any(role.gpus for role in config.align.workers.by_role.values())
    if name is not None:
        return load_cluster(name, rates), name
    if not needs_gpus:
        return load_cluster(HERE, rates, {"device.memory_gib.value": memory_here() / GIB}), "this machine's memory"
    gpus = devices_here()
    if not gpus:
        return load_cluster(DEFAULT_CLUSTER, rates), f"{DEFAULT_CLUSTER}, since this machine has no GPU"
    changes = {"device.memory_gib.value": min(gpus) / GIB, "devices": len(gpus), "learner.shard_over": 1}
    return load_cluster(DEFAULT_CLUSTER, rates, changes), f"{len(gpus)} GPUs here"


def dry_run(config: RunConfig, rates: Rates, cluster_name: str | None = None) -> DryRun:
    """Build a run's roles and sum their memory. Raises ConfigError: a kind that is not counted, or no place. PolicyError."""
    align, policy = config.align, config.policy
    if align.sampling.engine != "native":
        raise ConfigError("--meta counts align.sampling.engine native; vLLM takes the share of a device that it is given")
    kind = policy.kind or (NEW_POLICY if policy.weights is None else kind_of(policy.weights))
    known = policy_facts(rates, policy.model_copy(update={"kind": kind}), memory_only=True)
    cluster, where = choose_cluster(config, rates, cluster_name)
    mine = run_cluster(cluster, align, rates)
    learner, rollout = policy_skeleton(policy, kind), policy_skeleton(policy, kind)
    weights = next(learner.policy.model.parameters())
    mine = _in_its_precision(mine, weights.element_size(), align.optimizer.mixed_precision, align.lora is not None)
    known = _with_sizes(known, learner.policy)
    parameters = {"policy": learner.policy.model} | learner.encoders | learner.vocoder
    counts = {name: sum(parameter.numel() for parameter in model.parameters()) for name, model in parameters.items()}
    planned = _planned(config, mine, rates, known)
    load = load_of(config, known)
    with torch.device("meta"):
        prepare(learner.policy, align)
    if known.facts.memory_only:
        planned = corrected(planned, learner.policy, rollout.policy, mine, load)
    roles = {
        "learner": _learner(config, learner, mine, planned["learner"]),
        "rollout": _rollout(config, rollout, planned["rollout"]),
        "reward": _reward(config, planned["reward"]),
    }
    if align.workers.speak is not None:
        roles["speak"] = RoleMemory(_vocoder(rollout) | _caches("speak", planned["speak"]), {})
    workers = {role: align.workers.by_role[role] for role in roles}
    on_gpus = any(worker.gpus for worker in workers.values())
    placed = place(workers, cluster.devices) if on_gpus else [tuple(role for role in roles for _ in range(workers[role].count))]
    loads = device_loads(placed, roles, in_turn=align.max_staleness == 0)
    room = (cluster.rates.memory_gib.value - cluster.reserve_gib.value) * GIB
    sizes = cost.policy_sizes(known.sizes, known.facts)
    hosts = hosts_of(sizes, known.facts, mine, load, align.steps * load.queries)
    if known.facts.memory_only:
        hosts["object store"]["new weights"] = 4.0 * sum(value.numel() for value in learner.policy.trainable().values())
    for role, memory in roles.items():
        if memory.host:
            hosts[f"all {role} workers"] = {part: workers[role].count * size for part, size in memory.host.items()}
    return DryRun(
        policy=known.name,
        sizes_from=rollout.sizes_from,
        parameters=counts,
        roles=roles,
        devices=loads,
        room=room,
        devices_of=where,
        planned={} if known.facts.memory_only else {role: sum(parts.values()) for role, parts in planned.items()},
        hosts=hosts,
        problems=[text for load in loads if (text := refusal(load, roles, room))] + (shared_ranks(loads) if on_gpus else []),
    )


def _with_sizes(known: KnownPolicy, policy: Policy) -> KnownPolicy:
    """Put the sizes of the built network into the plan's facts; the embedded policy's are the run's already."""
    config = getattr(policy, "config", None)
    if not isinstance(config, DualStreamConfig) or config.mask_invalid_ids:
        return known
    facts = {"text_vocab": config.text_vocab, "codebook_sizes": config.codebook_sizes, "continuous_dim": config.continuous_dim}
    named = {name: getattr(config, name) for name in known.facts.sizes}
    return KnownPolicy(known.name, known.facts.model_copy(update=facts), known.sizes.model_copy(update=named))


def _in_its_precision(cluster: Cluster, stored: int, mixed: bool, lora: bool) -> Cluster:
    """Set the cluster's precision to that of these weights: bfloat16 products if mixed or stored so."""
    learner = cluster.learner.model_copy(update={"weight_bytes": stored if lora else (2 if mixed else 4)})
    return cluster.model_copy(update={"learner": learner, "engine": cluster.engine.model_copy(update={"dtype_bytes": stored})})


def _planned(config: RunConfig, cluster: Cluster, rates: Rates, known: KnownPolicy) -> dict[str, dict[str, float]]:
    sizes, load = cost.policy_sizes(known.sizes, known.facts), load_of(config, known)
    answer_s = load.audio.mean / known.facts.steps_per_s.value
    reward = cost.reward_load(config, rates, known.facts, load.queries, load.group, answer_s, cluster)
    return role_memory(sizes, known.facts, cluster, load, reward)


def _learner(config: RunConfig, skeleton: Skeleton, cluster: Cluster, planned: Mapping[str, float]) -> RoleMemory:
    """Measure one rank of the learner: its share of the weights, and all of them while it learns."""
    policy, plan = skeleton.policy, cluster.learner
    trained, shards = sum(value.numel() for value in policy.trainable().values()), plan.shard_over
    total = bytes_of(policy.model)
    frozen = total - 4 * trained
    gradients, distilled = 4.0 * trained, config.align.distilled
    teacher = 4.0 * trained if distilled is not None and distilled.average is not None else 0.0
    full = plan.weight_bytes * trained + (frozen if policy.frozen is None else 0.0)
    device = {
        "weights": (total + teacher) / shards,
        "reference": bytes_of(policy.frozen) / shards if policy.frozen is not None else 0.0,
        "optimiser": 2 * 4.0 * trained / shards,
        # As many gradients as the plan has at its peak.
        "gradients": planned["gradients"] * (8.0 * trained / shards) / planned["optimiser"],
        "activations": planned["activations"],
        "logits": planned["logits"],
    } | {part: planned[part] for part in ("attention", "context") if part in planned}
    if shards > 1 and plan.gather == "step":
        device["gathered"] = full + gradients
    elif "gathered" in planned:
        device["gathered"] = planned["gathered"]
    return RoleMemory(device, {})


def _rollout(config: RunConfig, skeleton: Skeleton, planned: Mapping[str, float]) -> RoleMemory:
    """Return one worker: policy, adapters, encoders and, without speak workers, the decoder; the host folds adapters."""
    policy, lora = skeleton.policy, config.align.lora
    weights = bytes_of(policy.model)
    beneath = 0
    if lora is not None:
        with torch.device("meta"):
            policy.add_lora(lora.rank, lora.alpha)
        beneath = sum(
            adapter.get_base_layer().weight.numel() * adapter.get_base_layer().weight.element_size()
            for adapter in policy.adapters
        )
    device = {
        "weights": float(weights),
        "adapters": float(bytes_of(policy.model) - weights),
        "audio encoders": float(bytes_of(*skeleton.encoders.values())),
    }
    if config.align.workers.speak is None:
        device |= _vocoder(skeleton)
    return RoleMemory(device | _caches("rollout", planned), {"weights beneath the adapters": float(beneath)})


def _vocoder(skeleton: Skeleton) -> dict[str, float]:
    return {"vocoder": float(bytes_of(*skeleton.vocoder.values()))}


def _caches(role: str, planned: Mapping[str, float]) -> dict[str, float]:
    """Return what the plan counts of a role while it works, and what a GPU keeps for its process."""
    return {part: planned[part] for part in (*TURNS[role], *KEPT) if part in planned}


def _reward(config: RunConfig, planned: Mapping[str, float]) -> RoleMemory:
    networks = reward_skeletons(config.reward.sources)
    if not networks:
        return RoleMemory({}, {})
    working = planned.get("reward model's activations", 0.0)
    context = {part: planned[part] for part in ("context",) if part in planned}
    return RoleMemory(
        {"reward model": float(bytes_of(*networks.values())), "reward model's activations": working} | context, {}
    )


def dry_run_json(report: DryRun) -> dict[str, Any]:
    """Return the dry run as plain JSON; memory in bytes."""
    return {
        "policy": report.policy,
        "sizes_from": report.sizes_from,
        "devices_of": report.devices_of,
        "parameters": report.parameters,
        "roles": {
            role: {"device": memory.device, "host": memory.host}
            | ({"planned": report.planned[role], "apart": report.apart(role)} if role in report.planned else {})
            for role, memory in report.roles.items()
        },
        "devices": [
            {"numbers": list(load.numbers), "roles": list(load.roles), "needed": load.needed, "room": report.room}
            for load in report.devices
        ],
        "hosts": report.hosts,
        "fits": not report.problems,
        "problems": report.problems,
    }
