"""A filter of near-duplicate sentences: within a topic, and between training and held-out data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from paras2s.audio.asr import normalise_words
from paras2s.data_gen.curation.text_filters import reject
from paras2s.types import Script

HELD_OUT = "held out"


@dataclass
class DuplicateFilter:
    """Filter of sentences too similar to earlier ones; holds only their normalised words, about 60 letters each."""

    near: float
    _exact: set[str] = field(default_factory=set)
    _by_topic: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    _by_side: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def drop(self, scripts: Sequence[Script]) -> list[Script]:
        """Reject scripts that repeat an earlier one; a rejected script does not count as earlier."""
        return [script if script.rejected_by else self._check(script) for script in scripts]

    def _check(self, script: Script) -> Script:
        from rapidfuzz import fuzz, process

        words = normalise_words(script.text)
        if words in self._exact:
            return reject(script, "duplicate", "the same words as an earlier sentence")
        side, other_side = ("train", HELD_OUT) if script.split == "train" else (HELD_OUT, "train")
        topic = self._by_topic[script.category, script.topic]
        for candidates in (topic, self._by_side[other_side]):
            twin = process.extractOne(words, candidates, scorer=fuzz.token_sort_ratio, score_cutoff=self.near)
            if twin is not None:
                where = "" if candidates is topic else f" on the other side of the split ({other_side})"
                return reject(script, "duplicate", f"{twin[1]:.0f} of 100 like {twin[0]!r}{where}")
        self._exact.add(words)
        topic.append(words)
        self._by_side[side].append(words)
        return script
