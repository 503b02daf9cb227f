"""TRACE's `agent_emotion`: nine probabilities by emotion2vec+ large (Ma et al. 2023) on funasr.

The weights come from a hub only. Where they or the extra `trace` are missing, the fields are absent and say so.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.errors import AssetError, AudioError, one_line
from paras2s.reward.blueprint.schema import EMOTION, Fields, require_sound, unusable
from paras2s.types import Measured

EMOTIONS = ("angry", "disgusted", "fearful", "happy", "neutral", "other", "sad", "surprised", "unknown")


@dataclass(frozen=True)
class EmotionExtractor:
    """Probability of each of the nine classes. `hub` is funasr's: "ms" (ModelScope) or "hf"."""

    model: str = "iic/emotion2vec_plus_large"
    hub: str = "ms"
    name = "emotion"
    rate_hz = 16_000
    keys = tuple(f"{EMOTION}.{label}" for label in EMOTIONS)

    @property
    def version(self) -> str:
        """Names the model."""
        return f"funasr/{self.hub}/{self.model}"

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Emotion of each clip. Raises AudioError: a clip is silent. AssetError: the extra or the weights are missing."""
        for clip in clips:
            require_sound(clip, "emotion")
        model = _model(self.model, self.hub)
        return [
            emotion_fields(model.generate(clip.samples, granularity="utterance", extract_embedding=False)[0]) for clip in clips
        ]


def emotion_fields(result: dict[str, Any]) -> Fields:
    """Return the fields of one result; its labels may be in two languages ("生气/angry") and "<unk>" is "unknown".

    Raises:
        AudioError: a class is missing, so that the others cannot be read as a distribution.
    """
    names = ["unknown" if label == "<unk>" else label.rpartition("/")[2] for label in result["labels"]]
    scores = dict(zip(names, result["scores"], strict=True))
    if missing := [label for label in EMOTIONS if label not in scores]:
        raise AudioError(f"emotion2vec gave no score for {', '.join(missing)}")
    return {f"{EMOTION}.{label}": Measured(float(scores[label]), "probability") for label in EMOTIONS}


@functools.lru_cache(maxsize=1)
def _model(model: str, hub: str) -> Any:
    import torch

    # funasr prints to standard output, where JSON may go, sets torch's threads to four, and seeds every generator with 0.
    with contextlib.redirect_stdout(sys.stderr), torch.random.fork_rng():
        states = random.getstate(), np.random.get_state()
        try:
            return _open(model, hub, torch.get_num_threads())
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _open(model: str, hub: str, threads: int) -> Any:
    try:
        from funasr import AutoModel
    except Exception as error:
        raise unusable("emotion", error) from error
    try:
        return AutoModel(model=model, hub=hub, ncpu=threads, disable_update=True, disable_pbar=True)
    except Exception as error:
        # funasr raises whatever its hub client does: its own, requests' or OSError.
        raise AssetError(f"{model}: the weights are not here and cannot be fetched ({one_line(error)[:200]})") from error
