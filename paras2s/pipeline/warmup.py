"""`paras2s warmup`: demonstrations to the SFT policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import prepare_prompts
from paras2s.errors import DataError
from paras2s.pipeline.preflight import check_run
from paras2s.policy.answers import answer_settings_of, write_answer_settings
from paras2s.policy.base import Policy
from paras2s.policy.registry import NEW_POLICY, is_checkpoint, load_policy, policy_class
from paras2s.run import Run
from paras2s.train.checkpoint import latest_checkpoint, remove_superseded, step_name
from paras2s.train.sft import Example, Warmup
from paras2s.types import Category, Query
from paras2s.utils.io import append_jsonl, drop_steps_from
from paras2s.utils.process_pool import cores

CHECKPOINT_EVERY, KEEP_CHECKPOINTS = 100, 2


def first_contrasts(queries: Sequence[Query], count: int) -> list[Query]:
    """Queries of the first `count` contrasts of each category; the manifest's order spreads the styles over them."""
    seen: dict[Category | None, list[str]] = defaultdict(list)
    for query in queries:
        if query.contrast_id not in seen[query.category]:
            seen[query.category].append(query.contrast_id)
    return [query for query in queries if query.contrast_id in seen[query.category][:count]]


def make_examples(policy: Policy, dataset: Dataset, contrasts: int) -> list[Example]:
    """Demonstrations of `contrasts` of each category as prompts and targets.

    Raises:
        DataError: there is none, or one answers a query that is not in the manifest.
    """
    queries = dataset.of_role("demonstration")
    learned = {query.id for query in first_contrasts(queries, contrasts)}
    prompts = dict(zip([q.id for q in queries], prepare_prompts(policy, dataset, queries), strict=True))
    unknown = [one.query_id for one in dataset.demonstrations if one.query_id not in prompts]
    if unknown or not dataset.demonstrations:
        raise DataError(f"{dataset.folder}: no demonstrations, or for unknown queries ({unknown[:3]}); run `paras2s data`")
    chosen = [one for one in dataset.demonstrations if one.query_id in learned]
    targets = {
        (clip, text): policy.encode_demonstration(dataset, clip, text)
        for clip, text in sorted({(one.clip, one.text) for one in chosen})
    }
    return [Example(prompts[one.query_id], targets[one.clip, one.text]) for one in chosen]


def first_policy(run: Run, dataset: Dataset) -> Policy:
    """The policy to warm up: a new one, or released weights."""
    sizes = run.config.policy
    if sizes.weights is None:
        questions = [query.clip for query in dataset.of_role("demonstration")]
        return policy_class(sizes.kind or NEW_POLICY).create(sizes, dataset, questions, run.config.seed)
    policy = load_policy(sizes.weights, sizes.kind, sizes.device, sizes.torch_dtype, sizes.decoder)
    if run.config.warmup.lora is not None and run.config.warmup.steps:
        policy.add_lora(run.config.warmup.lora.rank, run.config.warmup.lora.alpha)
    return policy


def run_warmup(run: Run, dataset: Dataset) -> Policy:
    """Train the SFT policy, continue a cut-off training, or load it where it is complete already."""
    if is_checkpoint(run.sft_dir):
        run.say("  the SFT policy is there already")
        return run.load_policy(run.sft_dir)
    check_run(run)
    torch.set_num_threads(cores())
    config, seed = run.config.warmup, run.config.seed
    policy = first_policy(run, dataset)
    if config.steps == 0:
        _save(run, policy)
        return policy
    with run.stage("warmup"), run.bar("warm-up steps", config.steps) as bar:
        warmup = Warmup(policy, make_examples(policy, dataset, config.demonstration_contrasts), config, seed)
        checkpoints = run.folder / "checkpoints" / "sft"
        found = latest_checkpoint(checkpoints)
        first = warmup.restore(found) if found else 0
        log = run.folder / "warmup.jsonl"
        drop_steps_from(log, first)
        for step in range(first, config.steps):
            losses = warmup.step(step)
            append_jsonl(log, {"step": step, **losses})
            bar.at(step + 1, config.steps, f"text {losses['loss_text']:.2f} audio {losses['loss_audio']:.2f}")
            if (step + 1) % CHECKPOINT_EVERY == 0 and step + 1 < config.steps:
                warmup.save(checkpoints / step_name(step + 1), step + 1)
                remove_superseded(checkpoints, KEEP_CHECKPOINTS, None)
        policy.merge_lora()
        policy.narrow_trained()
        _save(run, policy)
    return policy


def _save(run: Run, policy: Policy) -> None:
    """The settings first: the policy's own description is the sign that it is complete."""
    write_answer_settings(run.sft_dir, answer_settings_of(run.config))
    policy.save(run.sft_dir)
