"""Pairwise benchmarks with people's labels in the form of TRACE's release: SpeakBench and S2S-Arena.

The audio stays where the user has it; the labels hold its names under that root.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from paras2s.audio.clip import Clip, read_clip
from paras2s.errors import AudioError, DataError, checking
from paras2s.reward.judges.base import Pair, Utterance
from paras2s.types import DIMENSIONS, Dimension, Label, Unscored
from paras2s.utils.io import path_inside, read_json

# Some instructions want long answers ("recite the alphabet slowly"); more than this is not an answer.
MAX_ANSWER_S = 600.0


class HumanLabels(BaseModel):
    """People's label of each dimension, and the overall one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    content: Label
    voice_quality: Label
    paralinguistics: Label
    overall: Label

    def dimensions(self) -> dict[Dimension, Label]:
        """Without the overall label."""
        return {name: getattr(self, name) for name in DIMENSIONS}


class SuitePair(BaseModel):
    """One pair, with the keys of the authors' JSON. Paths are relative to the audio's root."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index: int
    instruction_path: str
    instruction_text: str
    model_a: str
    model_b: str
    audio1_path: str
    audio2_path: str
    label: HumanLabels
    instruction_id: int | str

    def clips(self) -> dict[str, str]:
        """Return the clips by role, as paths under the audio's root; the instruction's may be missing."""
        return {"question": self.instruction_path, "answer 1": self.audio1_path, "answer 2": self.audio2_path}


@dataclass(frozen=True)
class Suite:
    """A benchmark: its fusion rule, and how far two people agree on it, per dimension and overall (TRACE, Table 3)."""

    name: str
    rule: str
    human_agreement: dict[str, float]


SUITES = {
    "speakbench": Suite(
        "speakbench", "speakbench", {"content": 0.760, "voice_quality": 0.600, "paralinguistics": 0.820, "overall": 0.600}
    ),
    "s2sarena": Suite(
        "s2sarena", "s2sarena", {"content": 0.733, "voice_quality": 0.483, "paralinguistics": 0.750, "overall": 0.750}
    ),
}


def load_pairs(path: Path) -> list[SuitePair]:
    """Return the pairs of a label file, in its order. Raises DataError: missing or wrong; names entry and key."""
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{path}: expected a list of pairs, as in the authors' release")
    adapter = TypeAdapter(SuitePair)
    pairs = []
    for number, row in enumerate(rows):
        with checking(f"{path}: entry {number}", "pair"):
            pairs.append(adapter.validate_python(row))
    twice = [index for index, count in Counter(pair.index for pair in pairs).items() if count > 1]
    if twice:
        raise DataError(f"{path}: index {twice[0]} occurs more than once")
    return pairs


def read_pair_audio(pair: SuitePair, root: Path) -> Pair | Unscored:
    """Return the pair's clips, or Unscored; the instruction may be text alone. Raises DataError: a path leaves the root."""
    try:
        first, second = (_read(root, name) for name in (pair.audio1_path, pair.audio2_path))
        spoken = _under(root, pair.instruction_path)
        instruction = _read(root, pair.instruction_path) if os.path.isfile(spoken) else None
    except AudioError as error:
        return Unscored("audio", str(error))
    return Pair(Utterance(instruction, pair.instruction_text), first, second)


def _under(root: Path, name: str) -> Path:
    path = path_inside(root, name)
    if path is None:
        raise DataError(f"{name}: leaves the audio folder {root}")
    return path


def _read(root: Path, name: str) -> Clip:
    return read_clip(_under(root, name), max_duration_s=MAX_ANSWER_S)


def label_counts(pairs: Sequence[SuitePair]) -> dict[str, dict[str, int]]:
    """Count pairs that are both bad, have a winner, are both good, per dimension and overall (TRACE, Table 6)."""
    names = {"both_bad": "both_bad", "both_good": "both_good", "1": "winner", "2": "winner"}
    return {
        dimension: {
            kind: sum(names[getattr(pair.label, dimension)] == kind for pair in pairs)
            for kind in ("both_bad", "winner", "both_good")
        }
        for dimension in (*DIMENSIONS, "overall")
    }
