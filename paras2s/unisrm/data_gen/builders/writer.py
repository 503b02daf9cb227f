"""An LLM writes for T3 and T4: a scene for a sentence, and sentences and turns that do not fit (UniSRM, Figure 7)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from paras2s.clients.chat import Bill, LLMClient, Reply, Request, request_key
from paras2s.configs.schema.unisrm_data import Language
from paras2s.data_gen.curation.llm_calls import StructuredReply
from paras2s.errors import BudgetError, JudgeError
from paras2s.reward.judges.parsing import is_readable, read_as, require_complete
from paras2s.reward.judges.prompts import Prompt, read_prompt

PACKAGE = "paras2s.unisrm.data_gen"
LANGUAGES: dict[Language, str] = {"en": "English", "zh": "Chinese"}
HAN = re.compile(r"[\u4e00-\u9fff]")
MAX_SCENE, MAX_CONTEXT, MAX_SENTENCE = 800, 1600, 400
Record = TypeVar("Record", bound=StructuredReply)


class Scene(StructuredReply):
    """A scene in which a sentence is spoken with an emotion."""

    scenario_description: str = Field(min_length=1, max_length=MAX_SCENE)
    paragraph_context: str = Field(min_length=1, max_length=MAX_CONTEXT)


class OtherSentence(StructuredReply):
    """A sentence, or a turn of a dialogue, that does not fit."""

    sentence: str = Field(min_length=1, max_length=MAX_SENTENCE)


class Writer:
    """Writer of texts. With `estimate` no call is made: the longest texts are assumed, and `bill` adds up the cost."""

    def __init__(self, client: LLMClient, prompts: Path | None, estimate: bool = False) -> None:
        self.client, self.prompts, self.estimate = client, prompts, estimate
        self.bill = Bill()

    def scenes(self, values: Sequence[Mapping[str, str]], language: Language) -> list[Scene | JudgeError]:
        """Write a scene for each sentence and emotion."""
        longest = Scene(scenario_description="a " * (MAX_SCENE // 2), paragraph_context="a " * (MAX_CONTEXT // 2))
        spoken = LANGUAGES[language]

        def read(text: str) -> Scene:
            scene = read_as(text, Scene)
            for key, value in scene:
                _require_language(key, value, language)
            return scene

        return self._complete("scene", [{**value, "language": spoken} for value in values], read, longest)

    def sentences(self, values: Sequence[Mapping[str, str]], language: Language) -> list[str | JudgeError]:
        """Write a sentence for each scene that fits it and is not the requested one."""
        longest = OtherSentence(sentence="a " * (MAX_SENTENCE // 2))
        spoken = LANGUAGES[language]

        def read(text: str) -> OtherSentence:
            other = read_as(text, OtherSentence)
            _require_language("sentence", other.sentence, language)
            return other

        replies = self._complete("other_sentence", [{**value, "language": spoken} for value in values], read, longest)
        return [_other(reply, value["sentence"]) for reply, value in zip(replies, values, strict=True)]

    def turns(self, values: Sequence[Mapping[str, Any]]) -> list[str | JudgeError]:
        """Write a next turn for each dialogue that misses its intent or contradicts it."""
        longest = OtherSentence(sentence="a " * (MAX_SENTENCE // 2))
        replies = self._complete("other_turn", values, lambda text: read_as(text, OtherSentence), longest)
        return [_other(reply, value["turn"]) for reply, value in zip(replies, values, strict=True)]

    def _complete(
        self, prompt_name: str, values: Sequence[Mapping[str, Any]], read: Callable[[str], Record], longest: Record
    ) -> list[Record | JudgeError]:
        """Complete prompts (BudgetError: the budget ended; paid replies are cached)."""
        prompt = Prompt(*(read_prompt(name, self.prompts, PACKAGE) for name in ("writer_system", prompt_name)))
        requests = [Request(prompt.messages(value, {}), type(longest).model_json_schema()) for value in values]
        if self.estimate:
            # Equal requests are sent once.
            self.bill += self.client.estimate(
                {request_key(self.client.config, request): request for request in requests}.values()
            )
            return [longest] * len(requests)
        replies = self.client.complete_all(requests, usable=lambda reply: is_readable(reply, read))
        return [_read(reply, read) for reply in replies]


def _read(reply: Reply | JudgeError | BudgetError, read: Callable[[str], Record]) -> Record | JudgeError:
    if isinstance(reply, BudgetError):
        raise reply
    try:
        return reply if isinstance(reply, JudgeError) else read(require_complete(reply))
    except JudgeError as error:
        return error


def _other(reply: OtherSentence | JudgeError, original: str) -> str | JudgeError:
    if isinstance(reply, JudgeError):
        return reply
    same = "".join(filter(str.isalnum, reply.sentence.casefold())) == "".join(filter(str.isalnum, original.casefold()))
    return JudgeError("the LLM wrote the original words again") if same else " ".join(reply.sentence.split())


def _require_language(key: str, text: str, language: Language) -> None:
    """Refuse a text of the other language (JudgeError)."""
    letters = [letter for letter in text if letter.isalpha()]
    share = sum(HAN.match(letter) is not None for letter in letters) / max(1, len(letters))
    if (share > 0.5) != (language == "zh"):
        raise JudgeError(f"{key}: is not {LANGUAGES[language]}")
