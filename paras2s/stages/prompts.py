"""Questions as a policy reads them."""

from __future__ import annotations

from collections.abc import Sequence

from paras2s.data_gen.manifest import Dataset
from paras2s.language import embed_sentences
from paras2s.policy.dual_policy import DualStreamPolicy
from paras2s.policy.interface import Prompt
from paras2s.records import Query


def prepare_prompts(policy: DualStreamPolicy, dataset: Dataset, queries: Sequence[Query]) -> list[Prompt]:
    """Prompts of queries, in order: from the clip and what the recogniser heard, never from a label."""
    embed_sentences([query.heard for query in queries])
    return [policy.prompt_of(dataset.percept(query.clip, policy.codec), query.heard) for query in queries]
