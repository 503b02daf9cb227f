"""Two systems without a policy: one that hears only the words, and one that is told the style (ParaS2S, section 5.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paras2s.audio.clip import Clip
from paras2s.data_gen.scripted.scripts import load_families, load_words_only
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES
from paras2s.data_gen.tts.render import Take, render
from paras2s.types import Query


@dataclass(frozen=True)
class SpokenAnswer:
    """What a system said to one query: its text stream and its waveform."""

    query: Query
    index: int
    text: str
    clip: Clip


def words_only(queries: Sequence[Query], answers_per_query: int, cache: Path) -> list[SpokenAnswer]:
    """The cascade: words in, a text reply, neutral speech out. Both styles of a contrast sound alike to it.

    It stands for a language model that reads the words perfectly, so it is told what kind of remark it answers (category),
    which the words give away; of the style it learns nothing.
    """
    replies = load_words_only()
    rows = []
    for query in queries:
        assert query.category is not None
        options = replies[query.category]
        rows += [(query, n, options[n % len(options)], "neutral") for n in range(answers_per_query)]
    return _speak(rows, cache)


def topline(queries: Sequence[Query], answers_per_query: int, cache: Path) -> list[SpokenAnswer]:
    """Told the true style: a fitting answer in its tone."""
    families = load_families()
    rows = []
    for number, query in enumerate(queries):
        assert query.style is not None
        family = families[query.style]
        for n in range(answers_per_query):
            rows.append((query, n, family.answers[(number + n) % len(family.answers)], family.tone))
    return _speak(rows, cache)


def _speak(rows: Sequence[tuple[Query, int, str, str]], cache: Path) -> list[SpokenAnswer]:
    """By the same voice, vocoder and codec as the demonstrations, one take each: no picking of the best."""
    takes = [Take(text, AGENT, AGENT_TONES[tone], 0, coded=True) for _, _, text, tone in rows]
    rendered = render(takes, cache)
    return [SpokenAnswer(query, n, text, one.clip) for (query, n, text, _), one in zip(rows, rendered, strict=True)]
