"""The protocol of a reward server, and a client that checks everything that comes back.

A request holds groups: a question and answers to it, each with an id. A reply holds the range of its scores, and for each id a
score within it or the reason why there is none. `docs/reward-protocol.schema.json` publishes both.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paras2s.audio.clip import Clip, encode_exactly
from paras2s.clients.endpoint import Budget, EndpointClient, Session, run_calls
from paras2s.configs.schema.endpoints import HttpRewardConfig
from paras2s.errors import BudgetError, JudgeError, first_problem, one_line, printable
from paras2s.types import HIGHEST, LOWEST, Unscored

PROTOCOL: Final = 1
# The server's own budget is spent.
SPENT_STATUS = 402
# No answer costs as much to judge: a bill beyond it counts as not reported.
MOST_USD = 1000.0


class Wire(BaseModel):
    """Base of the protocol's records: an unknown key, a wrong type and a number that is not finite are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Sound(Wire):
    """A clip: the path of a file that the server may read, or a WAV file in base64."""

    path: str | None = Field(None, min_length=1, description="path of a file on a disk that the server shares")
    wav: str | None = Field(None, min_length=1, description="a WAV file in base64, 16-bit or float")

    @model_validator(mode="after")
    def _has_one(self) -> Sound:
        if (self.path is None) == (self.wav is None):
            raise ValueError("give path or wav, and not both")
        return self


class SentQuestion(Wire):
    """A question: its words, the style that it is said in, and its sound, as far as they are known."""

    text: str | None = None
    style: str | None = Field(None, description="its speaking style: happy, sad, sarcastic ...")
    audio: Sound | None = None


class SentTurn(Wire):
    """A turn before the question: who speaks, its words, and its sound."""

    speaker: Literal["user", "assistant"]
    text: str | None = None
    audio: Sound | None = None

    @model_validator(mode="after")
    def _says_something(self) -> SentTurn:
        if not self.text and self.audio is None:
            raise ValueError("give text, audio, or both")
        return self


class SentAnswer(Wire):
    """An answer: an id that no other answer of the request has, its words, and its sound."""

    id: str = Field(min_length=1)
    text: str | None = Field(None, description="its words in writing; where audio is given, a judge hears them there")
    audio: Sound | None = None


class SentGroup(Wire):
    """A question, and the answers to it that are compared with each other."""

    id: str = Field("", description="name of the question, for logs")
    question: SentQuestion
    answers: list[SentAnswer] = Field(min_length=1)
    history: list[SentTurn] | None = Field(
        None, min_length=1, description="turns of the dialogue before the question, in order"
    )


class ScoreRequest(Wire):
    """The body of `POST /score`."""

    protocol: Literal[1] = PROTOCOL
    groups: list[SentGroup] = Field(min_length=1)

    @model_validator(mode="after")
    def _ids_differ(self) -> ScoreRequest:
        ids = [answer.id for group in self.groups for answer in group.answers]
        if len(set(ids)) < len(ids):
            raise ValueError(f"two answers have the id {max(ids, key=ids.count)!r}")
        return self


class AnswerScore(Wire):
    """The score of one answer, or why there is none: never both, never neither."""

    id: str
    score: float | None = None
    unscored: str | None = Field(None, min_length=1, description="the reason why there is no score")
    reason: str = Field("", description="the judge's reason for the score")
    cost_usd: float | None = Field(None, ge=0, description="cost of this score now; null: not known")

    @model_validator(mode="after")
    def _has_one(self) -> AnswerScore:
        if (self.score is None) == (self.unscored is None):
            raise ValueError("give score or unscored, and not both")
        return self


class ReplyHead(Wire):
    """The name of the judge and the range of its scores, which must not change between replies."""

    protocol: Literal[1] = PROTOCOL
    judge: str = Field(description="name and version of the judge")
    low: float
    high: float

    @model_validator(mode="after")
    def _has_a_range(self) -> ReplyHead:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, and they are {self.low:g} and {self.high:g}")
        return self


class ScoreReply(ReplyHead):
    """The reply to `POST /score`, with an entry for every answer, in any order."""

    scores: list[AnswerScore]


class ReplyError(ValueError):
    """A reply that is not of the protocol, so that none of its scores is taken."""


def protocol_schema() -> dict[str, Any]:
    """Return the JSON schema of requests and replies."""
    return {"request": ScoreRequest.model_json_schema(), "reply": ScoreReply.model_json_schema()}


def on_our_scale(score: float, low: float, high: float) -> float:
    """Return a score of a range as a score from 1 to 5; one of that range stays as it is."""
    if (low, high) == (LOWEST, HIGHEST):
        return score
    return LOWEST + (HIGHEST - LOWEST) * (score - low) / (high - low)


def sound_of(clip: Clip | None) -> Sound | None:
    """Return a clip as it is sent, to the bit; None if there is no sound."""
    if clip is None or not len(clip.samples):
        return None
    return Sound(wav=base64.b64encode(encode_exactly(clip)).decode())


class RewardClient:
    """A client of one reward server; `score` returns scores from 1 to 5, whatever the server's own range is."""

    def __init__(self, config: HttpRewardConfig) -> None:
        """Read the token.

        Raises:
            ConfigError: a package or the token is missing.
        """
        self.config = config
        # Its price is of an answer, and no table has it.
        self.endpoint = EndpointClient(config.model_copy(update={"budget_usd": None}), "reward.sources: http")
        self.endpoint.budget = Budget(config.budget_usd)
        self._head: ReplyHead | None = None

    @property
    def spent_usd(self) -> float:
        """The cost of the replies, as they say it."""
        return self.endpoint.budget.spent_usd

    def score(self, groups: Sequence[SentGroup]) -> dict[str, float | Unscored]:
        """Return the score of every answer by its id, from 1 to 5; an answer that it does not score rightly is Unscored.

        Raises:
            BudgetError: the budget or the server's is spent, or too many calls in a row failed alike.
        """
        batches = list(self._batches(groups))
        scores: dict[str, float | Unscored] = {}
        stopped: list[BudgetError] = []

        async def work(session: Session, index: int) -> None:
            answers = [answer.id for group in batches[index].groups for answer in group.answers]
            most_usd = None if self.config.usd_per_answer is None else self.config.usd_per_answer * len(answers)
            try:
                called = await self.endpoint.call(
                    lambda: self._post(session, batches[index], answers), most_usd, lambda read: read[1]
                )
                scores.update(called.value[0])
            except BudgetError as error:
                stopped.append(error)
            except JudgeError as error:
                scores.update({id_: Unscored("http", one_line(error)) for id_ in answers})

        run_calls(self.endpoint.run_all(range(len(batches)), work))
        if stopped:
            raise stopped[0]
        return scores

    def _batches(self, groups: Sequence[SentGroup]) -> Iterator[ScoreRequest]:
        """Divide groups over requests of up to `batch_size` answers; a larger group is a request of its own."""
        batch: list[SentGroup] = []
        for group in groups:
            if batch and sum(len(packed.answers) for packed in (*batch, group)) > self.config.batch_size:
                yield ScoreRequest(groups=batch)
                batch = []
            batch.append(group)
        if batch:
            yield ScoreRequest(groups=batch)

    async def _post(
        self, session: Session, request: ScoreRequest, answers: Sequence[str]
    ) -> tuple[dict[str, float | Unscored], float | None]:
        """Send one request; return the scores and what they cost."""
        import openai

        body = request.model_dump(mode="json", exclude_none=True)

        async def post() -> tuple[dict[str, float | Unscored], float | None]:
            try:
                data: bytes = await session.client.post("/score", cast_to=bytes, body=body)
            except openai.APIStatusError as error:
                if error.status_code == SPENT_STATUS:
                    raise BudgetError(session.without_key(f"{self.config.base_url}: {one_line(error)}")) from error
                raise
            return self._read(json.loads(data), answers)

        return await session.attempt(post)

    def _read(self, reply: Any, answers: Sequence[str]) -> tuple[dict[str, float | Unscored], float | None]:
        """Return the scores of a reply by id, and its cost; None: it does not say.

        Raises:
            ReplyError: it is not of the protocol, names an answer that was not sent, or has another judge or range than before.
        """
        if not isinstance(reply, dict) or not isinstance(reply.get("scores"), list):
            raise ReplyError("the reply is no JSON object with a list of scores")
        try:
            head = ReplyHead.model_validate({key: value for key, value in reply.items() if key != "scores"})
        except ValidationError as error:
            raise ReplyError(f"the reply's {first_problem(error, 'head')}") from error
        self._head = self._head or head
        if head != self._head:
            raise ReplyError(f"the reply is of {_who(head)}, and an earlier one of {_who(self._head)}: they do not compare")
        by_id: dict[str, list[Any]] = {id_: [] for id_ in answers}
        for item in reply["scores"]:
            id_ = item.get("id") if isinstance(item, dict) else None
            if not isinstance(id_, str) or id_ not in by_id:
                raise ReplyError(f"the reply scores {str(id_)[:80]!r}, which was not sent")
            by_id[id_].append(item)
        costs = [item.get("cost_usd") for items in by_id.values() for item in items]
        known = [float(cost) for cost in costs if isinstance(cost, int | float) and 0 <= cost <= MOST_USD]
        cost_usd = sum(known) if known and len(known) == len(answers) else None
        return {id_: self._score(items, head) for id_, items in by_id.items()}, cost_usd

    def _score(self, items: Sequence[Any], head: ReplyHead) -> float | Unscored:
        """Return one answer's score from 1 to 5, or why the server's word is none."""
        if len(items) != 1:
            return Unscored("http", f"the server returned {len(items)} scores for it")
        try:
            entry = AnswerScore.model_validate(items[0])
        except ValidationError as error:
            return Unscored("http", f"the server's {first_problem(error, 'entry')} ({str(items[0])[:80]})")
        if entry.score is None:
            return Unscored("http", f"the server: {printable(entry.unscored or '')}")
        if not head.low <= entry.score <= head.high:
            return Unscored("http", f"the score is {entry.score:g}, and the server's range is {head.low:g} to {head.high:g}")
        return on_our_scale(entry.score, head.low, head.high)


def _who(head: ReplyHead) -> str:
    return f"{head.judge}, {head.low:g} to {head.high:g}"
