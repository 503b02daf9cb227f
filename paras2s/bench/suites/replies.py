"""Readers of judges' replies in the forms that the suites' prompts ask for: a number, a word, JSON.

A reply without a score in the range gives none. Each reader of one form is one object, as `Question.read` needs it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from paras2s.errors import JudgeError
from paras2s.reward.judges.parsing import THOUGHTS, agreed, verdict_objects

Read = Callable[[str], dict[str, float]]
BRACKETS = r"\[\[\s*(-?\d+(?:\.\d+)?)\s*\]\]"
BRACKET = r"\[\s*(-?\d+(?:\.\d+)?)\s*\]"
BARE = r"\A\W*(-?\d+(?:\.\d+)?)\W*\Z"


@functools.cache
def read_number(pattern: str, low: float, high: float, last: bool = False, scale: float = 1.0) -> Read:
    """Return the reader of a number that a pattern finds, the last one or the first, from `low` to `high`, times `scale`."""

    def read(text: str) -> dict[str, float]:
        numbers = re.findall(pattern, THOUGHTS.sub("", text, count=1))
        if not numbers:
            raise JudgeError("the reply holds no score in the form that the prompt asks for")
        return {"score": scale * in_range("score", float(numbers[-1 if last else 0]), low, high)}

    return read


@functools.cache
def read_word(*words: tuple[str, float]) -> Read:
    """Return the reader of one of several words, each with its score; a reply with two of them has none."""

    def read(text: str) -> dict[str, float]:
        said = THOUGHTS.sub("", text, count=1)
        named = [score for word, score in words if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", said, re.IGNORECASE)]
        if len(named) != 1:
            raise JudgeError(f"the reply holds {'none' if not named else 'several'} of {', '.join(word for word, _ in words)}")
        return {"score": named[0]}

    return read


@functools.cache
def read_json(keys: tuple[str, ...], low: float, high: float, names: tuple[str, ...] = ()) -> Read:
    """Return the reader of numbers in a JSON object, by key, or by `names` in the keys' place."""

    def read(text: str) -> dict[str, float]:
        objects = verdict_objects(text, keys)
        values = [agreed([_number(key, verdict[key]) for verdict in objects if key in verdict]) for key in keys]
        return {name: in_range(name, value, low, high) for name, value in zip(names or keys, values, strict=True)}

    return read


def _number(key: str, value: object) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise JudgeError(f"{key}: {value!r} is no number") from error


def in_range(name: str, value: float, low: float, high: float) -> float:
    """Return a score of the scale. Raises JudgeError: it is outside."""
    if not low <= value <= high:
        raise JudgeError(f"{name}: {value:g} is not between {low:g} and {high:g}")
    return value
