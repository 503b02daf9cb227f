"""Questions of a dataset as prompts of a policy, and as inputs of the embedded reward model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.audio.text_embedding import SENTENCE_DIM, embed_sentences
from paras2s.data_gen.dataset import Dataset
from paras2s.policy.base import Policy
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.features import FeatureNormalizer
from paras2s.policy.types import Prompt
from paras2s.reward.reward_model.model import EncodedQuestion
from paras2s.types import Query
from paras2s.utils.process_pool import FEW_CLIPS, map_chunks

CODEC = Codec2Pairs()
# Clips that a worker codes together.
CODED_AT_ONCE = 64


def prepare_prompts(policy: Policy, dataset: Dataset, queries: Sequence[Query]) -> list[Prompt]:
    """Make prompts of queries, in order: from clip and transcript, never from a label."""
    return policy.encode_queries(dataset, queries)


def fit_normalizer(dataset: Dataset) -> FeatureNormalizer:
    """Compute mean and spread of the prosody of the demonstrations' queries."""
    return FeatureNormalizer.of_clips(dataset, [query.clip for query in dataset.of_role("demonstration")], CODEC)


def question_encoder(dataset: Dataset, queries: Sequence[Query]) -> Callable[[Query], EncodedQuestion]:
    """Make inputs of the embedded reward model, codes and features of one of these questions and no label, when called."""
    # One batch fills the sentence cache that the features read, 1.5 KB a sentence.
    embed_sentences([query.transcript for query in queries])
    normalizer = fit_normalizer(dataset)

    def encode(query: Query) -> EncodedQuestion:
        features = dataset.clip_features(query.clip, CODEC)
        return EncodedQuestion(features.codes, normalizer.features(features, query.transcript), SENTENCE_DIM)

    return encode


def encode_questions(dataset: Dataset, queries: Sequence[Query]) -> list[EncodedQuestion]:
    """Encode questions for the embedded reward model: codes and features of each, and no label."""
    return [*map(question_encoder(dataset, queries), queries)]


def code_clips(clips: Sequence[Clip]) -> list[np.ndarray]:
    """Encode clips as codes [T, K] with the embedded codec; equal clips are coded once."""
    distinct = {clip.digest: clip for clip in clips}
    coded = map_chunks(_code_chunk, list(distinct.values()), CODED_AT_ONCE, few=FEW_CLIPS)
    codes = dict(zip(distinct, coded, strict=True))
    return [codes[clip.digest] for clip in clips]


def _code_chunk(clips: Sequence[Clip]) -> list[np.ndarray]:
    return [CODEC.encode(clip) if len(clip.samples) else np.zeros((0, CODEC.num_codebooks), dtype=np.int64) for clip in clips]
