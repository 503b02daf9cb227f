"""`paras2s align`: what the driver needs, from the run's folder."""

from __future__ import annotations

import numpy as np

from paras2s.align import align
from paras2s.data_gen.manifest import Dataset
from paras2s.policy.augment import augment
from paras2s.policy.dual_policy import DualStreamPolicy
from paras2s.policy.interface import Prompt
from paras2s.stages.prompts import prepare_prompts
from paras2s.stages.run import Run


def run_align(run: Run, dataset: Dataset, policy: DualStreamPolicy, resume: bool) -> None:
    """Reinforce the SFT policy, or leave it where that is done already."""
    if (run.aligned_dir / "trainer.json").is_file():
        run.say("  the aligned policy is there already")
        return
    blurring, sizes = run.config.align.augment, policy.model.dual_config

    def blur(prompt: Prompt, rng: np.random.Generator) -> Prompt:
        return augment(prompt, blurring, sizes, rng)

    queries = dataset.of_role("rl")
    prompts = prepare_prompts(policy, dataset, queries)
    align(run, queries, prompts, prepare_prompts(policy, dataset, dataset.of_role("validation")), blur, resume)
