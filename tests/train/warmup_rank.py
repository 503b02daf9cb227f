"""One rank of test_warmup_ranks.py: warms up a small policy and writes what it saw. A program, since ranks are processes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt

from paras2s.configs.schema.run import WarmupConfig
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.train.fsdp import Sharded
from paras2s.train.sft import Example, Warmup
from paras2s.train.single_device import Devices


def examples(policy: EmbeddedPolicy, count: int) -> list[Example]:
    """Answers of different lengths, so that ranks have other amounts of work."""
    config, made = policy.model.dual_config, []
    for number in range(count):
        rng = np.random.default_rng(100 + number)
        prompt = small_prompt(config, 1 + number % 2, 3, seed=number)
        prompt = replace(prompt, words_dim=1, hidden_ids=(config.blank_id, config.pad_id))
        codes = rng.integers(config.codebook_sizes, size=(4 + number % 5, config.num_codebooks))
        made.append(Example(prompt, (policy.target_block(codes, rng.integers(config.text_eos_id, size=3).tolist()),)))
    return made


def first_policy(lora: bool) -> EmbeddedPolicy:
    torch.manual_seed(0)
    policy = small_policy(small_model(small_config()))
    if lora:
        torch.manual_seed(1)
        policy.add_lora(2, 4)
    return policy


def run(devices: Devices, job: dict[str, Any], out: Path) -> None:
    """Steps from a checkpoint or from the start, then a checkpoint, the weights and the policy itself."""
    lora = bool(job.get("lora"))
    policy = first_policy(lora)
    config = WarmupConfig(steps=9, lr=0.01, **job["settings"])
    warmup = Warmup(policy, examples(policy, 7), config, 3, devices, lambda: first_policy(lora))
    first = warmup.restore(Path(job["resume"])) if job.get("resume") else 0
    log = [warmup.step(number) for number in range(first, job["until"])]
    if job.get("save"):
        warmup.save(Path(job["save"]), job["until"])
    trained = {name: value.detach() for name, value in policy.trainable().items()}
    weights = {name: value.numpy().copy() for name, value in devices.full_tensors(trained)}
    warmup.export(out / "policy")
    if devices.rank == 0:
        (out / "log.json").write_text(json.dumps(log))
        np.savez(out / "weights.npz", **weights)


def main() -> None:
    """`warmup_rank.py RANK WORLD PORT JOBS.json`."""
    rank, world, port = map(int, sys.argv[1:4])
    torch.set_num_threads(1)
    devices = Sharded(rank, world, "127.0.0.1", port, "cpu", mixed_precision=False)
    for job in json.loads(Path(sys.argv[4]).read_text()):
        run(devices, job, Path(job["out"]))
    devices.close()


if __name__ == "__main__":
    main()
