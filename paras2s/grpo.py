"""The driver: ask, sample, judge, learn, hand on the weights, look at held-out questions.

After ParaS2S, section 4.3. Left out: several updates on one batch of rollouts; sampling while learning, which is
`align_async.py`. One machine: `paras2s align CONFIG`. A cluster: set `align.ray_address`.
"""

from __future__ import annotations

import time

from paras2s.grpo_run import Alignment, evaluate
from paras2s.rollout.orchestrator import open_orchestrator


def align(alignment: Alignment, resume: bool) -> None:
    """Move the SFT policy toward its better answers; leaves the aligned policy in the run folder.

    Raises:
        PolicyError: too many unscored answers, a loss that is not finite, or an actor that could not be kept alive.
    """
    config, sampling = alignment.config, alignment.sampling
    with alignment.stage() as bar, open_orchestrator(*alignment.fleet(resume)) as fleet:
        alignment.begin_at(fleet.version)
        for step in range(fleet.version, config.steps):
            started = time.perf_counter()
            asked = alignment.ask(step)
            rollouts, rewards = fleet.collect(fleet.begin(asked, config.group_size, sampling))
            metrics = fleet.learn(asked, rollouts, rewards)
            fleet.sync(step + 1)
            if alignment.looks_at(step):
                metrics |= evaluate(fleet, alignment)
            alignment.keep(fleet, step, metrics | {"seconds": time.perf_counter() - started}, bar)
        fleet.export(alignment.folder)
