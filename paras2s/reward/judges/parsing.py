"""Parses the replies of judges: the last complete verdict in a reply, or an error.

A reply that is cut off, refuses, names an unknown label or holds no verdict gives no score. It is never guessed at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from paras2s.clients.chat import Reply
from paras2s.errors import DataError, JudgeError
from paras2s.reward.fusion import as_label
from paras2s.types import DIMENSIONS, LABELS, Dimension, Label

# The dimensions' names in the paper's own prompt (Table 7) and its Listing 2.
ALIASES: dict[str, Dimension] = {
    "prediction_content": "content",
    "prediction_vq": "voice_quality",
    "prediction_para": "paralinguistics",
    "instruction_following_audio": "paralinguistics",
}
SCORES = (1, 2, 3, 4, 5)

PAIR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, **{name: {"type": "string", "enum": list(LABELS)} for name in DIMENSIONS}},
    "required": ["reasoning", *DIMENSIONS],
    "additionalProperties": False,
}
ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "score": {"type": "integer", "enum": list(SCORES)}},
    "required": ["reasoning", "score"],
    "additionalProperties": False,
}


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yields the outermost JSON objects in a text, in order; prose and broken objects are skipped."""
    decoder, place = json.JSONDecoder(strict=False), 0
    while (place := text.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        if isinstance(value, dict):
            yield value


def require_complete(reply: Reply) -> str:
    """Returns the reply's text.

    Raises:
        JudgeError: refused, cut off or empty.
    """
    if reply.refusal:
        raise JudgeError(f"the judge refused: {reply.refusal[:200]}")
    if reply.finish_reason == "length":
        raise JudgeError("the reply was cut off; raise llm.max_output_tokens")
    if reply.finish_reason == "content_filter":
        raise JudgeError("the endpoint's content filter held the reply back")
    if not reply.text.strip():
        raise JudgeError("the reply is empty")
    return reply.text


def read_pair(text: str) -> tuple[dict[Dimension, Label], str]:
    """Reads the labels and the reasoning of the last object with all three dimensions.

    Raises:
        JudgeError: there is none, or the last one has an unknown label.
    """
    verdicts = [verdict for verdict in map(_by_dimension, json_objects(text)) if verdict]
    _refuse_broken(text, '"content"', len(verdicts))
    if not verdicts:
        raise JudgeError(f"the reply holds no JSON object with {', '.join(DIMENSIONS)}")
    last = verdicts[-1]
    try:
        labels = {name: as_label(_as_text(last[name]), name) for name in DIMENSIONS}
    except DataError as error:
        raise JudgeError(str(error)) from error
    return labels, reasoning_of(last)


def _refuse_broken(text: str, key: str, complete: int) -> None:
    """Refuses a reply with more verdicts begun than completed.

    Where a judge quotes a verdict inside its own and does not escape it, its own is broken and the quoted one is complete: the
    words of an answer would decide.

    Raises:
        JudgeError: there are such.
    """
    if 0 < complete < text.count(key):
        raise JudgeError("the reply holds a verdict that is broken beside a whole one; neither is taken")


Parsed = TypeVar("Parsed", bound=BaseModel)


def read_as(text: str, kind: type[Parsed]) -> Parsed:
    """Reads the last object of a reply that has all the keys of a model, checked strictly.

    Raises:
        JudgeError: there is none, or its values are not what the model allows; names the key.
    """
    keys = list(kind.model_fields)
    objects = [one for one in json_objects(text) if all(key in one for key in keys)]
    _refuse_broken(text, f'"{keys[-1]}"', len(objects))
    if not objects:
        raise JudgeError(f"the reply holds no JSON object with {', '.join(keys)}")
    try:
        return kind.model_validate(objects[-1], strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise JudgeError(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error


def objects_with(text: str, key: str) -> list[dict[str, Any]]:
    """Returns the objects of a reply that have this key, at least one.

    Raises:
        JudgeError: there is none, or one was begun and is broken.
    """
    objects = [one for one in json_objects(text) if key in one]
    _refuse_broken(text, f'"{key}"', len(objects))
    if not objects:
        raise JudgeError(f"the reply holds no JSON object with a {key}")
    return objects


def _by_dimension(verdict: dict[str, Any]) -> dict[str, Any] | None:
    renamed = {ALIASES.get(key, key): value for key, value in verdict.items()}
    return renamed if all(name in renamed for name in DIMENSIONS) else None


def _as_text(value: Any) -> Any:
    # 1 and "1" cannot be taken for anything else; True is not 1.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def reasoning_of(verdict: dict[str, Any]) -> str:
    """Returns the reasoning in a verdict's object."""
    reasoning = verdict.get("reasoning", "")
    return reasoning if isinstance(reasoning, str) else json.dumps(reasoning, ensure_ascii=False)


def read_score(text: str) -> tuple[float, str]:
    """Reads the score and the reasoning of the last object with a score.

    Raises:
        JudgeError: there is none, or the last one is not a whole number from 1 to 5.
    """
    verdict = objects_with(text, "score")[-1]
    score = verdict["score"]
    if isinstance(score, str) and score.strip() in map(str, SCORES):
        score = int(score)
    if isinstance(score, bool) or score not in SCORES:
        raise JudgeError(f"score: {score!r} is not a whole number from 1 to 5")
    return float(score), reasoning_of(verdict)
