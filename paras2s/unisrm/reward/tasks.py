"""The four tasks of UniSRM with their dimensions and ranges (Table 8), and the records that a reply is parsed to.

Alphabet: D dimensions of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

TaskId = Literal["T1", "T2", "T3", "T4"]
TASK_IDS: tuple[TaskId, ...] = get_args(TaskId)
Side = Literal["A", "B"]
SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True)
class Dimension:
    """A dimension's key, in data and tables, and its title, in prompts and replies."""

    key: str
    title: str


@dataclass(frozen=True)
class Task:
    """A task: a pair of clips is compared, or a single clip is scored where `pairwise` is false.

    `low` to `high` is the range of every dimension. `texts` and `clips` name the inputs beside the candidates, in the order in
    which the model gets them; "history" is any number of clips.
    """

    id: TaskId
    title: str
    dimensions: tuple[Dimension, ...]
    low: int
    high: int
    pairwise: bool
    texts: tuple[str, ...] = ()
    clips: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the D dimensions."""
        return tuple(dimension.key for dimension in self.dimensions)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of the clips that are judged."""
        return ("speech_a", "speech_b") if self.pairwise else ("speech",)


TEXT_FIDELITY = Dimension("text_fidelity", "Text Fidelity & Intelligibility")
NATURALNESS = Dimension("naturalness", "Naturalness & Audio Quality")
TASKS: dict[TaskId, Task] = {
    "T1": Task(
        "T1",
        "utterance-level A/B preference",
        (
            TEXT_FIDELITY,
            Dimension("speaker_similarity", "Speaker Similarity to Prompt Speech"),
            Dimension("prosody", "Prosody & Expressiveness Appropriateness"),
            NATURALNESS,
        ),
        0,
        10,
        True,
        ("reference_text",),
        ("prompt_speech",),
    ),
    "T2": Task(
        "T2",
        "utterance-level quality",
        (
            Dimension("noise", "Noise"),
            Dimension("distortion", "Distortion"),
            Dimension("speed", "Speed"),
            Dimension("continuity", "Continuity"),
            Dimension("naturalness", "Naturalness"),
            Dimension("listening_effort", "Listening effort"),
            Dimension("overall", "Overall quality"),
        ),
        1,
        5,
        False,
    ),
    "T3": Task(
        "T3",
        "scenario-aware style",
        (TEXT_FIDELITY, Dimension("scenario_match", "Scenario Style Match"), NATURALNESS),
        0,
        10,
        True,
        ("scenario_description", "paragraph_context", "target_emotion", "target_text"),
    ),
    "T4": Task(
        "T4",
        "multi-turn dialogue",
        (
            Dimension("intent", "Intent Matching & Dialogue Act"),
            Dimension("speaker_consistency", "Speaker Consistency"),
            Dimension("context", "Contextual Consistency"),
            Dimension("emotion", "Emotion & Prosody Match"),
            Dimension("naturalness", "Overall Naturalness"),
        ),
        0,
        10,
        True,
        (),
        ("history",),
    ),
}
# The parts of a T2 reply that describe in words (Figure 4), in order.
ASPECT_DESCRIPTIONS = ("Noise description", "Distortion description", "Unnatural pause", "Feeling of voice")


@dataclass(frozen=True)
class SideScores:
    """One candidate's D scores, and an explanation of each ("" where the source has none)."""

    scores: tuple[float, ...]
    explanations: tuple[str, ...]

    @property
    def total(self) -> float:
        """The sum of the scores."""
        return sum(self.scores)


@dataclass(frozen=True)
class PairRecord:
    """A comparison (T1, T3, T4). `sides` is None for replies without reasoning."""

    better: Side
    sides: tuple[SideScores, SideScores] | None = None
    summary: str = ""


@dataclass(frozen=True)
class QualityRecord:
    """Scores of the seven aspects of T2; `descriptions` are those of `ASPECT_DESCRIPTIONS`, () without reasoning.

    The scores of a reply are whole numbers, those of a data set may be means of several raters, or the overall score alone.
    """

    scores: tuple[float, ...]
    descriptions: tuple[str, ...] = ()
    description: str = ""


Record = PairRecord | QualityRecord


@dataclass(frozen=True)
class Item:
    """One item of a data set: what the model gets, and its label. Made by `data_gen`, read by training and bench.

    `clips` maps an input's name to a file relative to the data folder; a turn of the history is "history_1" and so on.
    `text_id` and `speakers` are what splits are disjoint by. `factors` says how the item was made or measured.
    """

    id: str
    task: TaskId
    split: Literal["sft", "rl", "bench"]
    text_id: str
    speakers: tuple[str, ...]
    texts: Mapping[str, str]
    clips: Mapping[str, str]
    record: Record
    factors: Mapping[str, str] = field(default_factory=dict)
