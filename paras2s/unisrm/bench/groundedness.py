"""Evidence groundedness (UniSRM, appendix F): an LLM says from 0 to 2 how far a reply's reasoning rests on evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from paras2s.clients.chat import LLMClient, Reply, Request
from paras2s.errors import BudgetError, JudgeError
from paras2s.reward.judges.parsing import BOUNDED_TEXT, is_readable, read_as, require_complete
from paras2s.reward.judges.prompts import Prompt, read_prompt
from paras2s.unisrm.bench.metrics import Figure, mean_share
from paras2s.unisrm.bench.results import BenchRow
from paras2s.unisrm.reward.tasks import TASKS

USER = "The task: {{task}}\n\nThe dimensions that are judged: {{dimensions}}\n\nThe reply:\n{{reply}}"
SCHEMA = {
    "type": "object",
    "properties": {"reasoning": BOUNDED_TEXT, "score": {"type": "integer", "enum": [0, 1, 2]}},
    "required": ["reasoning", "score"],
    "additionalProperties": False,
}


class Grounded(BaseModel):
    """The reply of the LLM."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    reasoning: str
    score: Literal[0, 1, 2]


def groundedness(rows: Sequence[BenchRow], texts: Mapping[str, str], client: LLMClient) -> Figure:
    """Return the mean of 0 to 2 over readable replies; `texts` maps an item to its text, a cluster. Raises BudgetError."""
    prompt = Prompt(read_prompt("groundedness", None, "paras2s.unisrm.bench"), USER)
    requests = [Request(prompt.messages(_values(row), {}), SCHEMA) for row in rows]
    replies = client.complete_all(requests, usable=lambda reply: is_readable(reply, _read))
    return mean_share([_score(reply) for reply in replies], [texts[row.item] for row in rows])


def _values(row: BenchRow) -> dict[str, str]:
    task = TASKS[row.task]
    titles = ", ".join(dimension.title for dimension in task.dimensions)
    return {"task": task.title, "dimensions": titles, "reply": row.reply}


def _read(text: str) -> int:
    return read_as(text, Grounded).score


def _score(reply: Reply | JudgeError | BudgetError) -> float | None:
    if isinstance(reply, BudgetError):
        raise reply
    if isinstance(reply, JudgeError):
        return None
    try:
        return float(_read(require_complete(reply)))
    except JudgeError:
        return None
