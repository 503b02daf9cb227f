"""The typed records on every wire: who makes each, who reads it, and what None means.

Alphabet: B queries, G answers a query, T steps, S slots (text, audio codes), K codebooks, V vocabulary, N flat tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np

SCHEMA_VERSION = 1

# The two streams that an objective tells apart.
TEXT, AUDIO = 0, 1

# The four of ParaS2S, a corpus of real speech, or one of a user's own.
Category = str
CATEGORIES: tuple[Category, ...] = ("emotion", "sarcasm", "age", "gender")
Role = Literal["demonstration", "preference", "rl", "validation", "test"]
# Of a pair of answers: which one is better, or that both are acceptable, or neither (TRACE, 3.2).
Label = Literal["1", "2", "both_good", "both_bad"]
Dimension = Literal["content", "voice_quality", "paralinguistics"]
# Of a pair as a whole, without TRACE's two kinds of tie (AudioJudge).
PairLabel = Literal["1", "2", "tie"]
MatchLabel = Literal["same", "different"]
LABELS: tuple[Label, ...] = get_args(Label)
PAIR_LABELS: tuple[PairLabel, ...] = get_args(PairLabel)
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


@dataclass(frozen=True)
class Query:
    """One spoken question. Made by `data_gen`, read by every later stage.

    `text` and `style` are None for role "rl": the labels are thrown away once the speech exists (ParaS2S, appendix C).
    `transcript` is what ASR heard in the clip, and all that a policy may read. `clip` is relative to the data folder.
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


@dataclass(frozen=True)
class Demonstration:
    """A good spoken answer to a query. Made by `data_gen`, read by warm-up. `clip` is relative to the data folder."""

    query_id: str
    text: str
    tone: str
    clip: str


@dataclass(frozen=True)
class Candidate:
    """One line of the ledger: a clip that was asked for, and why it was rejected (None: it was kept).

    `rejected_by` names the filter. `transcript` and the figures are None where not measured: no clip, or no such filter.
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
    """A good answer as an LLM wrote it: words, and how they are spoken (ParaS2S's c_o and s_o)."""

    text: str
    tone: str


@dataclass(frozen=True)
class Script:
    """A sentence and the ways to say it. Written by an LLM or found in a corpus; read by the tests, then by speech.

    `styles` call for different answers; the first `spoken_styles` of them become queries, and what follows is only what they
    are compared with. `source` says which list and line it comes from, or which turn of a corpus. `tests` keeps what each test
    answered. `answers` are those to `styles`, in order, () before they are written. `clip` is real speech, if there is any.
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
    """Token slots of G answers that share a step clock. Made by the sampler, read by the learner, changed by nobody.

    tokens [G, T, S] int64, as the model's own ids; sampled [G, T, S] bool, false for forced and padded tokens;
    behaviour_logp [G, T, S] float, 0 where not sampled. Steps after an answer's end hold padding and are not sampled.
    `labels` [G, T, S] says TEXT or AUDIO of each token where one slot holds both in turn; None: a slot's name says it.
    """

    slots: tuple[str, ...]
    tokens: np.ndarray
    sampled: np.ndarray
    behaviour_logp: np.ndarray
    labels: np.ndarray | None = None

    @property
    def streams(self) -> np.ndarray:
        """TEXT or AUDIO of every token [G, T, S]."""
        if self.labels is not None:
            return self.labels
        by_slot = np.array([TEXT if slot == "text" else AUDIO for slot in self.slots])
        return np.broadcast_to(by_slot, self.tokens.shape)


@dataclass(frozen=True)
class Rollout:
    """G answers to one query. Made by a rollout worker; read by reward workers (wave, text) and the learner (blocks).

    `codes[g]` [T_g, K] are codes without offsets of the codec that `code_format` names; `waves[g]` is float32 at
    `sample_rate_hz` and may be empty; `finish_reason[g]` is "eos" or "length".
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
        """G."""
        return len(self.seeds)


@dataclass(frozen=True)
class Measured:
    """A blueprint field that was measured. `confidence` is None where the model behind it gives none."""

    value: Any
    unit: str | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class Absent:
    """A blueprint field that could not be measured, and why. Never a 0."""

    reason: str


@dataclass(frozen=True)
class Blueprint:
    """What was measured on one clip (TRACE, Fig. 7). Made by the extractors, read by judges and people.

    `fields` maps a schema key to Measured or Absent; `extractors` maps an extractor's name to its version.
    """

    fields: dict[str, Measured | Absent]
    extractors: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def value(self, key: str) -> Any | None:
        """The measured value, or None if the field is absent or unknown."""
        found = self.fields.get(key)
        return found.value if isinstance(found, Measured) else None

    def why_absent(self, key: str) -> str:
        """Why a field has no value."""
        found = self.fields.get(key)
        return found.reason if isinstance(found, Absent) else f"'{key}' is not among the configured extractors"


@dataclass(frozen=True)
class Verdict:
    """A judge's score of one answer, 1 to 5 (realism of a role-play: 0 or 1). Made by a judge; read by combination and bench.

    `reply` is the judge's full reply (for a rubric: the rules that fired). `cost_usd` is 0 for a local judge, and None
    where the model's price is not known; a reply from the cache keeps what it once cost. A judge that is asked several
    times keeps its `votes`, whose mean is the score, their standard deviation as `spread`, and why others `failed`.
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


@dataclass(frozen=True)
class PairVerdict:
    """A judge's labels of two answers, a dimension each, and no overall: that is fused. Made by a judge; read by bench.

    `local_s` is this pair's part of the time its clips were measured in, near 0 where that was kept from an earlier run.
    `consistent` says whether both orders gave the same labels, and is None where one order was asked; `labels` are then
    those of both orders together. `reply` is the full reply (of both orders: one after the other).
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


@dataclass(frozen=True)
class Preference:
    """What a judge makes of two clips as a whole: which is better, or whether they match. Read by ranking, probes, suites.

    `label` is of the pair as it was given: "1", "2" or "tie"; or "same" or "different". `points` are the first clip's: 1 won,
    0.5 tied, 0 lost (1 the same, 0 different), the mean of the orders' means. `said` is the label in each order asked, as it
    was said: "1" is the clip heard first, which in the second order is the pair's second one. `votes` are points too; `spread`
    is their standard deviation, None of one vote; `failed` says why some are missing. `consistent`: whether both orders mean
    the same; None where one was asked.
    """

    judge: str
    version: str
    prompt_hash: str
    task: str
    label: PairLabel | MatchLabel
    points: float
    said: tuple[PairLabel | MatchLabel, ...]
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


@dataclass(frozen=True)
class Unscored:
    """No score, and why. Goes all the way to the advantage: never a 0, never dropped in silence.

    `reply` is what the judge said instead of a verdict, "" where it said nothing.
    """

    judge: str
    reason: str
    reply: str = ""


@dataclass(frozen=True)
class Reward:
    """One answer's reward and the parts it was combined from, so that a stored run can be re-scored with other weights."""

    value: float
    parts: dict[str, float]


def to_json(record: Any) -> Any:
    """A record as plain JSON types; arrays become lists, Unscored and Absent keep their reason."""
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
    """A flat record (Query, Demonstration, Candidate) as one row of a table."""
    return asdict(record)
