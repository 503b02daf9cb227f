"""The pipeline's calls of language models: requests, parsed replies, and the cost of each stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from paras2s.clients.chat import LLMClient, Reply, Request
from paras2s.configs.schema.curation import CurationConfig
from paras2s.data_gen.curation.cost import Spend
from paras2s.data_gen.curation.list_parsing import NumberedList, read_numbered
from paras2s.errors import BudgetError, JudgeError
from paras2s.reward.judges.parsing import BOUNDED_TEXT, read_as, require_complete
from paras2s.reward.judges.prompts import Prompt, read_prompt
from paras2s.utils.cache import JsonCache

PACKAGE = "paras2s.data_gen.curation"
Progress = Callable[[str, int, int], None]
Record = TypeVar("Record", bound=BaseModel)
Result = TypeVar("Result")
# With fewer calls than this a share of failures says little.
MIN_CALLS = 10


# A bound in the schema alone: a server without schemas may write more.
Reasoning = Annotated[str, Field(json_schema_extra={"maxLength": BOUNDED_TEXT["maxLength"]})]


class StructuredReply(BaseModel):
    """Base of structured replies; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Neutrality(StructuredReply):
    """The neutrality test: whether the words alone lean to one of two styles (ParaS2S, B.1)."""

    reasoning: Reasoning
    likelier: Literal["first", "second", "neutral"]


class Reasonability(StructuredReply):
    """The reasonability test: whether each style is plausible for the words."""

    reasoning: Reasoning
    first: bool
    second: bool


class Relevance(StructuredReply):
    """The relevance test: whether good answers to the two styles differ in what matters."""

    reasoning: Reasoning
    differ: bool


class WrittenAnswer(StructuredReply):
    """A good answer: its words, and a description of its tone."""

    answer: str = Field(min_length=1, max_length=600)
    tone: str = Field(min_length=1, max_length=300)


@dataclass
class CurationLLM:
    """The writer and the tester models, their prompts, and the cost of every stage so far."""

    config: CurationConfig
    writer: LLMClient
    tester: LLMClient
    progress: Progress = lambda stage, done, total: None
    spends: dict[str, Spend] = field(default_factory=dict)

    @classmethod
    def open(cls, config: CurationConfig, progress: Progress) -> CurationLLM:
        """Open both models with one cache, so that no reply is paid for twice."""
        cache = JsonCache(config.cache_dir / "curation.sqlite")
        return cls(config, LLMClient(config.writer, cache, "writer"), LLMClient(config.tester, cache, "tester"), progress)

    def prompt(self, system: str, user: str) -> Prompt:
        """Load a prompt: shipped, or the user's."""
        folder = self.config.prompts
        return Prompt(read_prompt(system, folder, PACKAGE), read_prompt(user, folder, PACKAGE))

    def request_all(
        self, stage: str, client: LLMClient, requests: Sequence[Request], parse: Callable[[Reply], Result]
    ) -> list[Result | JudgeError]:
        """Return parsed replies in order. A reply that `parse` refuses is not cached, so that a later run requests it again.

        Raises:
            BudgetError: the budget ended before the requests did. JudgeError: too many calls failed. Usable replies stay
            cached either way.
        """
        started = time.perf_counter()

        def usable(reply: Reply) -> bool:
            return not isinstance(_parse(reply, parse), JudgeError)

        replies = client.complete_all(requests, lambda done, total: self.progress(stage, done, total), usable)
        parsed = [reply if isinstance(reply, BudgetError) else _parse(reply, parse) for reply in replies]
        self._count(stage, replies, parsed, time.perf_counter() - started)
        for result in parsed:
            if isinstance(result, BudgetError):
                raise result
        results = [result for result in parsed if not isinstance(result, BudgetError)]
        failed = [result for result in results if isinstance(result, JudgeError)]
        stop_if_too_many_failed(stage, self.spends[stage], failed[-1:], self.config.max_failed_share)
        return results

    def _count(
        self, stage: str, replies: Sequence[Reply | JudgeError | BudgetError], parsed: Sequence[Any], took_s: float
    ) -> None:
        spend = self.spends.setdefault(stage, Spend())
        spend.requests += len(replies)
        spend.seconds += took_s
        spend.failed += sum(isinstance(result, JudgeError | BudgetError) for result in parsed)
        for reply in replies:
            if isinstance(reply, Reply) and reply.cached:
                spend.cached += 1
            elif isinstance(reply, Reply):
                spend.text_in_tokens += reply.tokens.text_in
                spend.text_out_tokens += reply.tokens.text_out
                spend.pay(reply.cost_usd)

    def write_lists(
        self, stage: str, prompts: Sequence[tuple[Prompt, Mapping[str, str]]], count: int
    ) -> list[NumberedList | JudgeError]:
        """Let the writer write numbered lists of `count` items, one for each prompt with its values."""
        requests = [Request(prompt.messages({}, values)) for prompt, values in prompts]
        return self.request_all(stage, self.writer, requests, lambda reply: _parse_list(reply, count))

    def check(
        self,
        stage: str,
        prompt: Prompt,
        kind: type[Record],
        values: Sequence[Mapping[str, Any]],
        plain: Mapping[str, str] | None = None,
    ) -> list[Record | JudgeError]:
        """Let the tester fill in one record for each set of values."""
        schema = kind.model_json_schema()
        requests = [Request(prompt.messages(value, plain or {}), schema) for value in values]
        return self.request_all(stage, self.tester, requests, lambda reply: read_as(require_complete(reply), kind))


def stop_if_too_many_failed(stage: str, spend: Spend, reasons: Sequence[object], max_share: float) -> None:
    """Stop a stage that mostly fails. Raises JudgeError: over `max_share` of at least `MIN_CALLS` calls of this run failed."""
    if reasons and spend.requests >= MIN_CALLS and spend.failed > max_share * spend.requests:
        raise JudgeError(
            f"{stage}: {spend.failed} of {spend.requests} failed, more than max_failed_share allows (the last: {reasons[-1]}); "
            "fix it and run again: paid replies are cached"
        )


def _parse_list(reply: Reply, count: int) -> NumberedList:
    numbered = read_numbered(require_complete(reply), count)
    if not numbered.items:
        raise JudgeError("the reply holds no numbered list")
    return numbered


def _parse(reply: Reply | JudgeError, parse: Callable[[Reply], Result]) -> Result | JudgeError:
    try:
        return reply if isinstance(reply, JudgeError) else parse(reply)
    except JudgeError as error:
        return error
