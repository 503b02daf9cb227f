"""One rank of test_fsdp.py: runs the jobs it is told and writes what it saw. A program, since ranks are processes."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny.dual_stream import small_config, small_model, small_policy, small_rollouts
from tiny.learner import GROUP, STEPS, Demonstrations, examples, make_prompts, rewards_of
from tiny.settings import align_config

from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.train import fsdp
from paras2s.train.anchor import batch_of_step
from paras2s.train.fsdp import Sharded
from paras2s.train.learner import Learner
from paras2s.train.preference import PreferenceBatch, PreferenceLearner
from paras2s.train.sft import Example
from paras2s.train.single_device import Devices
from paras2s.types import Rollout


def first_policy() -> EmbeddedPolicy:
    torch.manual_seed(0)
    return small_policy(small_model(small_config()))


def make_learner(devices: Devices, settings: dict[str, Any]) -> Learner:
    torch.manual_seed(0)
    config = align_config(
        **{"lr": 0.01, "kl_weight": 0.05, "warmup_steps": 2, "steps": 10, "max_logprob_gap": 99.0, **settings}
    )
    policy = first_policy()
    if settings.get("lora"):
        # Adapters that start from 0 would hide half of what can go wrong.
        torch.manual_seed(1)
    kind = Learner if config.preferences is None else PreferenceLearner
    return kind(policy, config, STEPS, devices, first_policy)


def advance(learner: Learner, steps: int) -> list[dict[str, Any]]:
    """Rollouts of the starting policy, the same on every rank: what a step does is looked at, not what it samples."""
    prompts, demonstrations, log = make_prompts(3), Demonstrations(made(5)), []
    for _ in range(steps):
        if isinstance(learner, PreferenceLearner):
            log.append(learner.learn(recorded(learner), batch_of_step(learner.config.objective.anchor, demonstrations, 0, 0)))
            continue
        rollouts = answers_of(learner.next_step)
        anchored = batch_of_step(learner.config.objective.anchor, demonstrations, 0, learner.next_step)
        log.append(learner.step(prompts, rollouts, rewards_of(rollouts), anchored))
    return log


def recorded(learner: Learner) -> PreferenceBatch:
    """Six recorded answers, every other one good: three pairs for DPO."""
    assert learner.config.preferences is not None
    return PreferenceBatch(tuple(made(6)), (True, False) * 3, learner.config.preferences.loss == "dpo")


@cache
def answers_of(step: int) -> list[Rollout]:
    """The starting policy's answers of a step; sampling them takes longer than learning from them."""
    return small_rollouts(first_policy(), make_prompts(3), GROUP, STEPS, step)


@cache
def made(count: int) -> list[Example]:
    return examples(first_policy(), count)


def watch(model: torch.nn.Module) -> list[int]:
    """How many numbers of the weights are there in full whenever a linear layer is read or left by its gradient."""
    seen = [0]

    def look(*_: Any) -> None:
        seen.append(sum(one.numel() for one in model.parameters() if not hasattr(one, "full_tensor")))

    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.register_forward_hook(look)
            module.register_full_backward_hook(look)
    return seen


def run(devices: Devices, job: dict[str, Any], out: Path) -> None:
    """Steps, a checkpoint, more steps, and the policy itself."""
    learner = make_learner(devices, job["settings"])
    if job.get("resume"):
        learner.restore(Path(job["resume"]))
    held = watch(learner.policy.model) if job.get("watch") else []
    log = advance(learner, job["steps"])
    if job.get("save"):
        learner.save(Path(job["save"]))
    weights = learner.weights()
    if job.get("export"):
        learner.export(Path(job["export"]))
    if devices.rank == 0:
        (out / "log.json").write_text(json.dumps(log))
        (out / "held.json").write_text(json.dumps(max(held, default=None)))
        np.savez(out / "weights.npz", **weights)


def main() -> None:
    """`fsdp_rank.py RANK WORLD JOBS.json PORT PORT`: a group of ranks for each way to gather, one after the other."""
    rank, world = map(int, sys.argv[1:3])
    torch.set_num_threads(1)
    # So that these few weights take several exchanges, and some are larger than the bound.
    fsdp.GATHERED_BYTES = 2**11
    jobs = json.loads(Path(sys.argv[3]).read_text())
    for gather, port in zip(("step", "layer"), map(int, sys.argv[4:]), strict=True):
        devices = Sharded(rank, world, "127.0.0.1", port, "cpu", mixed_precision=False, gather=gather)
        for job in jobs:
            if job.get("gather", "step") == gather:
                run(devices, job, Path(job["out"]))
        devices.close()
    # gloo's threads outlive the process group and may hold tensors. One that lets go of them while the interpreter closes ends
    # the rank by SIGABRT ("terminate called without an active exception"), after all is written (pytorch#179291).
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
