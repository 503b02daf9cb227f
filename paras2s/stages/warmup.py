"""`paras2s warmup`: demonstrations to the SFT policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from paras2s.data_gen.manifest import Dataset
from paras2s.errors import DataError
from paras2s.parallel import cores
from paras2s.policy.checkpoint import latest_checkpoint
from paras2s.policy.codec import Codec2Pairs
from paras2s.policy.dual_policy import DualStreamPolicy
from paras2s.policy.listener import Listener
from paras2s.policy.sft import Example, Warmup
from paras2s.records import Category, Query
from paras2s.stages.prompts import prepare_prompts
from paras2s.stages.run import Run
from paras2s.storage import append_jsonl

CHECKPOINT_EVERY = 100


def first_contrasts(queries: Sequence[Query], count: int) -> list[Query]:
    """Queries of the first `count` contrasts of each category; the manifest's order spreads the styles over them."""
    seen: dict[Category | None, list[str]] = defaultdict(list)
    for query in queries:
        if query.contrast_id not in seen[query.category]:
            seen[query.category].append(query.contrast_id)
    return [query for query in queries if query.contrast_id in seen[query.category][:count]]


def make_examples(policy: DualStreamPolicy, dataset: Dataset, contrasts: int) -> list[Example]:
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
    targets = {
        (one.clip, one.text): policy.target_block(dataset.percept(one.clip, policy.codec).codes, policy.pieces.encode(one.text))
        for one in dataset.demonstrations
    }
    chosen = [one for one in dataset.demonstrations if one.query_id in learned]
    return [Example(prompts[one.query_id], targets[one.clip, one.text]) for one in chosen]


def run_warmup(run: Run, dataset: Dataset) -> DualStreamPolicy:
    """Train the SFT policy, continue a cut-off training, or load it where it is whole already."""
    codec = Codec2Pairs()
    if (run.sft_dir / "policy.json").is_file():
        run.say("  the SFT policy is there already")
        return DualStreamPolicy.load(run.sft_dir, codec)
    torch.set_num_threads(cores())
    config, seed = run.config.warmup, run.config.seed
    utterances = [dataset.percept(query.clip, codec).utterance for query in dataset.of_role("demonstration")]
    policy = DualStreamPolicy.create(run.config.policy, codec, Listener.fit(np.stack(utterances)), seed)
    with run.stage("warmup"), run.bar("warm-up steps", config.steps) as bar:
        warmup = Warmup(policy, make_examples(policy, dataset, config.demonstration_contrasts), config, seed)
        checkpoints = run.folder / "checkpoints" / "sft"
        found = latest_checkpoint(checkpoints)
        first = warmup.restore(found) if found else 0
        for step in range(first, config.steps):
            losses = warmup.step(step)
            append_jsonl(run.folder / "warmup.jsonl", {"step": step, **losses})
            bar.at(step + 1, config.steps, f"text {losses['loss_text']:.2f} audio {losses['loss_audio']:.2f}")
            if (step + 1) % CHECKPOINT_EVERY == 0 and step + 1 < config.steps:
                warmup.save(checkpoints / f"step_{step + 1:06d}", step + 1)
        policy.save(run.sft_dir)
    return policy
