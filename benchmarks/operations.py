"""Counts what a sampling step and a learner step do: operations that torch dispatches, and FLOPs of their products.

Counts do not depend on the machine or its load, so CI compares them with those of operations.json and fails where one rises
by more than a quarter. The policy is the tests' tiny one: what is counted is the loop, not the model. Not counted: what torch
does inside an operation, and numpy.

    python benchmarks/operations.py [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny.dual_stream import small_config, small_model, small_policy, small_rollouts
from tiny.learner import GROUP, STEPS, make_prompts, rewards_of
from tiny.settings import align_config

from paras2s.policy.weights import to_arrays
from paras2s.rollout.engine import NativeEngine
from paras2s.train.learner import Learner

COUNTS = Path(__file__).parent / "operations.json"
MOST_RISE = 1.25


class OperationCount(TorchDispatchMode):
    """Counts dispatched operations, those that only give a tensor another shape left out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def count(work: Callable[[], object]) -> dict[str, int]:
    """Operations and FLOPs of one call, after one that is not counted."""
    work()
    with OperationCount() as operations:
        work()
    with FlopCounterMode(display=False) as flops:
        work()
    return {"operations": operations.count, "flops": flops.get_total_flops()}


def count_all() -> dict[str, int]:
    """Counts of a sampling step of 4 prompts with 4 answers each, also with adapters, and of a learner step on its answers."""
    prompts = make_prompts(4)
    policy = small_policy(small_model(small_config()).float())
    learner = Learner(policy, align_config(lr=0.01, kl_weight=0.05, groups_per_update=4), max_steps=STEPS)
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    sampler = small_policy(small_model(small_config()).float())
    sampler.add_lora(2, 4)
    NativeEngine(sampler).set_weights(to_arrays(sampler.trainable()), 0)
    works: dict[str, Callable[[], object]] = {
        "sampling": lambda: small_rollouts(learner.policy, prompts, GROUP, STEPS, 0),
        "sampling with adapters": lambda: small_rollouts(sampler, prompts, GROUP, STEPS, 0),
        "learning": lambda: learner.step(prompts, rollouts, rewards_of(rollouts)),
    }
    return {f"{name} {unit}": value for name, work in works.items() for unit, value in count(work).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make these the counts that CI compares with")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts, stored = count_all(), json.loads(COUNTS.read_text()) if COUNTS.is_file() else {}
    for name, value in counts.items():
        before = f", {value / stored[name]:.2f} times {stored[name]}" if name in stored else ""
        print(f"{name:33s} {value}{before}")
    if options.write:
        COUNTS.write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
