"""The rules of an outside suite: its items, what a judge is asked about an answer, and how verdicts make its table.

A suite is a subclass of `Suite`. Answers, calls, budget, resume, intervals, pages and tables are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict

from paras2s.audio.clip import Clip
from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.suites.download import Download
from paras2s.clients.chat import Audio, Message
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import DataError, JudgeError
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import cluster_rows, interval_of, ratio
from paras2s.types import Unscored

GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai"
OVERALL = "overall"
# The version of a verdict that the makers published.
RECORDED = "recorded"
RESAMPLES = 2_000
Parts = Mapping[str, float]
Table = dict[str, dict[str, Share]]


@dataclass(frozen=True)
class UserTurn:
    """One turn of the user: its sound (None: the download lacks it) and its words."""

    clip: Path | None
    words: str = ""


class ItemValues(dict[str, Any]):
    """Values of an item in a download, by name; a missing name is an error of the download."""

    def __missing__(self, name: str) -> Any:
        """Refuse a name that the download lacks. Raises JudgeError: always."""
        raise JudgeError(f"the item is not of the makers' form: it has no {name}")


@dataclass(frozen=True)
class Item:
    """One item of a suite: the turns that a system answers, and `values` that its rules read.

    `subset` is the suite's own division, a path such as "en/empathy". Items of one `contrast` share their words.
    """

    id: str
    subset: str
    turns: tuple[UserTurn, ...]
    values: Mapping[str, Any] = field(default_factory=ItemValues)
    contrast: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", ItemValues(self.values))

    @property
    def cluster(self) -> str:
        """The contrast, or the item itself: intervals draw these."""
        return self.contrast or self.id

    def turn_name(self, turn: int) -> str:
        """Return the name of an answer to a turn in our own folders."""
        return self.id if len(self.turns) == 1 else f"{self.id}/turn-{turn + 1}"


@dataclass(frozen=True)
class Listed:
    """An answer in a list of the makers' form: its sound below the folder ("" if it has a usual name), and its text."""

    path: str = ""
    text: str = ""


@dataclass(frozen=True)
class Question:
    """One question to the judge about an answer; `read` finds the scores in a reply, by name.

    `exchanged` is the same question with a pair's answers in the other order; `position` is the system's place in the first.

    A `read` that equal questions share must be one object: replies are cached by it. It raises a JudgeError.
    """

    messages: tuple[Message, ...]
    read: Callable[[str], Parts]
    prompt_hash: str = ""
    samples: int = 1
    position: int | None = None
    exchanged: Question | None = None


@dataclass(frozen=True)
class SuiteRow:
    """A verdict on one answer by one measure, or the reason in `unscored`; a line of the file of verdicts.

    `parts` are the scores by name, on the suite's own scale, and `score` their mean; `size` is how many an item calls for.
    `answer` is the digest of what was judged.

    Raises:
        DataError: neither or both of `score` and `unscored`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    suite: str
    system: str
    item: str
    subset: str
    metric: str
    judge: str
    version: str = ""
    prompt_hash: str = ""
    score: float | None = None
    unscored: str | None = None
    parts: dict[str, float] = field(default_factory=dict)
    size: int = 1
    cluster: str = ""
    baseline: str = ""
    position: int | None = None
    consistent: bool | None = None
    reason: str = ""
    reply: str = ""
    cost_usd: float | None = 0.0
    latency_s: float = 0.0
    answer: str = ""
    made_from: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.score is None) == (self.unscored is None):
            raise DataError("score: give either a score or the reason in 'unscored', and not both")

    @property
    def label(self) -> str:
        """The judge and its version, as tables name it."""
        return f"{self.judge}/{self.version}" if self.version else self.judge

    @property
    def key(self) -> tuple[str, ...]:
        """The judge, system, item and measure that the row is about; one file holds each once."""
        return self.label, self.system, self.item, self.metric


class Suite:
    """The base of all suites. A subclass sets the names and implements `items` and `scoring`.

    `source` says where the makers put the suite. `by_judge` are the measures that a judge is asked for, the headline first;
    `measured` those that are computed. `judge` is the makers' judge, and `other_judges` those of single measures. With
    `from_text` an answer needs no sound. With `timed` answers run beside the question, which only a folder of them can hold.
    """

    name: str
    title: str
    source: str
    judge: LLMConfig = LLMConfig()
    other_judges: Mapping[str, LLMConfig] = {}
    by_judge: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    from_text: bool = False
    timed: bool = False

    # Items and answers.

    def items(self, data: Download) -> Iterator[Item]:
        """Yield the items of a download; what is wrong with a file goes to `data.problems`, one line each."""
        raise NotImplementedError

    def answer_names(self, item: Item, turn: int) -> Sequence[str]:
        """Return the names, without a suffix, under which the makers' layout has the answer to a turn."""
        return [item.turn_name(turn), item.turn_name(turn).rpartition("/")[2]]

    def listed(self, answers: Path) -> Mapping[str, Listed]:
        """Return the answers that a list in their folder names, by any of their `answer_names`."""
        return {}

    # Scores.

    def metrics(self, item: Item) -> Sequence[str]:
        """Return the measures of an item."""
        return (*self.by_judge, *self.measured)

    def scoring(self, item: Item, metric: str, answers: Sequence[SystemAnswer], data: Download) -> Question | Parts | Unscored:
        """Return the scores of an item's answers (one a turn), or the question that the judge is asked for them.

        Raises:
            JudgeError, AudioError, AssetError: they cannot be measured; the message is the reason of an unscored row.
        """
        raise NotImplementedError

    def baseline(self, item: Item, metric: str) -> str:
        """Return the name of the system that a measure compares an item's answers with, "" if they are scored alone."""
        return ""

    def rival(self, item: Item, data: Download) -> Clip | None:
        """Return the answer that a pair's judge compares with; None if answers are scored alone."""
        return None

    def part_names(self, item: Item) -> Sequence[str]:
        """Return the names of the scores of a judge with questions of its own."""
        return ("score",)

    def recorded(self, row: Mapping[str, Any], path: Path) -> SuiteRow | None:
        """Return a verdict in the form of the suite's own release, from a row of the file; None if it is no such verdict.

        Raises:
            DataError, LookupError, TypeError, ValueError: a key is missing or wrong.
        """
        return None

    # The table.

    def table(self, rows: Sequence[SuiteRow]) -> Table:
        """Return the figures of one judge's rows: columns by system, in the suite's own scale."""
        systems = dict.fromkeys(row.system for row in rows)
        return {name: self.columns([row for row in rows if row.system == name]) for name in systems}

    def columns(self, rows: Sequence[SuiteRow]) -> dict[str, Share]:
        """Return the figures of one system: by default every subset's mean, and overall the mean of these means."""
        return mean_columns(rows)


# Figures.


def weighted_mean(
    rows: Sequence[SuiteRow], part: Callable[[SuiteRow], str], weights: Mapping[str, float], scale: float = 1.0
) -> Share:
    """Return the weighted mean of the parts' means with its interval over clusters; not defined where a part has no score."""
    names = {name: number for number, name in enumerate(weights)}
    counted = [row for row in rows if part(row) in names]
    scored = [row for row in counted if row.score is not None]
    clusters = cluster_rows([row.cluster or row.item for row in scored])
    sums = np.zeros((int(clusters.max(initial=-1)) + 1, len(names), 2))
    places = np.array([names[part(row)] for row in scored], dtype=np.intp)
    np.add.at(sums, (clusters, places), np.array([(row.score, 1.0) for row in scored], dtype=float).reshape(-1, 2))
    if not scored:
        return Share(n_asked=len(counted))
    shares = np.array(list(weights.values())) / sum(weights.values())
    ends = interval_of(lambda drawn: scale * (ratio(drawn[..., 0], drawn[..., 1]) @ shares), sums, RESAMPLES)
    return Share(*ends, len(scored), len(counted))


def mean_of(rows: Sequence[SuiteRow], scale: float = 1.0) -> Share:
    """Return the mean of all rows with its interval."""
    return weighted_mean(rows, lambda row: "", {"": 1.0}, scale)


def mean_columns(rows: Sequence[SuiteRow], part: Callable[[SuiteRow], str] = lambda row: row.subset) -> dict[str, Share]:
    """Return the mean of every part, and overall the mean of the parts' means."""
    names = dict.fromkeys(map(part, rows))
    columns = {name: mean_of([row for row in rows if part(row) == name]) for name in names}
    return {**columns, OVERALL: weighted_mean(rows, part, dict.fromkeys(names, 1.0))}


def by_language(rows: Sequence[SuiteRow], columns_of: Callable[[Sequence[SuiteRow]], dict[str, Share]]) -> dict[str, Share]:
    """Return the columns of every language, the first part of the rows' subsets, named where there are several."""
    languages = dict.fromkeys(row.subset.partition("/")[0] for row in rows)
    columns: dict[str, Share] = {}
    for language in languages:
        own = columns_of([row for row in rows if row.subset.startswith(f"{language}/")])
        columns |= {name if len(languages) == 1 else f"{language} {name}": figure for name, figure in own.items()}
    return columns


def with_part(rows: Iterable[SuiteRow], part: str) -> list[SuiteRow]:
    """Return rows whose score is one of their parts; rows without a score stay as they are."""
    return [replace(row, score=row.parts[part]) if row.score is not None else row for row in rows]


def of_metric(rows: Iterable[SuiteRow], metric: str) -> list[SuiteRow]:
    """Return the rows of one measure."""
    return [row for row in rows if row.metric == metric]


# Rows.


def row_values(parts: Parts) -> dict[str, Any]:
    """Return scores as values of a row. Raises JudgeError: there is none."""
    if not parts:
        raise JudgeError("the reply holds no score")
    return {"score": fmean(parts.values()), "parts": dict(parts)}


def question_of(*parts: str | Audio, system: str = "") -> tuple[Message, ...]:
    """Return the messages of a question: the user's parts, behind a system message where there is one."""
    messages = (Message("user", parts),)
    return (Message("system", (system,)), *messages) if system else messages
