"""Tone scores, in the place of TRACE's `agent_emotion`: one key a tone the classifier knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paras2s.audio import prosody
from paras2s.audio.clip import Clip
from paras2s.reward.blueprint.schema import EMOTION, Fields
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Measured


@dataclass(frozen=True)
class ToneExtractor:
    """Probability of each tone."""

    classifier: ToneClassifier
    name = "tone"
    rate_hz = prosody.RATE_HZ

    @property
    def version(self) -> str:
        """The classifier's."""
        return self.classifier.version

    @property
    def keys(self) -> tuple[str, ...]:
        """`agent_emotion.` and the tone, for each tone."""
        return tuple(f"{EMOTION}.{label}" for label in self.classifier.labels)

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Tone of each clip. Raises AudioError: a clip is silent."""
        return [
            {f"{EMOTION}.{label}": Measured(value, "probability") for label, value in self.classifier.scores(clip).items()}
            for clip in clips
        ]
