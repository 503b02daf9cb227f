"""The frozen front-end: codes and prosody of a clip, before any trained weight. Cached beside the clip."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.audio.prosody import VERSION as PROSODY_VERSION
from paras2s.audio.prosody import describe
from paras2s.policy.embedded.codec2 import Codec, Codec2Pairs
from paras2s.policy.types import ClipStore
from paras2s.utils.io import reading

VERSION = f"{Codec2Pairs.version}+{PROSODY_VERSION}"


@dataclass(frozen=True)
class ClipFeatures:
    """codes [T, K] int64, steps [T', 6] and utterance [45] float32 (see `audio.prosody.describe`)."""

    codes: np.ndarray
    steps: np.ndarray
    utterance: np.ndarray

    def to_bytes(self) -> bytes:
        """Return the features as an .npz file."""
        buffer = io.BytesIO()
        np.savez(buffer, codes=self.codes.astype(np.int16), steps=self.steps, utterance=self.utterance)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> ClipFeatures:
        """Read what `to_bytes` wrote. Raises DataError: the file is cut off or another kind."""
        with reading(name, "not a percept", "; delete it and it is made again"), np.load(io.BytesIO(data)) as held:
            return cls(held["codes"].astype(np.int64), held["steps"], held["utterance"])


def extract_features(clip: Clip, codec: Codec) -> ClipFeatures:
    """Return codes and prosody of a clip. Raises AudioError: silence."""
    steps, utterance = describe(clip)
    return ClipFeatures(codec.encode(clip), steps, utterance)


def stored_features(clips: ClipStore, name: str, codec: Codec) -> ClipFeatures:
    """Read a clip's features from the file beside it, else compute them. Raises DataError: a broken file. AudioError."""
    cached = clips.cached_features(name)
    return extract_features(clips.clip(name), codec) if cached is None else ClipFeatures.from_bytes(cached, feature_file(name))


def feature_file(name: str) -> str:
    """Return the name of the file beside a clip that holds its features."""
    return str(PurePosixPath(name).with_suffix(".npz"))
