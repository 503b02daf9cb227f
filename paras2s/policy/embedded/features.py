"""Frozen features of the embedded policy beside the codes, as Whisper's are for Kimi-Audio.

A step's continuous features are its own prosody, the utterance's prosody (standardised on the demonstrations), and a
sentence embedding of the transcript. All come from the waveform; no label is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paras2s.audio.prosody import STEP_DIM, UTTERANCE_DIM
from paras2s.audio.text_embedding import SENTENCE_DIM, embed_sentences
from paras2s.errors import PolicyError
from paras2s.policy.embedded.codec2 import Codec
from paras2s.policy.embedded.frontend import ClipFeatures, stored_features
from paras2s.policy.types import ClipStore
from paras2s.utils.io import read_json, write_json

FEATURE_DIM = STEP_DIM + UTTERANCE_DIM + SENTENCE_DIM
# Unit sentence vectors have entries near 0.05. At this scale their 384 numbers weigh about as much together as the 51 of
# prosody; at unit variance the words would drown the prosody.
WORDS_SCALE = float(np.sqrt(STEP_DIM + UTTERANCE_DIM))
# Standard deviation of one number of a sentence's embedding at that scale.
WORDS_SPREAD = WORDS_SCALE / float(np.sqrt(SENTENCE_DIM))


@dataclass(frozen=True)
class FeatureNormalizer:
    """Mean and spread of the utterance prosody [45] that the policy was warmed up with."""

    mean: np.ndarray
    spread: np.ndarray

    @classmethod
    def of_clips(cls, clips: ClipStore, names: Sequence[str], codec: Codec) -> FeatureNormalizer:
        """Fit a normaliser to the clips of training questions."""
        return cls.fit(np.stack([stored_features(clips, name, codec).utterance for name in names]))

    @classmethod
    def fit(cls, utterances: np.ndarray) -> FeatureNormalizer:
        """Fit a normaliser to the prosody [n, 45] of the demonstrations' queries."""
        return cls(utterances.mean(0), utterances.std(0) + 1e-3)

    def features(self, clip: ClipFeatures, transcript: str) -> np.ndarray:
        """[T, F] for the clip's T steps, float32; outliers are held at 4 standard deviations."""
        count = len(clip.codes)
        rows = np.pad(clip.steps, ((0, max(0, count - len(clip.steps))), (0, 0)), mode="edge")[:count]
        utterance = np.clip((clip.utterance - self.mean) / self.spread, -4, 4)
        words = embed_sentences([transcript])[0] * WORDS_SCALE if transcript.strip() else np.zeros(SENTENCE_DIM)
        constant = np.concatenate([utterance, words])
        return np.concatenate([rows, np.broadcast_to(constant, (count, len(constant)))], axis=1).astype(np.float32)

    def save(self, path: Path) -> None:
        """Write as JSON."""
        write_json(path, {"mean": self.mean.tolist(), "spread": self.spread.tolist()})

    @classmethod
    def load(cls, path: Path) -> FeatureNormalizer:
        """Read what `save` wrote. Raises PolicyError: statistics of another size."""
        values = read_json(path)
        try:
            mean, spread = (np.asarray(values[key], dtype=np.float64) for key in ("mean", "spread"))
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"{path}: no prosody statistics ({error!r}); warm up again") from error
        if mean.shape != (UTTERANCE_DIM,) or spread.shape != (UTTERANCE_DIM,):
            raise PolicyError(f"{path}: not {UTTERANCE_DIM} means and spreads; warm up again")
        return cls(mean, spread)
