"""A corpus in LibriTTS-R's layout: anywhere under the root SPEAKER/CHAPTER/NAME.wav, with its words in NAME.normalized.txt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paras2s.errors import DataError
from paras2s.utils.io import read_text, without_mac_files

TEXT_SUFFIX = ".normalized.txt"


@dataclass(frozen=True, order=True)
class SpokenText:
    """One utterance: its path under the root, its speaker and its words."""

    path: str
    speaker: str
    words: str


def read_corpus(root: Path) -> dict[str, list[SpokenText]]:
    """Read the utterances of every speaker, sorted. Raises DataError: no clip in this layout, or one without words."""
    readers: dict[str, list[SpokenText]] = {}
    for clip in without_mac_files(root.rglob("*.wav")):
        text = clip.with_name(clip.name.removesuffix(".wav") + TEXT_SUFFIX)
        words = read_text(text).strip()
        if not words:
            raise DataError(f"{text}: holds no words")
        if len(clip.relative_to(root).parts) < 3:
            raise DataError(f"{clip}: expected SPEAKER/CHAPTER/NAME.wav under {root}")
        speaker = clip.parent.parent.name
        readers.setdefault(speaker, []).append(SpokenText(clip.relative_to(root).as_posix(), speaker, words))
    if not readers:
        raise DataError(f"{root}: holds no SPEAKER/CHAPTER/NAME.wav")
    return readers
