"""What the pipeline asks language models, what it takes from their replies, and what each stage of it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from paras2s.clients.chat import LLMClient, Reply, Request
from paras2s.configs.schema.run import CurationConfig
from paras2s.data_gen.curation.cost import Spend
from paras2s.data_gen.curation.list_parsing import NumberedList, read_numbered
from paras2s.errors import BudgetError, JudgeError
from paras2s.reward.judges.parsing import read_as, require_complete
from paras2s.reward.judges.prompts import Prompt, read_prompt
from paras2s.utils.cache import Kept

PACKAGE = "paras2s.data_gen.curation"
Progress = Callable[[str, int, int], None]
Found = TypeVar("Found", bound=BaseModel)
Answer = TypeVar("Answer")
# Failures of fewer calls than these say little.
FEW = 10


class Checked(BaseModel):
    """Base of replies: no key beyond those asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Neutrality(Checked):
    """Whether the words alone lean to one of two styles (ParaS2S, B.1)."""

    reasoning: str
    likelier: Literal["first", "second", "neutral"]


class Reasonability(Checked):
    """Whether each style is plausible for these words."""

    reasoning: str
    first: bool
    second: bool


class Relevance(Checked):
    """Whether good answers to the two styles differ in what matters."""

    reasoning: str
    differ: bool


class WrittenAnswer(Checked):
    """A good answer: its words, and its tone in words."""

    answer: str = Field(min_length=1, max_length=600)
    tone: str = Field(min_length=1, max_length=300)


@dataclass
class CurationLLM:
    """The writer and the tester, their prompts, and what every stage cost so far."""

    config: CurationConfig
    writer: LLMClient
    tester: LLMClient
    progress: Progress = lambda stage, done, total: None
    spends: dict[str, Spend] = field(default_factory=dict)

    @classmethod
    def open(cls, config: CurationConfig, progress: Progress) -> CurationLLM:
        """With a cache, so that no reply is paid for twice."""
        kept = Kept(config.cache_dir / "curation.sqlite")
        return cls(config, LLMClient(config.writer, kept, "writer"), LLMClient(config.tester, kept, "tester"), progress)

    def prompt(self, system: str, user: str) -> Prompt:
        """Shipped prompts, or the user's."""
        folder = self.config.prompts
        return Prompt(read_prompt(system, folder, PACKAGE), read_prompt(user, folder, PACKAGE))

    def ask(
        self, stage: str, client: LLMClient, requests: Sequence[Request], read: Callable[[Reply], Answer]
    ) -> list[Answer | JudgeError]:
        """What `read` makes of each reply, in order. A reply that it refuses is not kept, so that a later run asks again.

        Raises:
            BudgetError: the budget ended before the requests did. JudgeError: more calls failed than may. What was answered
            is kept either way.
        """
        started = time.perf_counter()

        def usable(reply: Reply) -> bool:
            return not isinstance(_read(reply, read), JudgeError)

        replies = client.complete_all(requests, lambda done, total: self.progress(stage, done, total), usable)
        found = [one if isinstance(one, BudgetError) else _read(one, read) for one in replies]
        self._count(stage, replies, found, time.perf_counter() - started)
        for one in found:
            if isinstance(one, BudgetError):
                raise one
        read_all = [one for one in found if not isinstance(one, BudgetError)]
        failed = [one for one in read_all if isinstance(one, JudgeError)]
        stop_if_too_many(stage, self.spends[stage], failed[-1:], self.config.max_failed_share)
        return read_all

    def _count(
        self, stage: str, replies: Sequence[Reply | JudgeError | BudgetError], found: Sequence[Any], took_s: float
    ) -> None:
        spend = self.spends.setdefault(stage, Spend())
        spend.requests += len(replies)
        spend.seconds += took_s
        spend.failed += sum(isinstance(one, JudgeError | BudgetError) for one in found)
        for reply in replies:
            if isinstance(reply, Reply) and reply.cached:
                spend.cached += 1
            elif isinstance(reply, Reply):
                spend.text_in_tokens += reply.tokens.text_in
                spend.text_out_tokens += reply.tokens.text_out
                spend.pay(reply.cost_usd)

    def write(
        self, stage: str, asked: Sequence[tuple[Prompt, Mapping[str, str]]], count: int
    ) -> list[NumberedList | JudgeError]:
        """Numbered lists of `count` items by the writer, one for each prompt with our own words."""
        requests = [Request(prompt.messages({}, plain)) for prompt, plain in asked]
        return self.ask(stage, self.writer, requests, lambda reply: _list(reply, count))

    def check(
        self,
        stage: str,
        prompt: Prompt,
        kind: type[Found],
        values: Sequence[Mapping[str, Any]],
        plain: Mapping[str, str] | None = None,
    ) -> list[Found | JudgeError]:
        """One record by the tester for each set of data."""
        schema = kind.model_json_schema()
        requests = [Request(prompt.messages(one, plain or {}), schema) for one in values]
        return self.ask(stage, self.tester, requests, lambda reply: read_as(require_complete(reply), kind))


def stop_if_too_many(stage: str, spend: Spend, reasons: Sequence[object], most: float) -> None:
    """Stop a stage that mostly fails: going on would pay for what cannot be used.

    Raises:
        JudgeError: of the ten and more calls of this run, a larger share than `most` failed.
    """
    if reasons and spend.requests >= FEW and spend.failed > most * spend.requests:
        raise JudgeError(
            f"{stage}: {spend.failed} of {spend.requests} failed, more than max_failed_share allows (the last: {reasons[-1]}); "
            "mend it and run again: what was paid for is kept"
        )


def _list(reply: Reply, count: int) -> NumberedList:
    found = read_numbered(require_complete(reply), count)
    if not found.items:
        raise JudgeError("the reply holds no numbered list")
    return found


def _read(reply: Reply | JudgeError, read: Callable[[Reply], Answer]) -> Answer | JudgeError:
    try:
        return reply if isinstance(reply, JudgeError) else read(reply)
    except JudgeError as error:
        return error
