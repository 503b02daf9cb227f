"""A check that no topic, speaker or sentence of the held-out splits is in training."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from paras2s.audio.asr import normalise_words
from paras2s.data_gen.corpora import CORPORA
from paras2s.errors import DataError
from paras2s.types import Candidate

TRAIN = "train"


@dataclass
class LeakageCheck:
    """Topics, speakers and words of each split, by category; words as hashes, to save memory."""

    _seen: dict[str, dict[str, dict[str, set[object]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(set)))
    )

    def add(self, candidate: Candidate, split: str) -> None:
        """Add an accepted query."""
        own = self._seen[candidate.category]
        own["topic"][split].add(candidate.topic)
        own["speaker"][split].add(candidate.speaker)
        own["words"][split].add(hash(normalise_words(candidate.text)))

    def check(self) -> dict[str, str]:
        """Return what published corpora share between their own, fixed splits, by "corpus/kind".

        Raises:
            DataError: a category other than a corpus shares a topic, a voice or a sentence between its splits; names it.
        """
        overlaps = {}
        for category, kinds in sorted(self._seen.items()):
            for kind, splits in sorted(kinds.items()):
                held_out = set().union(*(values for split, values in splits.items() if split != TRAIN), set())
                both = splits.get(TRAIN, set()) & held_out
                if not both:
                    continue
                if category not in CORPORA:
                    shown = "" if kind == "words" else f", {min(map(str, both))!r} among them"
                    raise DataError(f"{category}: {len(both)} {kind} of the held-out queries are in training too{shown}")
                overlaps[f"{category}/{kind}"] = f"{len(both)} of {len(held_out)} held out are in training too"
        return overlaps
