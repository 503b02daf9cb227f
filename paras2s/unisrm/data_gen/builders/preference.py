"""T1 from LibriTTS-R: a sentence by several TTS systems and by its reader, all in pairs (UniSRM, section 3, equations 1 and 2).

The prompt is another utterance of the reader. Splits share no reader and no sentence; a voice of its own serves one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from paras2s.configs.schema.unisrm_data import SplitName, UniSRMDataConfig
from paras2s.data_gen.libritts import read_corpus
from paras2s.errors import ConfigError
from paras2s.unisrm.data_gen.builders.plans import (
    ORDER,
    Builder,
    PairPlan,
    Recording,
    Shares,
    Source,
    Synthetic,
    sizes_of,
    text_key,
)
from paras2s.unisrm.data_gen.builders.writer import Writer
from paras2s.unisrm.data_gen.layouts.entries import Dropped
from paras2s.utils.seeds import seed_of

CORPUS = "libritts-r"


def read_readers(root: Path) -> dict[str, list[Recording]]:
    """Return the utterances of every reader of a corpus in LibriTTS-R's layout. Raises DataError: it has another layout."""
    return {
        name: [Recording(root / utterance.path, utterance.words, f"{CORPUS}:{name}") for utterance in utterances]
        for name, utterances in read_corpus(root).items()
    }


def split_readers(config: UniSRMDataConfig, readers: Mapping[str, Sequence[Recording]]) -> dict[str, SplitName]:
    """Return each reader's split: the same one whether T1 is made of them, or T3's prompts are theirs."""
    sizes = sizes_of(config, "T1")
    shares = Shares(sizes if any(sizes.values()) else dict.fromkeys(ORDER, 1))
    names = sorted(readers)
    random.Random(seed_of(config.seed, CORPUS)).shuffle(names)
    return {name: shares.allot(len(readers[name])) for name in names}


class PreferenceBuilder(Builder):
    """Planner of T1."""

    corpus, task, data_set = CORPUS, "T1", "T1"

    def __init__(self, config: UniSRMDataConfig, root: Path) -> None:
        """Read the corpus. Raises DataError: it is not laid out as published. ConfigError: a split has no TTS system."""
        super().__init__(config)
        for split, count in self.sizes.items():
            if count and not self.voices(split, "en"):
                raise ConfigError(f"voices: none speaks English in {split}; T1 compares TTS systems")
        self.readers = read_readers(root)
        self.split_of = split_readers(config, self.readers)

    def groups(self, split: SplitName) -> Iterator[list[PairPlan]]:
        """Yield all pairs of a sentence together."""
        recordings = [
            (name, recording)
            for name in sorted(self.readers)
            if self.split_of[name] == split
            for recording in self.readers[name]
        ]
        seen: set[str] = set()
        for name, recording in self.shuffled(recordings, "sentences", split):
            key = text_key(recording.text)
            prompts = [other for other in self.readers[name] if text_key(other.text) != key]
            if key in seen:
                self.dropped[split, "its sentence has been used"] += 1
            elif not prompts:
                self.dropped[split, "its reader has no other utterance"] += 1
            else:
                seen.add(key)
                yield self._pairs(split, recording, key, self.dice("prompt", recording.path.stem).choice(prompts))

    def _pairs(self, split: SplitName, recording: Recording, key: str, prompt: Recording) -> list[PairPlan]:
        systems: list[Source] = [recording]
        systems += [Synthetic(recording.text, voice, prompt if voice.copies else None) for voice in self.voices(split, "en")]
        plans = []
        for pair in combinations(systems, 2):
            names = "-".join(source.engine for source in pair)
            first, second = self.shuffled(pair, "order", recording.path.stem, names)
            factors = {"engine_a": first.engine, "engine_b": second.engine, "language": "en"}
            name, texts = f"{CORPUS}-{recording.path.stem}-{names}", {"reference_text": recording.text}
            plans.append(
                PairPlan(name, "T1", split, key, key, texts, {"prompt_speech": prompt}, (first, second), None, factors)
            )
        return plans

    def complete(self, plans: Sequence[PairPlan], writer: Writer) -> list[PairPlan | Dropped]:
        """Return the plans unchanged: nothing is missing."""
        return list(plans)


def contradicting(preferences: Sequence[tuple[str, str]]) -> list[bool]:
    """Return for each preference (better, worse) whether it lies on a cycle (appendix G.1): strongly connected components."""
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not preferences:
        return []
    numbers: dict[str, int] = defaultdict(lambda: len(numbers))
    edges = np.array([(numbers[better], numbers[worse]) for better, worse in preferences])
    graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(len(numbers), len(numbers)))
    _, component = connected_components(graph, directed=True, connection="strong")
    return [bool(component[better] == component[worse]) for better, worse in edges]
