"""`paras2s align`: the inputs of the GRPO loop, from the run's folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import CODEC, encode_questions, prepare_prompts
from paras2s.data_gen.scripted.build import prompt_categories
from paras2s.errors import ConfigError
from paras2s.grpo import GRPOJob, train_grpo
from paras2s.policy.base import Policy
from paras2s.policy.types import Prompt
from paras2s.reward.sources.base import RewardQuestion
from paras2s.run import Run
from paras2s.types import Query
from paras2s.utils.process_pool import end_workers

# Sources that are conditioned on the question's style; a classifier predicts it, since RL prompts have no labels.
STYLE_SOURCES = ("rubric", "llm", "pairwise")


def reward_questions(run: Run, dataset: Dataset, queries: Sequence[Query]) -> list[RewardQuestion]:
    """The queries as rewards may know them: sound, transcript, predicted style, and no label."""
    styles: list[str] | list[None] = [None] * len(queries)
    if any(run.reward_setup().needs(kind) for kind in STYLE_SOURCES):
        rows = np.stack([dataset.clip_features(query.clip, CODEC).utterance for query in queries])
        styles = dataset.user_tone.predict(rows)
    return [
        RewardQuestion(query.id, encoded, query.transcript, style, (run.data_dir / query.clip).resolve())
        for query, encoded, style in zip(queries, encode_questions(dataset, queries), styles, strict=True)
    ]


def rl_prompts(dataset: Dataset, only: Sequence[str]) -> list[Query]:
    """The RL prompts, or those of some categories, to train in one domain and test in another (Table 7).

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
    """Train the SFT policy by GRPO, or leave it where that is done already."""
    if (run.aligned_dir / "trainer.json").is_file():
        run.say("  the aligned policy is there already")
        return
    config = run.config.align

    def augment(prompt: Prompt, rng: np.random.Generator) -> Prompt:
        return policy.augment_prompt(prompt, config.augment, rng)

    queries, validation = rl_prompts(dataset, config.only_categories), dataset.of_role("validation")
    prompts, validation_prompts = (prepare_prompts(policy, dataset, part) for part in (queries, validation))
    questions, validation_questions = (reward_questions(run, dataset, part) for part in (queries, validation))
    job = GRPOJob(run, prompts, questions, validation_prompts, validation_questions, augment)
    # Their recognisers would sit in memory, one for every core, for as long as the loop runs.
    end_workers()
    train_grpo(job, resume)
