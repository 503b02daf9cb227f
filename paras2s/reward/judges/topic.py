"""Does an answer take up what the question is about? Words decide: those of the question that carry its topic, said again.

A judge of kinds of answers must not be misled by them: "the funeral" makes no answer sad. So they can be left out as well.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from paras2s.audio.asr import normalise_words

SHORTEST = 3
# Similarity of two spellings, for a recogniser that spells a word otherwise. Below five letters chance is enough.
ALIKE, LONG_ENOUGH = 80.0, 5
# "breathe" and "breathing" share a stem of at least STEM letters, and have endings of at most ENDING.
STEM, ENDING = 4, 3
# Articles and the like that precede a topic and say nothing without it.
_BEFORE = {"a", "an", "the", "your", "my", "our", "his", "her", "their"}
STAND_IN = "that"


@functools.lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return frozenset(ENGLISH_STOP_WORDS)


def topic_words(question: str) -> tuple[str, ...]:
    """Return the words of a question that may carry its topic: no function words, none shorter than three letters."""
    return tuple(word for word in normalise_words(question).split() if len(word) >= SHORTEST and word not in _stop_words())


def same_word(first: str, other: str) -> bool:
    """Return whether two words are the same, forms of one another, or nearly the same in spelling."""
    from rapidfuzz import fuzz

    if first == other:
        return True
    shared = next((n for n, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(len(first), len(other)))
    if shared >= STEM and max(len(first), len(other)) - shared <= ENDING:
        return True
    return min(len(first), len(other)) >= LONG_ENOUGH and fuzz.ratio(first, other) >= ALIKE


def taken_up(question: str, answer: Sequence[str], without: Collection[str] = ()) -> set[str]:
    """Return the words of an answer that say a topic word of the question again; words in `without` are no topic."""
    topics = [word for word in topic_words(question) if word not in without]
    return {word for word in set(answer) - set(without) if any(same_word(word, topic) for topic in topics)}


def without_topic(answer: Sequence[str], taken: Collection[str]) -> list[str]:
    """Return an answer's words with "that" in place of each run of `taken` words and the articles before them."""
    kept: list[str] = []
    for word in answer:
        if word in taken:
            while kept and kept[-1] in _BEFORE:
                kept.pop()
            if not kept or kept[-1] != STAND_IN:
                kept.append(STAND_IN)
        else:
            kept.append(word)
    return kept
