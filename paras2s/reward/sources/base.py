"""The interface of a reward source: the groups of answers it is given, and its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from paras2s.audio.clip import Clip, read_clip
from paras2s.reward.judges.base import Utterance
from paras2s.types import HIGHEST, LOWEST, Blueprint, Unscored

if TYPE_CHECKING:
    # It is of the reward model, which brings torch: seconds for whoever needs a judge alone.
    from paras2s.reward.reward_model.model import EncodedQuestion

Scores = list[float | Unscored]


@dataclass(frozen=True)
class SaidBefore:
    """A turn before a question: its words, and its sound or the file of it."""

    speaker: Literal["user", "assistant"]
    text: str = ""
    clip: Path | Clip | None = None


@dataclass(frozen=True)
class RewardQuestion:
    """A question as rewards may know it, and no label of it. Made by the align stage.

    `encoded` is what the embedded reward model reads (None: it is not among the sources); `transcript` is by ASR; `style` by
    a tone classifier (None: no source needs it); `clip` is the sound or its file; `history` are the turns before it.
    """

    id: str
    encoded: EncodedQuestion | None
    transcript: str
    style: str | None = None
    clip: Path | Clip | None = None
    history: tuple[SaidBefore, ...] = ()

    def sound(self) -> Clip | None:
        """Return the sound, read from its file.

        Raises:
            AudioError: the file cannot be read.
        """
        return read_sound(self.clip)

    def utterance(self, with_sound: bool = True) -> Utterance:
        """Return it for a judge: its words and style, its sound where there is any, and the turns before it.

        Raises:
            AudioError: a file cannot be read.
        """

        def said(text: str, clip: Path | Clip | None) -> Utterance:
            return Utterance(read_sound(clip) if with_sound else None, text or None)

        history = tuple((turn.speaker, said(turn.text, turn.clip)) for turn in self.history)
        return Utterance(self.sound() if with_sound else None, self.transcript, self.style, history)


def read_sound(clip: Path | Clip | None) -> Clip | None:
    """Return a clip, read from its file where it is one.

    Raises:
        AudioError: the file cannot be read.
    """
    return read_clip(clip) if isinstance(clip, Path) else clip


@dataclass(frozen=True)
class GivenAnswer:
    """One sampled answer: its length T in steps of the embedded codec, the text stream, and what a source needs of the rest.

    `codes` [T, K] are the embedded codec's.
    """

    steps: int
    text: str
    clip: Clip | None = None
    blueprint: Blueprint | None = None
    codes: np.ndarray | None = None


@dataclass(frozen=True)
class Group:
    """G answers to one question."""

    question: RewardQuestion
    answers: tuple[GivenAnswer, ...]


class RewardSource(Protocol):
    """Scores every answer of every group, from 1 to 5, or says why not.

    A source with `judges = False` measures (loudness, length) and is not audited. A `version`, where a source has it, names its
    audit: it is then asked once for its data.
    """

    @property
    def kind(self) -> str:
        """Its kind in the config."""

    @property
    def extractors(self) -> tuple[str, ...]:
        """Blueprint extractors it reads; () where it reads no blueprint."""

    @property
    def needs_sound(self) -> bool:
        """Whether it listens to the waveform itself."""

    @property
    def needs_codes(self) -> bool:
        """Whether it reads the embedded codec's codes."""

    def score(self, groups: Sequence[Group]) -> list[Scores]:
        """Return scores [B, G]."""


def on_scale(share: float) -> float:
    """Return a share of success from 0 to 1 as a score from 1 to 5."""
    return LOWEST + (HIGHEST - LOWEST) * min(max(share, 0.0), 1.0)
