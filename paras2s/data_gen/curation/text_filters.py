"""The three LLM tests of a script: neutrality, reasonability, paralinguistic relevance (ParaS2S, B.1).

In this order, each on the scripts that passed the one before. A test without a reply is no failed test: the script is set
aside with the reason, and the next run tests it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paras2s.data_gen.curation.llm_calls import (
    CurationLLM,
    Neutrality,
    Reasonability,
    Relevance,
    StructuredReply,
    WrittenAnswer,
)
from paras2s.errors import JudgeError
from paras2s.types import PlannedAnswer, Script

FREE_TONE = "Describe the tone in a few words: voice, pace, feeling."
NO_REPLY = "no usable reply: "


def _styles(script: Script) -> dict[str, str]:
    return {"first": script.styles[0], "second": script.styles[1]}


def reject(script: Script, by: str, reason: str) -> Script:
    """Return the script with the reason of its rejection; an earlier reason stays."""
    return script if script.rejected_by else replace(script, rejected_by=by, rejected=reason)


def _apply_replies(
    scripts: Sequence[Script], tested: Sequence[int], stage: str, replies: Sequence[StructuredReply | JudgeError],
    complaint: Callable[[Any, Script], str | None],
) -> list[Script]:  # fmt: skip
    """Write a test's replies into the tested scripts; `complaint` returns why a reply rejects a script, or None."""
    result = list(scripts)
    for index, reply in zip(tested, replies, strict=True):
        if isinstance(reply, JudgeError):
            result[index] = reject(result[index], stage, f"{NO_REPLY}{reply}")
            continue
        script = replace(result[index], tests=result[index].tests | {stage: reply.model_dump()})
        reason = complaint(reply, script)
        result[index] = reject(script, stage, reason) if reason else script
    return result


def _passed(scripts: Sequence[Script]) -> list[int]:
    return [index for index, script in enumerate(scripts) if script.rejected_by is None]


def _not_neutral(reply: Neutrality, script: Script) -> str | None:
    if reply.likelier == "neutral":
        return None
    return f"the words lean to {script.styles[reply.likelier == 'second']}: {reply.reasoning}"


def _not_reasonable(reply: Reasonability, script: Script) -> str | None:
    odd = [style for style, fits in zip(script.styles, (reply.first, reply.second), strict=True) if not fits]
    return f"not plausible when {' or '.join(odd)}: {reply.reasoning}" if odd else None


def _not_relevant(reply: Relevance, script: Script) -> str | None:
    return None if reply.differ else f"the style makes no difference to the answer: {reply.reasoning}"


def run_text_tests(scripts: Sequence[Script], llm: CurationLLM) -> list[Script]:
    """Run the three tests in order; failed scripts are rejected with the reason. Raises BudgetError: replies are cached."""
    for stage, kind, complaint in (("neutrality", Neutrality, _not_neutral), ("reasonability", Reasonability, _not_reasonable)):
        tested = _passed(scripts)
        values = [{"line": scripts[index].text, "styles": _styles(scripts[index])} for index in tested]
        replies = llm.check(stage, llm.prompt("test_system", f"test_{stage}"), kind, values)
        scripts = _apply_replies(scripts, tested, stage, replies, complaint)
    return check_relevance(write_answers(scripts, llm), llm)


def tone_instruction(tones: Sequence[str]) -> str:
    """Return the sentence about tones in the prompt of an answer."""
    return f"The tone must be one of: {', '.join(tones)}." if tones else FREE_TONE


def write_answers(scripts: Sequence[Script], llm: CurationLLM) -> list[Script]:
    """Write an answer (words and tone) to each style of every script that passed so far and has none."""
    tones = llm.config.agent_tones
    lacking = [index for index in _passed(scripts) if not scripts[index].answers]
    values: list[Mapping[str, Any]] = [
        {"line": {"words": scripts[index].text, "spoken": style}} for index in lacking for style in scripts[index].styles
    ]
    prompt = llm.prompt("answer_system", "answer")
    replies = llm.check("answers", prompt, WrittenAnswer, values, {"tones": tone_instruction(tones)})
    result = list(scripts)
    for number, index in enumerate(lacking):
        pair = replies[2 * number : 2 * number + 2]
        failed = [reply for reply in pair if isinstance(reply, JudgeError)]
        written = [reply for reply in pair if isinstance(reply, WrittenAnswer)]
        unknown = [reply.tone for reply in written if tones and reply.tone not in tones]
        if failed:
            result[index] = reject(result[index], "answers", f"{NO_REPLY}{failed[0]}")
        elif unknown:
            result[index] = reject(result[index], "answers", f"tone {unknown[0]!r} is not one of {', '.join(tones)}")
        else:
            answers = tuple(PlannedAnswer(reply.answer, reply.tone) for reply in written)
            result[index] = replace(result[index], answers=answers)
    return result


def check_relevance(scripts: Sequence[Script], llm: CurationLLM) -> list[Script]:
    """Run the relevance test: whether the answers to the two styles differ in what matters."""
    tested = _passed(scripts)
    values: list[Mapping[str, Any]] = []
    for index in tested:
        script = scripts[index]
        answers = [
            {"to": style, "answer": answer.text, "tone": answer.tone}
            for style, answer in zip(script.styles, script.answers, strict=True)
        ]
        values.append({"line": script.text, "answers": answers})
    replies = llm.check("relevance", llm.prompt("test_system", "test_relevance"), Relevance, values)
    return _apply_replies(scripts, tested, "relevance", replies, _not_relevant)
