"""The demonstrations that a warm-up learns from, as a policy reads them, and the policy that it begins with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from paras2s.configs.schema.run import WarmupConfig
from paras2s.configs.schema.styles import words_of
from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import prepare_prompts
from paras2s.errors import ConfigError, DataError
from paras2s.policy.base import Policy
from paras2s.policy.registry import NEW_POLICY, load_policy, policy_class
from paras2s.run import Run
from paras2s.train.sft import Example
from paras2s.types import Category, Demonstration, Query


def first_contrasts(queries: Sequence[Query], count: int | Mapping[str, int]) -> list[Query]:
    """Return queries of the first `count` contrasts of each category, or of a number for each.

    The manifest's order spreads the styles over the contrasts. Raises ConfigError: a category without a number.
    """
    contrasts: dict[Category | None, dict[str, None]] = defaultdict(dict)
    for query in queries:
        contrasts[query.category][query.contrast_id] = None
    if isinstance(count, Mapping) and (missing := sorted(str(name) for name in contrasts if name not in count)):
        raise ConfigError(
            f"warmup.demonstration_contrasts: has no number for {', '.join(missing)}; the data have contrasts of it"
        )
    counts = {name: count[str(name)] if isinstance(count, Mapping) else count for name in contrasts}
    shown = {contrast for name, own in contrasts.items() for contrast in [*own][: counts[name]]}
    return [query for query in queries if query.contrast_id in shown]


def shown_queries(dataset: Dataset, config: WarmupConfig) -> list[Query]:
    """Return the queries of the demonstration role that the warm-up learns from."""
    return first_contrasts(dataset.of_role("demonstration"), config.demonstration_contrasts)


def demonstrated_queries(dataset: Dataset, config: WarmupConfig) -> list[Query]:
    """Return the queries whose demonstrations a warm-up learns from."""
    return shown_queries(dataset, config) + first_contrasts(dataset.of_role("preference"), config.preference_contrasts)


def learned_demonstrations(dataset: Dataset, config: WarmupConfig) -> list[Demonstration]:
    """Return the demonstrations that a warm-up learns from. Raises DataError: none, or one to an unknown query."""
    learned, known = {query.id for query in demonstrated_queries(dataset, config)}, {query.id for query in dataset.queries}
    unknown = [demonstration.query_id for demonstration in dataset.demonstrations if demonstration.query_id not in known]
    if unknown or not dataset.demonstrations:
        raise DataError(f"{dataset.folder}: no demonstrations, or for unknown queries ({unknown[:3]}); run `paras2s data`")
    return [demonstration for demonstration in dataset.demonstrations if demonstration.query_id in learned]


def make_examples(
    policy: Policy, dataset: Dataset, demonstrations: Sequence[Demonstration], style_words: Mapping[str, str] | None = None
) -> list[Example]:
    """Make examples of demonstrations, shared encodings once; `style_words` None: prompts do not tell the styles."""
    answered = {row.query_id for row in demonstrations}
    queries = [query for query in dataset.queries if query.id in answered]
    prompts = dict(zip([q.id for q in queries], prepare_prompts(policy, dataset, queries), strict=True))
    answers = sorted({(row.clip, row.text) for row in demonstrations})
    targets = dict(zip(answers, policy.encode_demonstrations(dataset, answers), strict=True))
    styles = {query.id: query.style for query in queries if style_words is not None}
    words = {name: words_of(style, style_words or {}) for name, style in styles.items() if style is not None}
    return [Example(prompts[row.query_id], targets[row.clip, row.text], words.get(row.query_id, "")) for row in demonstrations]


def style_words_of(run: Run) -> Mapping[str, str] | None:
    """Return the run's own words of styles where its warm-up tells them, else None."""
    return run.config.policy.style_words if run.config.warmup.style_share else None


def first_policy(run: Run, dataset: Dataset, device: str | None = None) -> Policy:
    """Make the policy to warm up: a new one, or released weights on `device` (None: the config's)."""
    sizes, lora = run.config.policy, run.config.warmup.lora
    if sizes.weights is None:
        questions = [query.clip for query in dataset.of_role("demonstration")]
        policy = policy_class(sizes.kind or NEW_POLICY).create(sizes, dataset, questions, run.config.seed)
    else:
        policy = load_policy(sizes.weights, sizes.kind, device or sizes.device, sizes.torch_dtype, sizes.decoder)
        if lora is not None and run.config.warmup.steps:
            # Adapters are drawn at random, and every rank must draw the same.
            torch.manual_seed(run.config.seed)
            policy.add_lora(lora.rank, lora.alpha)
    if sizes.transcript_in_prompt:
        policy.use_transcript()
    return policy
