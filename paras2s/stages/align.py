"""`paras2s align`: what the driver needs, from the run's folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paras2s.align import align
from paras2s.data_gen.manifest import Dataset
from paras2s.policy.augment import augment
from paras2s.policy.dual_policy import DualStreamPolicy
from paras2s.policy.interface import Prompt
from paras2s.records import Query
from paras2s.reward.sources.base import AskedQuestion
from paras2s.rollout.actors import question_of
from paras2s.stages.prompts import prepare_prompts
from paras2s.stages.run import Run

# Sources that must be told how a question was asked; a classifier listens, since RL prompts have no labels.
TOLD_THE_STYLE = ("rubric", "llm", "pairwise")


def ask_questions(
    run: Run, dataset: Dataset, policy: DualStreamPolicy, queries: Sequence[Query], prompts: Sequence[Prompt]
) -> list[AskedQuestion]:
    """What rewards may know of these queries: their sound, what was heard in it, and no label."""
    told = any(run.reward_setup().needs(kind) for kind in TOLD_THE_STYLE)
    styles: list[str] | list[None] = [None] * len(queries)
    if told:
        rows = np.stack([dataset.percept(query.clip, policy.codec).utterance for query in queries])
        styles = dataset.user_tone.predict(rows)
    return [
        AskedQuestion(query.id, question_of(prompt), query.heard, style, (run.data_dir / query.clip).resolve())
        for query, prompt, style in zip(queries, prompts, styles, strict=True)
    ]


def run_align(run: Run, dataset: Dataset, policy: DualStreamPolicy, resume: bool) -> None:
    """Reinforce the SFT policy, or leave it where that is done already."""
    if (run.aligned_dir / "trainer.json").is_file():
        run.say("  the aligned policy is there already")
        return
    blurring, sizes = run.config.align.augment, policy.model.dual_config

    def blur(prompt: Prompt, rng: np.random.Generator) -> Prompt:
        return augment(prompt, blurring, sizes, rng)

    queries, held = dataset.of_role("rl"), dataset.of_role("validation")
    prompts, held_prompts = (prepare_prompts(policy, dataset, part) for part in (queries, held))
    questions, held_questions = (
        ask_questions(run, dataset, policy, part, read) for part, read in ((queries, prompts), (held, held_prompts))
    )
    align(run, prompts, questions, (held_prompts, held_questions), blur, resume)
