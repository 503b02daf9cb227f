"""Counts how many of a decoded step's operations a recorded graph takes over, at Kimi-Audio's depth and a small width.

Counted and not timed, since the graphs are CUDA's: operations that torch dispatches, one launch or more each. 4 prompts with 4
answers each, 24 steps, random weights.

    python benchmarks/captured.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from figures import Figure, add_json_option, write_figures
from operations import OperationCount
from tiny.dual_stream import small_config, small_model, small_prompt

from paras2s.policy.dual_stream.captured import CapturedDecoder, States
from paras2s.policy.dual_stream.sampler import sample
from paras2s.policy.types import SampleRequest, Sampling

STEPS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # 28 layers, of which 22 are shared, and 6 of the audio branch.
    config = small_config(codebooks=(24,), delay=6, layers=28, tap=21)
    model, prompts = small_model(config), [small_prompt(config, 1, 4 + number, number) for number in range(4)]
    inside, recorded = OperationCount(), [0]

    def record(work: Callable[[], States]) -> Callable[[], States]:
        def run() -> States:
            recorded[0] += 1
            with inside:
                return work()

        return run

    decoder = CapturedDecoder(model, record)
    seeds = [[4 * row + number for number in range(4)] for row in range(4)]
    for _ in range(3):
        # The first two meet the sizes; in the third every step is a recorded one.
        inside.count, recorded[0] = 0, 0
        with OperationCount() as everything:
            sample(model, SampleRequest(prompts, seeds, Sampling(max_steps=STEPS)), decoder=decoder)
    outside = (everything.count - inside.count) / recorded[0]
    print(f"{recorded[0]} recorded steps of {inside.count / recorded[0]:,.0f} operations")
    print(f"{outside:,.0f} a step outside, prompts included")
    counts = {"recorded": inside.count / recorded[0], "outside": outside}
    write_figures(options.json, [Figure(f"operations a step, {name}", "operations", [value]) for name, value in counts.items()])


if __name__ == "__main__":
    main()
