"""What a second rollout worker is worth: answers of one process pinned to a core, and of two on two cores.

Each worker samples the same work over and over with one thread, as a rollout worker does between two calls; both start at
one signal. The ratio is of tokens/s in all. Left out: Ray's transport, and judges beside the samplers.

    python benchmarks/workers.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

from figures import Figure, add_json_option, write_figures
from twins import Work, as_prompts, count_parameters, our_model, prompt_ids, seeds_of, spread

WORK = Work(prompts=4, group=8, prompt_tokens=64, new_tokens=64)


def run_worker(wire: Connection, core: int) -> None:
    """Sample once for each message, and say how long it took."""
    os.sched_setaffinity(0, {core})
    import torch

    from paras2s.policy.dual_stream.sampler import sample
    from paras2s.policy.types import SampleRequest, Sampling

    torch.set_num_threads(1)
    model, sampling = our_model(seed=0).eval(), Sampling(max_steps=WORK.new_tokens)
    prompts = as_prompts(prompt_ids(WORK, seed=core))
    for _ in iter(wire.recv, "end"):
        started = time.perf_counter()
        sample(model, SampleRequest(prompts, seeds_of(WORK, core), sampling))
        wire.send(time.perf_counter() - started)


def rate(wires: list[Connection]) -> float:
    """Tokens/s of these workers together: the slowest one decides."""
    for wire in wires:
        wire.send("go")
    return len(wires) * WORK.tokens / max(float(wire.recv()) for wire in wires)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    add_json_option(parser)
    options = parser.parse_args()
    repeats = options.repeats
    print(f"{count_parameters(our_model(seed=0)):.1f} M parameters; {WORK}, for each worker")
    start: Any = multiprocessing.get_context("spawn")
    wires, processes = [], []
    for core in sorted(os.sched_getaffinity(0))[:2]:
        mine, inside = start.Pipe()
        processes.append(start.Process(target=run_worker, args=(inside, core), daemon=True))
        processes[-1].start()
        inside.close()
        wires.append(mine)
    rate(wires)
    one, two = [], []
    for _ in range(repeats):
        one.append(rate(wires[:1]))
        two.append(rate(wires))
    for name, found in (("one worker", one), ("two workers", two)):
        print(f"{name:12s} {spread(found, 0)} tokens/s")
    print(f"two / one: {statistics.median(two) / statistics.median(one):.2f}")
    for wire, process in zip(wires, processes, strict=True):
        wire.send("end")
        process.join()
    name = "two workers on two cores"
    write_figures(options.json, [Figure(name, "tokens/s", two, one, "one worker on one", more_is_better=True, least_ratio=1.7)])


if __name__ == "__main__":
    main()
