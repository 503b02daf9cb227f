"""`paras2s align`: what the driver needs, from the run's folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paras2s.align_async import align_async
from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import CODEC, encode_questions, prepare_prompts
from paras2s.data_gen.scripted.build import prompt_categories
from paras2s.errors import ConfigError
from paras2s.grpo import align
from paras2s.grpo_run import Alignment
from paras2s.policy.base import Policy
from paras2s.policy.types import Prompt
from paras2s.reward.sources.base import RewardQuestion
from paras2s.run import Run
from paras2s.types import Query

# Sources that must be told how a question was asked; a classifier listens, since RL prompts have no labels.
TOLD_THE_STYLE = ("rubric", "llm", "pairwise")


def reward_questions(run: Run, dataset: Dataset, queries: Sequence[Query]) -> list[RewardQuestion]:
    """What rewards may know of these queries: their sound, what was heard in it, and no label."""
    told = any(run.reward_setup().needs(kind) for kind in TOLD_THE_STYLE)
    styles: list[str] | list[None] = [None] * len(queries)
    if told:
        rows = np.stack([dataset.clip_features(query.clip, CODEC).utterance for query in queries])
        styles = dataset.user_tone.predict(rows)
    return [
        RewardQuestion(query.id, heard, query.transcript, style, (run.data_dir / query.clip).resolve())
        for query, heard, style in zip(queries, encode_questions(dataset, queries), styles, strict=True)
    ]


def rl_prompts(dataset: Dataset, only: Sequence[str]) -> list[Query]:
    """The RL prompts, or those of some categories: reinforcement in one domain, to be tested in another (Table 7).

    Raises:
        ConfigError: there is none, an unknown category, or one without prompts.
    """
    queries = dataset.of_role("rl")
    if not queries:
        raise ConfigError(f"{dataset.folder}: holds no RL prompts; make them with `paras2s data` (data.rl_contrasts)")
    if not only:
        return queries
    category = prompt_categories(dataset.candidates)
    if missing := sorted(set(only) - {category[query.id] for query in queries}):
        raise ConfigError(f"align.only_categories: no RL prompt is of {missing[0]!r}")
    return [query for query in queries if category[query.id] in only]


def run_align(run: Run, dataset: Dataset, policy: Policy, resume: bool) -> None:
    """Reinforce the SFT policy, or leave it where that is done already."""
    if (run.aligned_dir / "trainer.json").is_file():
        run.say("  the aligned policy is there already")
        return
    blurring = run.config.align.augment

    def blur(prompt: Prompt, rng: np.random.Generator) -> Prompt:
        return policy.augment_prompt(prompt, blurring, rng)

    queries, held = rl_prompts(dataset, run.config.align.only_categories), dataset.of_role("validation")
    prompts, held_prompts = (prepare_prompts(policy, dataset, part) for part in (queries, held))
    questions, held_questions = (reward_questions(run, dataset, part) for part in (queries, held))
    alignment = Alignment(run, prompts, questions, held_prompts, held_questions, blur)
    if run.config.align.max_staleness is None:
        align(alignment, resume)
    else:
        align_async(alignment, resume)
