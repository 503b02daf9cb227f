"""Parses the replies of judges: the verdict in a reply, or an error.

A reply that is cut off, refuses, names an unknown label, or holds no verdict or several that differ gives no score. It is never
guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from paras2s.clients.chat import Reply
from paras2s.errors import DataError, JudgeError, first_problem, printable
from paras2s.reward.fusion import as_label
from paras2s.types import DIMENSIONS, LABELS, Dimension, Label
from paras2s.utils.text import well_formed

# The dimensions' names in the paper's own prompt (Table 7) and its Listing 2.
ALIASES: dict[str, Dimension] = {
    "prediction_content": "content",
    "prediction_vq": "voice_quality",
    "prediction_para": "paralinguistics",
    "instruction_following_audio": "paralinguistics",
}
SCORES = (1, 2, 3, 4, 5)
REASONING = "reasoning"
# Anything else after a brace begins no object.
OPENING = re.compile(r"\{(?=\s*[\"}])")
# What a model thinks before it replies; without an end the reply is all thought. gpt-oss names its channels.
THOUGHTS = re.compile(
    r"\A\s*(?:<(think|thinking|thought)>.*?(?:</\1>|\Z)|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|(?:<\|start\|>assistant)?<\|channel\|>(?!final).*?(?:<\|channel\|>final(?=<\|)|\Z))",
    re.DOTALL,
)
# Their end alone: a chat template or a server took the beginning off.
THOUGHTS_END = re.compile(r"</(?:think|thinking|thought)>|\[/THINK\]")
# Characters behind all broken objects of one reply: each is searched for its end through the rest of the text.
MAX_SEARCHED = 20_000_000
Parsed = TypeVar("Parsed", bound=BaseModel)
Value = TypeVar("Value")

# Without a bound a small model's reasoning may run on to the end of its reply, which then holds no verdict.
BOUNDED_TEXT: dict[str, Any] = {"type": "string", "maxLength": 240}
PAIR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reasoning": BOUNDED_TEXT, **{name: {"type": "string", "enum": list(LABELS)} for name in DIMENSIONS}},
    "required": ["reasoning", *DIMENSIONS],
    "additionalProperties": False,
}
ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reasoning": BOUNDED_TEXT, "score": {"type": "integer", "enum": list(SCORES)}},
    "required": ["reasoning", "score"],
    "additionalProperties": False,
}
# Servers write the keys in this order.
SCORE_FIRST_SCHEMA = {
    **ANSWER_SCHEMA,
    "properties": dict(reversed(ANSWER_SCHEMA["properties"].items())),
    "required": ["score", "reasoning"],
}


class JsonObject(dict[str, Any]):
    """A JSON object of a reply; `repeated` holds the keys that it gives different values."""

    def __init__(self, members: Sequence[tuple[str, Any]]) -> None:
        # Its escapes are decoded now, after which half an emoji may be left.
        super().__init__((key, well_formed(value)) for key, value in members)
        self.repeated = frozenset(key for key, value in members if self[key] != well_formed(value))


def _parts(text: str) -> Iterator[JsonObject | str]:
    """Yield the outermost JSON objects of a text, in order, and the text between them, with broken objects in it.

    Raises:
        JudgeError: too many broken objects; each may be as long as the text.
    """
    decoder, end, searched = json.JSONDecoder(object_pairs_hook=JsonObject, strict=False), 0, 0
    for opening in OPENING.finditer(text):
        if opening.start() < end:
            continue
        try:
            value, after = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            searched += len(text) - opening.start()
            if searched > MAX_SEARCHED:
                raise JudgeError("the reply holds no JSON object that can be found: too many are broken") from None
            continue
        yield text[end : opening.start()]
        yield value
        end = after
    yield text[end:]


def require_complete(reply: Reply) -> str:
    """Return the reply's text. Raises JudgeError: refused, cut off or empty."""
    if reply.refusal:
        raise JudgeError(f"the judge refused: {printable(reply.refusal[:200])}")
    if reply.finish_reason == "length":
        raise JudgeError("the reply was cut off; raise llm.max_output_tokens")
    if reply.finish_reason == "content_filter":
        raise JudgeError("the endpoint's content filter held the reply back")
    if not reply.text.strip():
        raise JudgeError("the reply is empty")
    return reply.text


def is_readable(reply: Reply, read: Callable[[str], object]) -> bool:
    """Return whether `read` finds a verdict in a reply; only such replies are kept for a later run."""
    try:
        read(require_complete(reply))
    except JudgeError:
        return False
    return True


def _behind_thoughts(parts: list[JsonObject | str], verdict: re.Pattern[str]) -> list[JsonObject | str]:
    """Return the parts behind the last end of thoughts that is outside of every object, if no broken verdict is before it."""
    for number in reversed(range(len(parts))):
        part = parts[number]
        ends = list(THOUGHTS_END.finditer(part)) if isinstance(part, str) else []
        if isinstance(part, str) and ends:
            before = [*parts[:number], part[: ends[-1].start()]]
            broken = any(isinstance(other, str) and verdict.search(other) for other in before)
            return parts if broken else [part[ends[-1].end() :], *parts[number + 1 :]]
    return parts


def verdict_objects(text: str, keys: Sequence[str], aliases: Mapping[str, str] | None = None) -> list[JsonObject]:
    """Return the objects of a reply with any of these keys at their top level, at least one of them with all.

    A model's thoughts at the head of its reply do not count. Where a judge quotes a verdict inside its own and does not escape
    it, its own is broken and the quoted one is complete: the words of an answer would decide. So a verdict begun outside of
    every object, or a key with two values in one object, refuses the reply.

    Raises:
        JudgeError: no object has all keys, or a broken verdict is beside a complete one.
    """
    names = dict.fromkeys(keys) | {other: None for other, key in (aliases or {}).items() if key in keys}
    objects: list[JsonObject] = []
    begun = False
    pattern = re.compile(rf"""\\?["'](?:{"|".join(map(re.escape, ("reasoning", *names)))})\\?["']\s*:""")
    said, opened = THOUGHTS.subn("", text, count=1)
    for part in _parts(said) if opened else _behind_thoughts(list(_parts(said)), pattern):
        if isinstance(part, str):
            begun = begun or pattern.search(part) is not None
            continue
        renamed = JsonObject([((aliases or {}).get(key, key), value) for key, value in part.items()])
        begun = begun or bool((part.repeated | renamed.repeated) & set(names))
        if any(key in renamed for key in keys):
            objects.append(renamed)
    if not any(all(key in verdict for key in keys) for verdict in objects):
        needed = f"a {keys[0]}" if len(keys) == 1 else ", ".join(keys)
        thought = ": it is all thought; raise llm.max_output_tokens" if opened and not said.strip() else ""
        raise JudgeError(f"the reply holds no JSON object with {needed}{thought}")
    if begun:
        raise JudgeError("the reply holds a verdict that is broken beside a whole one; neither is taken")
    return objects


def agreed(verdicts: Sequence[Value]) -> Value:
    """Return the one value of all verdicts of a reply. Raises JudgeError: they differ, and one may be a quotation."""
    if any(verdict != verdicts[0] for verdict in verdicts):
        raise JudgeError(f"the reply holds verdicts that differ: {', '.join(map(str, verdicts))}")
    return verdicts[0]


def read_pair(text: str) -> tuple[dict[Dimension, Label], str]:
    """Read the labels and reasoning of a three-dimensional comparison. Raises JudgeError: none, unknown, or they differ."""
    objects = verdict_objects(text, DIMENSIONS, ALIASES)
    labels = {name: agreed([_label(verdict[name], name) for verdict in objects if name in verdict]) for name in DIMENSIONS}
    return labels, reasoning_of(objects[-1])


def _label(value: Any, name: Dimension) -> Label:
    # 1 and "1" cannot be taken for anything else, nor can "Both-Good "; True is not 1.
    if isinstance(value, str | int) and not isinstance(value, bool):
        folded = str(value).strip().lower().replace("-", "_").replace(" ", "_")
        if folded in LABELS:
            return as_label(folded, name)
    try:
        return as_label(value, name)
    except DataError as error:
        raise JudgeError(str(error)) from error


def read_as(text: str, kind: type[Parsed]) -> Parsed:
    """Read the object with all the keys of a model, strictly. Raises JudgeError: none, a wrong value, or they differ."""
    keys = list(kind.model_fields)
    objects = verdict_objects(text, keys)
    for key in keys:
        if key != REASONING:
            agreed([verdict[key] for verdict in objects if key in verdict])
    complete = [verdict for verdict in objects if all(key in verdict for key in keys)]
    try:
        return kind.model_validate(complete[-1], strict=True)
    except ValidationError as error:
        raise JudgeError(f"{first_problem(error)}") from error


def reasoning_of(verdict: Mapping[str, Any]) -> str:
    """Return the reasoning in a verdict's object."""
    reasoning = verdict.get(REASONING, "")
    return reasoning if isinstance(reasoning, str) else json.dumps(reasoning, ensure_ascii=False)


def read_score(text: str) -> tuple[float, str]:
    """Read a score and its reasoning. Raises JudgeError: none, not a whole number from 1 to 5, or several that differ."""
    objects = verdict_objects(text, ("score",))
    return agreed([_score(verdict["score"]) for verdict in objects]), reasoning_of(objects[-1])


def _score(score: Any) -> float:
    if isinstance(score, str) and score.strip() in map(str, SCORES):
        score = int(score)
    if isinstance(score, bool) or score not in SCORES:
        raise JudgeError(f"score: {score!r} is not a whole number from 1 to 5")
    return float(score)
