"""The rules by which an answer of a kind and a tone gets its score: what is asked, whoever hears the answer.

Two judges score by them: the rubric, which teaches, and the independent judge. They share nothing by which they hear.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from paras2s.errors import ConfigError, one_line


class RubricFamily(BaseModel):
    """One kind of answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    category: str
    tone: str
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """An answer's family as recognised (None: not understood), its tone, score and reason."""

    family: str | None
    tone: str | None
    score: float
    reason: str


class Rubric(BaseModel):
    """The rules in `rubric.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    families: dict[str, RubricFamily]
    content: dict[str, dict[str, int]]
    tone_penalty: dict[str, int]
    contrary: dict[str, tuple[str, ...]]
    understood: float
    mumbled: float
    min_speech_rate_syllables_per_s: float
    max_repeated_share: float
    min_words: int
    min_voiced_share: float
    max_tail_level_db: float

    @model_validator(mode="after")
    def _check(self) -> Rubric:
        if not self.families:
            raise ValueError("there are no families")
        for style, row in self.content.items():
            if "other" not in row:
                raise ValueError(f"content.{style} has no score for 'other'")
        if missing := {"plain", "contrary"} - self.tone_penalty.keys():
            raise ValueError(f"tone_penalty has no {', '.join(sorted(missing))}")
        return self

    def content_score(self, style: str, family: str) -> int:
        """The score of an answer's words alone, for a question of the style.

        Raises:
            KeyError: the rubric has no rules for the style.
        """
        row = self.content[style]
        return row.get(family, row["other"])

    def flaw(
        self, words: Sequence[str], voiced_share: float | None, syllables_per_s: float | None, tail_db: float | None
    ) -> str | None:
        """Returns why this is no answer at all; None if it is one. What was not measured is not held against it."""
        if len(words) < self.min_words:
            return f"only {len(words)} words were heard"
        if repeated_share(words) > self.max_repeated_share:
            return "the same words come again and again"
        if voiced_share is not None and voiced_share < self.min_voiced_share:
            return f"hardly a voice is heard: {100 * voiced_share:.0f} % of the time"
        if syllables_per_s is not None and syllables_per_s < self.min_speech_rate_syllables_per_s:
            return f"far too slow or too long: {syllables_per_s:.1f} syllables a second"
        if tail_db is not None and tail_db > self.max_tail_level_db:
            return "the answer is cut off"
        return None

    def unsure(self, style: str, family: str, tone: str, why: str) -> Finding:
        """The finding on an answer whose family is a guess: 2 at most, whatever its tone."""
        score = min(self.content_score(style, family), 2)
        return Finding(family, tone, float(score), f"hard to make out, perhaps {family} ({why})")

    def finding(self, style: str, family: str, tone: str) -> Finding:
        """The finding on an answer that was understood."""
        content = self.content_score(style, family)
        score, tone_reason = self._with_tone(content, family, tone)
        wording = "fits" if content >= 4 else "does not fit" if content <= 2 else "is not wrong but not for"
        return Finding(family, tone, float(score), f"an answer of kind {family} {wording} a {style} user{tone_reason}")

    def _with_tone(self, content: int, family: str, tone: str) -> tuple[int, str]:
        own = self.families[family].tone
        if tone == own or content < 4:
            return content, f"; spoken {tone}" + (", as it should be" if tone == own else "")
        kind = "contrary" if tone in self.contrary.get(own, ()) else "plain"
        return content - self.tone_penalty[kind], f"; spoken {tone} where {own} would carry it"


def repeated_share(words: Sequence[str]) -> float:
    """Returns the share of words that form a pair of neighbours seen before, or repeat the word before them."""
    seen: Counter[tuple[str, str]] = Counter()
    repeated = 0
    for before, word in itertools.pairwise(words):
        repeated += before == word or seen[(before, word)] > 0
        seen[(before, word)] += 1
    return repeated / max(1, len(words) - 1)


def load_rubric(path: Path | None = None) -> tuple[Rubric, str]:
    """A rubric and the hash of its file; the one that ships where no path is given.

    Raises:
        ConfigError: missing, or not a rubric.
    """
    source = path or resources.files("paras2s.reward.judges").joinpath("rubric.yaml")
    try:
        text = source.read_text()
        return Rubric(**yaml.safe_load(text)), hashlib.sha256(text.encode()).hexdigest()[:16]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "rubric"
        raise ConfigError(f"{source}: not a rubric ({place}: {first['msg']})") from error
    except (OSError, UnicodeDecodeError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: not a rubric ({one_line(error)})") from error
