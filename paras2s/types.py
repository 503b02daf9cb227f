"""Typed records that pass between packages, with the writer and the readers of each.

Alphabet: B queries, G answers a query, T steps, S slots (text, audio codes), K codebooks, V vocabulary, N flat tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np

SCHEMA_VERSION = 1

# The scale of every reward source.
LOWEST, HIGHEST = 1.0, 5.0

# The two streams that an objective tells apart.
TEXT, AUDIO = 0, 1

# The four of ParaS2S, a corpus of real speech, or a user's own.
Category = str
CATEGORIES: tuple[Category, ...] = ("emotion", "sarcasm", "age", "gender")
Role = Literal["demonstration", "preference", "rl", "validation", "test"]
# The label of a pair of answers: the better one, both acceptable, or neither (TRACE, 3.2).
Label = Literal["1", "2", "both_good", "both_bad"]
Dimension = Literal["content", "voice_quality", "paralinguistics"]
# The overall label of a pair, without TRACE's two kinds of tie (AudioJudge).
PairLabel = Literal["1", "2", "tie"]
MatchLabel = Literal["same", "different"]
LABELS: tuple[Label, ...] = get_args(Label)
PAIR_LABELS: tuple[PairLabel, ...] = get_args(PairLabel)
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


@dataclass(frozen=True)
class PastTurn:
    """A turn of a dialogue before the query: its words, and its clip relative to the data folder (None: words alone)."""

    speaker: Literal["user", "assistant"]
    text: str = ""
    clip: str | None = None


@dataclass(frozen=True)
class Query:
    """A spoken query. Made by `data_gen`, read by every later stage.

    `text` and `style` are None for role "rl": the labels are dropped once the speech exists (ParaS2S, appendix C).
    `transcript` is the clip's ASR transcript, the only text that a policy may read. `clip` is relative to the data folder.
    `history` are the turns of the dialogue before it, () for a single query.
    """

    id: str
    contrast_id: str
    category: Category | None
    topic: str | None
    role: Role
    speaker: str
    clip: str
    duration_s: float
    transcript: str
    text: str | None
    style: str | None
    history: tuple[PastTurn, ...] = ()

    @property
    def clips(self) -> tuple[str, ...]:
        """Its own clip, and those of its history."""
        return (self.clip, *(turn.clip for turn in self.history if turn.clip is not None))


@dataclass(frozen=True)
class Demonstration:
    """A good spoken answer to a query. Made by `data_gen`, read by warm-up. `clip` is relative to the data folder."""

    query_id: str
    text: str
    tone: str
    clip: str


@dataclass(frozen=True)
class Candidate:
    """A line of the ledger: a clip that was to be made, and why it was rejected (None: accepted).

    `rejected_by` names the filter. `transcript` and the measures are None if not measured: no clip, or no such filter.
    """

    id: str
    contrast_id: str
    category: Category
    topic: str
    role: Role
    style: str
    speaker: str
    text: str
    transcript: str | None
    word_error_rate: float | None
    style_probability: float | None
    rejected_by: str | None
    rejected: str | None


@dataclass(frozen=True)
class PlannedAnswer:
    """An answer as an LLM wrote it: words and tone (ParaS2S's c_o and s_o)."""

    text: str
    tone: str


@dataclass(frozen=True)
class Script:
    """A sentence and its styles. Written by an LLM or taken from a corpus; read by the text tests, then by the synthesis.

    `styles` call for different answers; the first `spoken_styles` of them become queries, the others only serve for
    comparison. `source` names the list and line, or the turn of a corpus. `tests` holds the reply of each test. `answers` are
    those to `styles`, in order, () before they are written. `clip` is real speech, if there is any.
    """

    id: str
    category: Category
    topic: str
    split: str
    text: str
    styles: tuple[str, str]
    source: str
    spoken_styles: int = 2
    speaker: str = ""
    clip: str | None = None
    tests: dict[str, Any] = field(default_factory=dict)
    answers: tuple[PlannedAnswer, ...] = ()
    rejected_by: str | None = None
    rejected: str | None = None


@dataclass(frozen=True)
class Block:
    """Token slots of G answers that share a step clock. Made by the sampler, read by the learner, never changed.

    tokens [G, T, S] int64, as the model's own ids; sampled [G, T, S] bool, false for forced and padded tokens;
    behaviour_logp [G, T, S] float, 0 where not sampled. Steps after an answer's end hold padding and are not sampled.
    `labels` [G, T, S] marks each token as TEXT or AUDIO where one slot holds both in turn; None: a slot's name decides.
    """

    slots: tuple[str, ...]
    tokens: np.ndarray
    sampled: np.ndarray
    behaviour_logp: np.ndarray
    labels: np.ndarray | None = None

    @property
    def streams(self) -> np.ndarray:
        """TEXT or AUDIO for every token [G, T, S]."""
        if self.labels is not None:
            return self.labels
        by_slot = np.array([TEXT if slot == "text" else AUDIO for slot in self.slots])
        return np.broadcast_to(by_slot, self.tokens.shape)

    def part(self, answers: slice | Sequence[int] = slice(None), steps: slice = slice(None)) -> Block:
        """Return these answers, and these steps of them."""
        rows = answers if isinstance(answers, slice) else list(answers)
        labels = None if self.labels is None else self.labels[rows, steps]
        return Block(self.slots, self.tokens[rows, steps], self.sampled[rows, steps], self.behaviour_logp[rows, steps], labels)


@dataclass(frozen=True)
class Rollout:
    """G answers to one query. Made by a rollout worker; read by reward workers (wave, text) and the learner (blocks).

    `codes[g]` [T_g, K] are codes without offsets of the codec that `code_format` names; `waves[g]` is float32 at
    `sample_rate_hz` and may be empty; `waves` is () on the way to the learner, which reads none; `finish_reason[g]` is "eos"
    or "length".
    """

    query_id: str
    policy_version: int
    blocks: tuple[Block, ...]
    finish_reason: tuple[str, ...]
    seeds: tuple[int, ...]
    texts: tuple[str, ...]
    codes: tuple[np.ndarray, ...]
    waves: tuple[np.ndarray, ...]
    sample_rate_hz: int
    code_format: str

    @property
    def size(self) -> int:
        """The number of answers G."""
        return len(self.seeds)


@dataclass(frozen=True)
class Measured:
    """A blueprint field that was measured. `confidence` is None if the extractor gives none."""

    value: Any
    unit: str | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class Absent:
    """A blueprint field that could not be measured, with the reason. Never a 0."""

    reason: str


@dataclass(frozen=True)
class Blueprint:
    """The measurements of one clip (TRACE, Fig. 7). Made by the extractors, read by judges and people.

    `fields` maps a schema key to Measured or Absent; `extractors` maps an extractor's name to its version.
    """

    fields: dict[str, Measured | Absent]
    extractors: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def value(self, key: str) -> Any | None:
        """Return the measured value, or None if the field is absent or unknown."""
        field = self.fields.get(key)
        return field.value if isinstance(field, Measured) else None

    def why_absent(self, key: str) -> str:
        """Return why a field has no value."""
        field = self.fields.get(key)
        return field.reason if isinstance(field, Absent) else f"'{key}' is not among the configured extractors"


@dataclass(frozen=True)
class Verdict:
    """A judge's score of one answer, 1 to 5 (realism of a role-play: 0 or 1). Made by a judge; read by rewards and bench.

    `reply` is the judge's full reply (for a rubric: the rules that fired). `cost_usd` is 0 for a local judge, and None
    where the model's price is not known; a reply from the cache has its first cost. `cost_estimated`: the endpoint did not
    count audio, so that its length does. A judge that is sampled several times has `votes`, whose mean is the score, their
    standard deviation as `spread`, and the reasons of those that `failed`. `parts` are scores of the same scale that it is made
    of, by name, where a judge gives them. So are `transcript` (the answer's words), `family` (its kind of answer) and `tone`.
    """

    judge: str
    version: str
    prompt_hash: str
    score: float
    reason: str
    reply: str
    cost_usd: float | None
    latency_s: float
    votes: tuple[float, ...] = ()
    spread: float | None = None
    failed: tuple[str, ...] = ()
    cost_estimated: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
    transcript: str | None = None
    family: str | None = None
    tone: str | None = None


@dataclass(frozen=True)
class PairVerdict:
    """A judge's labels of two answers by dimension; the overall label is fused from them. Made by a judge; read by bench.

    `local_s` is this pair's part of the time its clips were measured in, 0 where the measurements were cached.
    `consistent` says whether both orders gave the same labels, None with one order; `labels` are those of both orders
    together. `reply` is the full reply (of both orders: one after the other).
    """

    judge: str
    version: str
    prompt_hash: str
    labels: dict[Dimension, Label]
    reason: str
    reply: str
    consistent: bool | None
    text_in_tokens: int
    audio_in_tokens: int
    text_out_tokens: int
    cost_usd: float | None
    latency_s: float
    local_s: float
    cost_estimated: bool = False


@dataclass(frozen=True)
class Preference:
    """A judge's overall label of two clips: which is better, or whether they match. Made by a judge; read by bench.

    `label` is of the pair as it was given: "1", "2" or "tie"; or "same" or "different". `points` are the first clip's: 1 won,
    0.5 tied, 0 lost (1 the same, 0 different), the mean of the orders' means. `order_labels` is the label in each order,
    as replied: "1" is the clip that came first, which in the second order is the pair's second one. `votes` are points
    too; `spread` is their standard deviation, None of one vote; `failed` says why some are missing. `consistent`: whether
    both orders mean the same; None with one order.
    """

    judge: str
    version: str
    prompt_hash: str
    task: str
    label: PairLabel | MatchLabel
    points: float
    order_labels: tuple[PairLabel | MatchLabel, ...]
    votes: tuple[float, ...]
    spread: float | None
    consistent: bool | None
    reason: str
    reply: str
    text_in_tokens: int = 0
    audio_in_tokens: int = 0
    text_out_tokens: int = 0
    cost_usd: float | None = 0.0
    latency_s: float = 0.0
    failed: tuple[str, ...] = ()
    cost_estimated: bool = False


@dataclass(frozen=True)
class Unscored:
    """A missing score, with the reason. It is carried all the way to the advantage: never a 0, never dropped silently.

    `reply` is the judge's reply that held no verdict, "" without a reply; `transcript` is the answer's words, where known.
    """

    judge: str
    reason: str
    reply: str = ""
    transcript: str | None = None


@dataclass(frozen=True)
class Reward:
    """The reward of an answer and its components, so that a stored run can be re-scored with other weights."""

    value: float
    parts: dict[str, float]


def to_json(record: Any) -> Any:
    """Convert a record to plain JSON types; arrays become lists, Unscored and Absent keep their reason."""
    if hasattr(record, "__dataclass_fields__"):
        return {"type": type(record).__name__, **{key: to_json(value) for key, value in vars(record).items()}}
    if isinstance(record, np.ndarray):
        return record.tolist()
    if isinstance(record, np.generic):
        return record.item()
    if isinstance(record, dict):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_json(value) for value in record]
    return record


def as_row(record: Any) -> dict[str, Any]:
    """Convert a record (Query, Demonstration, Candidate) to a row of a table; a query's history has a file of its own."""
    return {key: value for key, value in asdict(record).items() if key != "history"}
