"""Questions: as a policy reads them, and as the embedded reward model hears them, whatever the policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paras2s.audio.text_embedding import SENTENCE_DIM, embed_sentences
from paras2s.data_gen.dataset import Dataset
from paras2s.policy.base import Policy
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.features import FeatureNormalizer
from paras2s.policy.embedded.frontend import ClipFeatures
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import Prompt, Turn
from paras2s.reward.reward_model.model import EncodedQuestion
from paras2s.types import Query

CODEC = Codec2Pairs()


def prepare_prompts(policy: Policy, dataset: Dataset, queries: Sequence[Query]) -> list[Prompt]:
    """Prompts of queries, in order: from the clip and what the recogniser heard, never from a label."""
    if not isinstance(policy, EmbeddedPolicy):
        return [policy.encode_prompt([Turn("user", query.transcript, dataset.clip(query.clip))]) for query in queries]
    embed_sentences([query.transcript for query in queries])
    # What its front-end makes of a clip is kept beside the clip.
    return [policy.prompt_of(dataset.clip_features(query.clip, CODEC), query.transcript) for query in queries]


def fit_normalizer(dataset: Dataset) -> FeatureNormalizer:
    """How the demonstrations' queries sound, on average."""
    return FeatureNormalizer.fit(
        np.stack([dataset.clip_features(q.clip, CODEC).utterance for q in dataset.of_role("demonstration")])
    )


def encode_questions(dataset: Dataset, queries: Sequence[Query]) -> list[EncodedQuestion]:
    """What the embedded reward model hears of questions: codes and features of their sound, and no label."""
    embed_sentences([query.transcript for query in queries])
    listener = fit_normalizer(dataset)

    def heard(percept: ClipFeatures, words: str) -> EncodedQuestion:
        return EncodedQuestion(percept.codes, listener.features(percept, words), SENTENCE_DIM)

    return [heard(dataset.clip_features(query.clip, CODEC), query.transcript) for query in queries]
