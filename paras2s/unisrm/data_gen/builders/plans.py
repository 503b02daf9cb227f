"""Pairs before they are spoken and judged, and how a corpus is split by text and by speaker."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

from paras2s.configs.schema.unisrm_data import DataSet, Language, PairTask, SplitName, SplitSizes, UniSRMDataConfig, UniSRMVoice
from paras2s.errors import ConfigError
from paras2s.unisrm.data_gen.builders.writer import Writer
from paras2s.unisrm.data_gen.layouts.entries import Dropped, short_digest
from paras2s.unisrm.data_gen.shortcuts import RECORDING
from paras2s.unisrm.reward.tasks import Side
from paras2s.utils.seeds import seed_of

# What several splits would have stays in the first of them.
ORDER: tuple[SplitName, ...] = ("bench", "rl", "sft")
Option = TypeVar("Option")


@dataclass(frozen=True)
class Recording:
    """A clip of a corpus: its file, its words, who speaks, and the corpus' word for the emotion ("" without one)."""

    path: Path
    text: str
    speaker: str
    emotion: str = ""

    @property
    def engine(self) -> str:
        """The name of its maker, for the shortcut of real against synthetic speech."""
        return RECORDING


@dataclass(frozen=True)
class Synthetic:
    """A clip to be synthesised. `prompt` is whose voice a copying system copies, `style` and `manner` are for the others."""

    text: str
    voice: UniSRMVoice
    prompt: Recording | None = None
    style: str = "neutral"
    manner: str = ""

    @property
    def speaker(self) -> str:
        """The speaker: the prompt's, or the voice itself."""
        return self.prompt.speaker if self.prompt else f"voice:{self.voice.name}"

    @property
    def engine(self) -> str:
        """The system's name."""
        return self.voice.name


Source = Recording | Synthetic


@dataclass(frozen=True)
class PairPlan:
    """A pair of candidates, A and B, with the task's inputs.

    `better` is the label by construction; None: the judge decides (T1). `writes` says what an LLM still has to write in the
    worse candidate's place. The pairs of one `group` compare the same systems, and their preferences are checked for cycles;
    None: a pair of its own.
    """

    id: str
    task: PairTask
    split: SplitName
    text_id: str
    group: str | None
    texts: Mapping[str, str]
    clips: Mapping[str, Recording]
    candidates: tuple[Source, Source]
    better: Side | None
    factors: Mapping[str, str]
    writes: Literal["sentence", "turn"] | None = None

    @property
    def speakers(self) -> tuple[str, ...]:
        """All speakers that are heard."""
        return tuple(sorted({source.speaker for source in (*self.candidates, *self.clips.values())}))

    @property
    def sources(self) -> dict[str, Source]:
        """Every clip by its name."""
        return {**self.clips, "speech_a": self.candidates[0], "speech_b": self.candidates[1]}


class Builder(ABC):
    """Planner of the pairs of one corpus. `dropped` counts rows without a pair, by split ("" before the splits) and reason."""

    corpus: str
    task: PairTask
    data_set: DataSet
    # Speakers that every split has, because the corpus has no others.
    shared_speakers: frozenset[str] = frozenset()

    def __init__(self, config: UniSRMDataConfig) -> None:
        """Refuse a config that requests no items (ConfigError)."""
        self.config = config
        self.dropped: Counter[tuple[str, str]] = Counter()
        if not any(self.sizes.values()):
            raise ConfigError(f"sizes: no items of {self.data_set} are requested; give it sizes")

    @property
    def sizes(self) -> Mapping[SplitName, int]:
        """Requested items of each split."""
        return sizes_of(self.config, self.data_set)

    @abstractmethod
    def groups(self, split: SplitName) -> Iterator[list[PairPlan]]:
        """Yield the pairs of a split, those of one text together, until the corpus has no more."""

    @abstractmethod
    def complete(self, plans: Sequence[PairPlan], writer: Writer) -> list[PairPlan | Dropped]:
        """Let an LLM write the texts that the pairs still lack."""

    def dice(self, *parts: object) -> random.Random:
        """Return a random generator for one purpose."""
        return random.Random(seed_of(self.config.seed, self.corpus, *parts))

    def voices(self, split: SplitName, language: Language) -> list[UniSRMVoice]:
        """Return the TTS systems that may speak in a split."""
        return [voice for voice in self.config.voices if voice.split in (None, split) and language in voice.languages]

    def shuffled(self, options: Iterable[Option], *parts: object) -> list[Option]:
        """Return the options in a random order."""
        shuffled_options = list(options)
        self.dice(*parts).shuffle(shuffled_options)
        return shuffled_options


@dataclass
class Shares:
    """Allotment of names to splits, so that all splits fill equally fast."""

    requested: Mapping[SplitName, float]
    filled: dict[SplitName, float] = field(default_factory=lambda: dict.fromkeys(ORDER, 0.0))

    def allot(self, weight: float) -> SplitName:
        """Return the split of the next name, which brings `weight`."""
        able = [split for split in ORDER if self.requested[split] > 0]
        split = min(able, key=lambda option: self.filled[option] / self.requested[option])
        self.filled[split] += weight
        return split


def sizes_of(config: UniSRMDataConfig, data_set: DataSet) -> Mapping[SplitName, int]:
    """Return the requested items of a data set by split; none if the config does not name it."""
    sizes = config.sizes.get(data_set, SplitSizes(sft=0, rl=0, bench=0))
    return {"sft": sizes.sft, "rl": sizes.rl, "bench": sizes.bench}


@lru_cache(maxsize=1 << 17)
def text_key(text: str) -> str:
    """Return a text's key: equal for texts that differ in case, spaces or punctuation alone."""
    return short_digest("".join(letter for letter in text.casefold() if letter.isalnum()).encode())


def shuffled_pair(first: Source, second: Source, dice: random.Random) -> tuple[tuple[Source, Source], Side]:
    """Return both in a random order, and the side of the first (appendix G.1)."""
    return ((second, first), "B") if dice.random() < 0.5 else ((first, second), "A")
