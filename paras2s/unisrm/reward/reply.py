"""Replies of UniSRM (Figures 3 to 6): the writer of training targets, and a strict parser.

A reply that breaks a rule gives no record: `Malformed` says which rule, and its reason is an enumerated value that metrics
count. The checks run from the outside in, and the first rule broken is the one reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from paras2s.unisrm.reward.tasks import (
    ASPECT_DESCRIPTIONS,
    SIDES,
    TASKS,
    PairRecord,
    QualityRecord,
    Record,
    Side,
    SideScores,
    Task,
    TaskId,
)

# Sums of decimal scores are compared up to rounding of their binary form.
TOLERANCE = 1e-6
NUMBER = r"[-+]?\d+(?:\.\d+)?"
TAG = re.compile(r"</?(?:think|answer)>")
SUMMARY = "[Comparison summary]"
ASPECTS, PARAGRAPH = "[Aspect descriptions]", "[Natural language description]"
NO_MARKS = str.maketrans("<>[]", "()()")
# A reply of the longest task has some 2,000 characters; nothing of this length is one.
MAX_CHARACTERS = 50_000


class ParseFailure(StrEnum):
    """The rule that a reply breaks."""

    TOO_LONG = "too_long"
    MISSING_THINK = "missing_think"
    UNEXPECTED_THINK = "unexpected_think"
    TWO_THINKS = "two_thinks"
    MISSING_ANSWER = "missing_answer"
    TWO_ANSWERS = "two_answers"
    TAGS_OUT_OF_ORDER = "tags_out_of_order"
    TEXT_OUTSIDE_TAGS = "text_outside_tags"
    UNKNOWN_ANSWER = "unknown_answer"
    MISSING_SECTION = "missing_section"
    SECTIONS_OUT_OF_ORDER = "sections_out_of_order"
    MISSING_DIMENSION = "missing_dimension"
    REPEATED_DIMENSION = "repeated_dimension"
    DIMENSIONS_OUT_OF_ORDER = "dimensions_out_of_order"
    NO_SCORE = "no_score"
    NOT_AN_INTEGER = "not_an_integer"
    OUT_OF_RANGE = "out_of_range"
    MISSING_EXPLANATION = "missing_explanation"
    MISSING_TOTAL = "missing_total"
    WRONG_TOTAL = "wrong_total"
    EQUAL_TOTALS = "equal_totals"
    ANSWER_AGAINST_SCORES = "answer_against_scores"


@dataclass(frozen=True)
class Malformed:
    """A reply that gives no record: the rule that it breaks, and where."""

    reason: ParseFailure
    detail: str


class _Broken(Exception):
    def __init__(self, reason: ParseFailure, detail: str) -> None:
        super().__init__(detail)
        self.malformed = Malformed(reason, detail)


# Writing.


def write_reply(task_id: TaskId, record: Record, reasoning: bool = True) -> str:
    """Write a record as the model's reply; without `reasoning` the answer alone. Raises ValueError: it would not be parsed."""
    task = TASKS[task_id]
    if isinstance(record, PairRecord) != task.pairwise:
        raise ValueError(f"{task_id}: a {type(record).__name__} is no record of this task")
    if isinstance(record, PairRecord):
        think, answer = _pair_think(task, record) if reasoning else "", f"Speech {record.better} is better"
    else:
        think, answer = _quality_think(record) if reasoning else "", _quality_answer(task, record)
    text = f"<think>\n{think}\n</think>\n<answer>{answer}</answer>" if reasoning else f"<answer>{answer}</answer>"
    parsed = parse_reply(task_id, text, reasoning)
    if isinstance(parsed, Malformed):
        raise ValueError(f"{task_id}: the record makes no reply: {parsed.detail}")
    return text


def _pair_think(task: Task, record: PairRecord) -> str:
    if record.sides is None:
        raise ValueError(f"{task.id}: a record without scores has no reasoning to write")
    lines = []
    for side, scores in zip(SIDES, record.sides, strict=True):
        lines.append(heading(task, side))
        for number, score in enumerate(scores.scores):
            lines.append(f"{marker(task, number)} score={score:g}/{task.high}; explanation: {scores.explanations[number]}")
        terms = "+".join(f"{score:g}" for score in scores.scores)
        lines.append(f"{total_prefix(task, side)} = {terms} = {scores.total:g}")
    return "\n".join([*lines, SUMMARY, f"- {record.summary}"])


def _quality_think(record: QualityRecord) -> str:
    pairs = zip(ASPECT_DESCRIPTIONS, record.descriptions, strict=True)
    lines = [ASPECTS, *(f"{name}: {text}" for name, text in pairs), "", PARAGRAPH, record.description]
    return "\n".join(lines)


def _quality_answer(task: Task, record: QualityRecord) -> str:
    """Return key and value of each aspect; the mean of several raters is rounded, a half upwards."""
    return " ".join(f"{key}={int(score + 0.5)};" for key, score in zip(task.keys, record.scores, strict=True))


def plain_words(text: str) -> str:
    """Return text on one line, without what a reply's marks would be taken for."""
    return " ".join(text.translate(NO_MARKS).split())


def heading(task: Task, side: Side) -> str:
    """Return the line above a candidate's scores."""
    return f"[Speech {side} evaluation]" if task.id == "T4" else f"[Speech {side}]"


def marker(task: Task, number: int) -> str:
    """Return the beginning of a dimension's line."""
    bullet = "-" if task.id == "T4" else f"{number + 1})"
    return f"{bullet} {task.dimensions[number].title}:"


def total_prefix(task: Task, side: Side) -> str:
    """Return the beginning of the line with a candidate's total."""
    return f"- Total score for Speech {side}" if task.id == "T4" else f"Total_{side}"


# Parsing.


def parse_reply(task_id: TaskId, text: str, reasoning: bool = True) -> Record | Malformed:
    """Return the record of a reply, or the first rule that it breaks. White space between the parts is free."""
    task = TASKS[task_id]
    try:
        think, answer = _split(text, reasoning)
        return _parse_pair(task, think, answer) if task.pairwise else _parse_quality(task, think, answer)
    except _Broken as broken:
        return broken.malformed


def _split(text: str, reasoning: bool) -> tuple[str | None, str]:
    """Split a reply into the contents of both tags; None for the first without reasoning."""
    if len(text) > MAX_CHARACTERS:
        raise _Broken(ParseFailure.TOO_LONG, f"{len(text)} characters; at most {MAX_CHARACTERS} are read")
    tags = [tag.group() for tag in TAG.finditer(text)]
    thinks, answers = tags.count("<think>"), tags.count("<answer>")
    if thinks > 1 or tags.count("</think>") > 1:
        raise _Broken(ParseFailure.TWO_THINKS, "more than one <think>")
    if answers > 1 or tags.count("</answer>") > 1:
        raise _Broken(ParseFailure.TWO_ANSWERS, "more than one <answer>")
    if reasoning and (not thinks or "</think>" not in tags):
        raise _Broken(ParseFailure.MISSING_THINK, "no <think> that is opened and closed")
    if not reasoning and (thinks or "</think>" in tags):
        raise _Broken(ParseFailure.UNEXPECTED_THINK, "a <think> in place of the answer alone")
    if not answers or "</answer>" not in tags:
        raise _Broken(ParseFailure.MISSING_ANSWER, "no <answer> that is opened and closed")
    expected = ["<think>", "</think>", "<answer>", "</answer>"] if reasoning else ["<answer>", "</answer>"]
    if tags != expected:
        raise _Broken(ParseFailure.TAGS_OUT_OF_ORDER, " ".join(tags))
    pieces = TAG.split(text)
    outside = "".join(pieces[::2]).strip()
    if outside:
        raise _Broken(ParseFailure.TEXT_OUTSIDE_TAGS, outside[:80])
    return (pieces[1] if reasoning else None), pieces[-2].strip()


def _parse_pair(task: Task, think: str | None, answer: str) -> PairRecord:
    match = re.fullmatch(r"Speech ([AB]) is better", answer)
    if match is None:
        raise _Broken(ParseFailure.UNKNOWN_ANSWER, answer[:80] or "an empty answer")
    better: Side = "A" if match[1] == "A" else "B"
    if think is None:
        return PairRecord(better)
    bodies = _sections(think, [*(heading(task, side) for side in SIDES), SUMMARY])
    first, second = (_side(task, side, body) for side, body in zip(SIDES, bodies, strict=False))
    summary = bodies[2].strip().removeprefix("-").strip()
    if not summary:
        raise _Broken(ParseFailure.MISSING_SECTION, f"nothing below {SUMMARY}")
    if abs(first.total - second.total) < TOLERANCE:
        raise _Broken(ParseFailure.EQUAL_TOTALS, f"both totals are {first.total:g}")
    if (first.total > second.total) != (better == "A"):
        raise _Broken(ParseFailure.ANSWER_AGAINST_SCORES, f"{first.total:g} to {second.total:g}, but Speech {better}")
    return PairRecord(better, (first, second), summary)


def _sections(think: str, headings: Sequence[str]) -> list[str]:
    """Return the text below each heading. A heading fills its line and occurs once."""
    places = []
    for heading in headings:
        spans = [match.span() for match in re.finditer(rf"(?m)^[ \t]*{re.escape(heading)}[ \t]*$", think)]
        if len(spans) != 1:
            raise _Broken(ParseFailure.MISSING_SECTION, f"{heading} occurs {len(spans)} times, not once")
        places.append(spans[0])
    if places != sorted(places) or think[: places[0][0]].strip():
        raise _Broken(ParseFailure.SECTIONS_OUT_OF_ORDER, "the sections are not in order, or there is text before them")
    ends = [*(start for start, _ in places[1:]), len(think)]
    return [think[start:end] for (_, start), end in zip(places, ends, strict=True)]


def _side(task: Task, side: Side, body: str) -> SideScores:
    markers = [marker(task, number) for number in range(len(task.dimensions))]
    spans = _line_starts(markers, body, side)
    totals = list(re.finditer(rf"(?m)^[ \t]*{re.escape(total_prefix(task, side))}[ \t]*=", body))
    if len(totals) != 1 or totals[0].start() < spans[-1][0]:
        raise _Broken(ParseFailure.MISSING_TOTAL, f"no single total of Speech {side} after its scores")
    ends = [*(start for start, _ in spans[1:]), totals[0].start()]
    scores, explanations = [], []
    for dimension, (_, start), end in zip(task.dimensions, spans, ends, strict=True):
        match = re.fullmatch(rf"\s*score=({NUMBER})/{task.high};\s*explanation:(.*)", body[start:end], re.DOTALL)
        if match is None:
            raise _Broken(ParseFailure.NO_SCORE, f"Speech {side}, {dimension.key}: no score=.../{task.high}; explanation: ...")
        scores.append(_in_range(float(match[1]), task, f"Speech {side}, {dimension.key}"))
        explanations.append(match[2].strip())
        if not explanations[-1]:
            raise _Broken(ParseFailure.MISSING_EXPLANATION, f"Speech {side}, {dimension.key}")
    parsed = SideScores(tuple(scores), tuple(explanations))
    _check_total(parsed, body[totals[0].end() :], side)
    return parsed


def _line_starts(markers: Sequence[str], body: str, name: str) -> list[tuple[int, int]]:
    """Return the offset of each marker, which begins a line."""
    places = []
    for marker in markers:
        spans = [match.span() for match in re.finditer(rf"(?m)^[ \t]*{re.escape(marker)}", body)]
        if not spans:
            raise _Broken(ParseFailure.MISSING_DIMENSION, f"{name}: {marker} is missing")
        if len(spans) > 1:
            raise _Broken(ParseFailure.REPEATED_DIMENSION, f"{name}: {marker} occurs {len(spans)} times")
        places.append(spans[0])
    if places != sorted(places) or body[: places[0][0]].strip():
        raise _Broken(ParseFailure.DIMENSIONS_OUT_OF_ORDER, f"{name}: not in order, or there is text before them")
    return places


def _check_total(scores: SideScores, text: str, side: Side) -> None:
    """Check that the terms are the scores, and the total their sum."""
    match = re.fullmatch(rf"\s*({NUMBER}(?:\s*\+\s*{NUMBER})*)\s*=\s*({NUMBER})\s*", text)
    if match is None:
        raise _Broken(ParseFailure.MISSING_TOTAL, f"Speech {side}: no sum of scores and its total")
    # A term may have a sign of its own: 9++8.
    terms = [float(term) for term in re.findall(NUMBER, match[1])]
    given = len(terms) == len(scores.scores) and all(
        abs(term - other) < TOLERANCE for term, other in zip(terms, scores.scores, strict=True)
    )
    if not given or abs(float(match[2]) - scores.total) > TOLERANCE:
        raise _Broken(ParseFailure.WRONG_TOTAL, f"Speech {side}: {text.strip()}, the scores make {scores.total:g}")


def _in_range(score: float, task: Task, name: str) -> float:
    if not task.low <= score <= task.high:
        raise _Broken(ParseFailure.OUT_OF_RANGE, f"{name}: {score:g} is not within {task.low} to {task.high}")
    return score


def _parse_quality(task: Task, think: str | None, answer: str) -> QualityRecord:
    scores = _quality_scores(task, answer)
    if think is None:
        return QualityRecord(scores)
    aspects, paragraph = _sections(think, [ASPECTS, PARAGRAPH])
    spans = _line_starts([f"{name}:" for name in ASPECT_DESCRIPTIONS], aspects, "descriptions")
    ends = [*(start for start, _ in spans[1:]), len(aspects)]
    descriptions = tuple(aspects[start:end].strip() for (_, start), end in zip(spans, ends, strict=True))
    if not all((*descriptions, paragraph.strip())):
        raise _Broken(ParseFailure.MISSING_EXPLANATION, "a description is empty")
    return QualityRecord(scores, descriptions, paragraph.strip())


def _quality_scores(task: Task, answer: str) -> tuple[float, ...]:
    members = [part.strip() for part in answer.removesuffix(";").split(";")]
    if not all(re.fullmatch(r"\w+\s*=.*", part) for part in members):
        raise _Broken(ParseFailure.UNKNOWN_ANSWER, answer[:80] or "an empty answer")
    keys = [part.partition("=")[0].strip() for part in members]
    if unknown := sorted(set(keys) - set(task.keys)):
        raise _Broken(ParseFailure.UNKNOWN_ANSWER, f"there is no aspect {unknown[0]}")
    if missing := [key for key in task.keys if key not in keys]:
        raise _Broken(ParseFailure.MISSING_DIMENSION, f"{missing[0]} is missing")
    if len(keys) > len(task.keys):
        raise _Broken(ParseFailure.REPEATED_DIMENSION, "an aspect occurs twice")
    if tuple(keys) != task.keys:
        raise _Broken(ParseFailure.DIMENSIONS_OUT_OF_ORDER, "the aspects are not in order")
    scores = []
    for key, part in zip(keys, members, strict=True):
        value = part.partition("=")[2].strip()
        if not re.fullmatch(NUMBER, value):
            raise _Broken(ParseFailure.NO_SCORE, f"{key}={value[:40]}")
        if not re.fullmatch(r"[-+]?\d+", value):
            raise _Broken(ParseFailure.NOT_AN_INTEGER, f"{key}={value}")
        scores.append(_in_range(float(value), task, key))
    return tuple(scores)
