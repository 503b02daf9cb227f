"""What the pipeline asks language models, what it takes from their replies, and what each stage of it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from paras2s.config import CurationConfig
from paras2s.errors import BudgetError, JudgeError
from paras2s.kept import Kept
from paras2s.llm import LLMClient, Reply, Request
from paras2s.reward.judges.prompting import Prompt, read_prompt
from paras2s.reward.judges.replies import read_as, require_whole

PACKAGE = "paras2s.data_gen"
Progress = Callable[[str, int, int], None]
Found = TypeVar("Found", bound=BaseModel)


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
class Spend:
    """What one stage cost in this run. `cached` calls were paid for earlier; `usd` is None as soon as one price is unknown."""

    requests: int = 0
    cached: int = 0
    failed: int = 0
    text_in_tokens: int = 0
    text_out_tokens: int = 0
    usd: float | None = 0.0
    seconds: float = 0.0

    def add(self, replies: Sequence[Reply | JudgeError | BudgetError], took_s: float) -> None:
        """Count replies; those from the cache cost nothing now."""
        self.requests += len(replies)
        self.seconds += took_s
        for reply in replies:
            if not isinstance(reply, Reply):
                self.failed += 1
            elif reply.cached:
                self.cached += 1
            else:
                self.text_in_tokens += reply.tokens.text_in
                self.text_out_tokens += reply.tokens.text_out
                known = self.usd is not None and reply.cost_usd is not None
                self.usd = (self.usd or 0.0) + (reply.cost_usd or 0.0) if known else None


@dataclass
class Asker:
    """The writer and the tester, their prompts, and what every stage cost so far."""

    config: CurationConfig
    writer: LLMClient
    tester: LLMClient
    progress: Progress = lambda stage, done, total: None
    spends: dict[str, Spend] = field(default_factory=dict)

    @classmethod
    def open(cls, config: CurationConfig, progress: Progress) -> Asker:
        """With a cache, so that no reply is paid for twice."""
        kept = Kept(config.cache_dir / "curation.sqlite")
        return cls(config, LLMClient(config.writer, kept, "writer"), LLMClient(config.tester, kept, "tester"), progress)

    def prompt(self, system: str, user: str) -> Prompt:
        """Shipped prompts, or the user's."""
        folder = self.config.prompts
        return Prompt(read_prompt(system, folder, PACKAGE), read_prompt(user, folder, PACKAGE))

    def ask(self, stage: str, client: LLMClient, requests: Sequence[Request]) -> list[Reply | JudgeError]:
        """Replies in order.

        Raises:
            BudgetError: the budget ended before the requests did; what was answered is kept.
        """
        started = time.perf_counter()
        replies = client.complete_all(requests, lambda done, total: self.progress(stage, done, total))
        self.spends.setdefault(stage, Spend()).add(replies, time.perf_counter() - started)
        for reply in replies:
            if isinstance(reply, BudgetError):
                raise reply
        return [reply for reply in replies if not isinstance(reply, BudgetError)]

    def write(self, stage: str, prompt: Prompt, plains: Sequence[Mapping[str, str]]) -> list[str | JudgeError]:
        """Free text by the writer, one for each set of our own words."""
        requests = [Request(prompt.messages({}, plain)) for plain in plains]
        return [_whole(reply) for reply in self.ask(stage, self.writer, requests)]

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
        return [_read(reply, kind) for reply in self.ask(stage, self.tester, requests)]


def _whole(reply: Reply | JudgeError) -> str | JudgeError:
    try:
        return reply if isinstance(reply, JudgeError) else require_whole(reply)
    except JudgeError as error:
        return error


def _read(reply: Reply | JudgeError, kind: type[Found]) -> Found | JudgeError:
    text = _whole(reply)
    try:
        return text if isinstance(text, JudgeError) else read_as(text, kind)
    except JudgeError as error:
        return error
