"""One judged answer to one held-out question: what the benchmark writes, and all that statistics and report read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from paras2s.bench.verdict_file import read_rows
from paras2s.errors import DataError, StorageError
from paras2s.types import Category
from paras2s.utils.io import write_jsonl

LOWEST_SCORE, FITTING_SCORE, HIGHEST_SCORE = 1.0, 4.0, 5.0


@dataclass(frozen=True)
class AnswerRow:
    """Answer number `answer_index` of `system` to one question. Made by the bench stage; read by `stats` and `report`.

    `question_clip` and `answer_clip` are relative to the run folder; `duration_s` is the answer's length.
    `text_stream` is the policy's text slot, `transcript` the ASR transcript of the sound (None: not measured), and
    `word_error_rate` compares the two (a share, may exceed 1). `tone` is the tone of voice (None: not measured) and
    `tone_scores` the share of each tone considered. `score` is the judge's, 1 to 5, with its `reason` in words;
    a row without a score says why in `unscored`. `fitting` means a score of at least 4. `family` is the kind of answer
    the judge recognised, None if it recognised or names none. `model_score` is the reward model's (None: it gave none).
    `parts` are scores that the judge's is made of, by name (the rubric's: kind, tone, topic).
    `prompts` are the messages that the judge was sent (None: not kept; (): no call was made), `reply` is what it said to them.

    Raises:
        DataError: neither or both of `score` and `unscored`, a number out of range, or a `fitting` against the score.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    system: str
    query_id: str
    contrast_id: str
    category: Category
    style: str
    question_text: str
    question_clip: str
    answer_index: int
    text_stream: str
    transcript: str | None
    tone: str | None
    tone_scores: dict[str, float]
    score: float | None
    unscored: str | None
    reason: str
    family: str | None
    fitting: bool
    answer_clip: str
    duration_s: float
    word_error_rate: float | None
    judge: str
    model_score: float | None
    reply: str = ""
    cost_usd: float | None = None
    prompts: tuple[str, ...] | None = None
    parts: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.score is None) == (self.unscored is None):
            raise DataError("score: give either a score or the reason in 'unscored', and not both")
        if self.score is not None and not LOWEST_SCORE <= self.score <= HIGHEST_SCORE:
            raise DataError(f"score: {self.score} is not between {LOWEST_SCORE:.0f} and {HIGHEST_SCORE:.0f}")
        if self.fitting != (self.score is not None and self.score >= FITTING_SCORE):
            raise DataError(f"fitting: {self.fitting} contradicts a score of {self.score}")
        for key, value in (("duration_s", self.duration_s), ("word_error_rate", self.word_error_rate)):
            if value is not None and not 0 <= value < math.inf:
                raise DataError(f"{key}: {value} is not a finite number of at least 0")


def require_new(path: Path, existing: Iterable[str], own: Iterable[str]) -> None:
    """Refuse to replace another judge's verdicts; `there` and `own` name judges as NAME/VERSION/PROMPT_HASH.

    Raises:
        StorageError: the file holds verdicts of another judge, or of other prompts.
    """
    if others := sorted(set(existing) - set(own)):
        raise StorageError(f"{path} holds verdicts of {', '.join(others)}; give another --out, or delete it")


def save_rows(path: Path, rows: Iterable[AnswerRow]) -> None:
    """Replace the file of rows, one JSON object a line. Raises StorageError: the disk refused."""
    write_jsonl(path, (asdict(row) for row in rows))


def load_rows(path: Path) -> list[AnswerRow]:
    """Return rows in the order they were saved. Raises DataError: no file, or a wrong row; names file:line and key."""
    return [row for _, row in read_rows(path, AnswerRow, "; run the benchmark again")]
