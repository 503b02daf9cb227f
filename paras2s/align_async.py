"""The asynchronous driver: the next questions are being sampled and judged while the learner learns from the last.

Answers are at most `align.max_staleness` updates old when they are learned from; what that changes is corrected token by
token (`align.importance_cap`). At most `max_staleness + 1` batches are under way, so nothing piles up. The loop is that of
`align.py`, with a queue.

What it hides is waiting, for a judge above all; where sampler and learner share cores (one machine without a GPU), they
slow each other down instead. A resumed run samples again what was under way, with the weights of its checkpoint.
"""

from __future__ import annotations

import time
from collections import deque

from paras2s.grpo_run import Alignment, evaluate
from paras2s.rollout.orchestrator import PendingBatch, open_orchestrator


def align_async(alignment: Alignment, resume: bool) -> None:
    """As `align.align`; the same questions and seeds, so with `max_staleness` 0 the same policy.

    Raises:
        PolicyError: as there.
    """
    config, sampling = alignment.config, alignment.sampling
    assert config.max_staleness is not None
    with alignment.stage() as bar, open_orchestrator(*alignment.fleet(resume)) as fleet:
        alignment.begin_at(fleet.version)
        waiting: deque[PendingBatch] = deque()
        for step in range(fleet.version, config.steps):
            started = time.perf_counter()
            while len(waiting) <= config.max_staleness and step + len(waiting) < config.steps:
                waiting.append(fleet.begin(alignment.ask(step + len(waiting)), config.group_size, sampling))
            underway = waiting.popleft()
            rollouts, rewards = fleet.collect(underway)
            metrics = fleet.learn(underway.asked, rollouts, rewards)
            fleet.sync(step + 1)
            if alignment.looks_at(step):
                metrics |= evaluate(fleet, alignment)
            alignment.keep(fleet, step, metrics | {"seconds": time.perf_counter() - started}, bar)
        fleet.export(alignment.folder)
