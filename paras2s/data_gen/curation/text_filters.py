"""The three tests that a script must pass: neutrality, reasonability, paralinguistic relevance (ParaS2S, B.1).

In this order, each asked about what the one before let through. A test that gave no answer is no failed test: the script is set
aside with the reason, and the next run asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paras2s.data_gen.curation.llm_calls import Checked, CurationLLM, Neutrality, Reasonability, Relevance, WrittenAnswer
from paras2s.errors import JudgeError
from paras2s.types import PlannedAnswer, Script

FREE_TONE = "Describe the tone in a few words: voice, pace, feeling."
NOT_ASKED = "not asked: "


def _styles(script: Script) -> dict[str, str]:
    return {"first": script.styles[0], "second": script.styles[1]}


def reject(script: Script, by: str, reason: str) -> Script:
    """The script with a reason; the first one stays."""
    return script if script.rejected_by else replace(script, rejected_by=by, rejected=reason)


def _tell(
    scripts: Sequence[Script], asked: Sequence[int], stage: str, found: Sequence[Checked | JudgeError],
    complaint: Callable[[Any, Script], str | None],
) -> list[Script]:  # fmt: skip
    """Scripts with one test's answers written in; `complaint` says from an answer what is wrong, or None."""
    told = list(scripts)
    for place, one in zip(asked, found, strict=True):
        if isinstance(one, JudgeError):
            told[place] = reject(told[place], stage, f"{NOT_ASKED}{one}")
            continue
        script = replace(told[place], tests=told[place].tests | {stage: one.model_dump()})
        wrong = complaint(one, script)
        told[place] = reject(script, stage, wrong) if wrong else script
    return told


def _passed(scripts: Sequence[Script]) -> list[int]:
    return [place for place, script in enumerate(scripts) if script.rejected_by is None]


def _lean(found: Neutrality, script: Script) -> str | None:
    if found.likelier == "neutral":
        return None
    return f"the words lean to {script.styles[found.likelier == 'second']}: {found.reasoning}"


def _unreasonable(found: Reasonability, script: Script) -> str | None:
    odd = [style for style, fits in zip(script.styles, (found.first, found.second), strict=True) if not fits]
    return f"not plausible when {' or '.join(odd)}: {found.reasoning}" if odd else None


def _irrelevant(found: Relevance, script: Script) -> str | None:
    return None if found.differ else f"the style makes no difference to the answer: {found.reasoning}"


def run_text_tests(scripts: Sequence[Script], asker: CurationLLM) -> list[Script]:
    """All three, in order.

    Raises:
        BudgetError: the budget ended; what was answered is kept, and a later run goes on from there.
    """
    for stage, kind, complaint in (("neutrality", Neutrality, _lean), ("reasonability", Reasonability, _unreasonable)):
        asked = _passed(scripts)
        values = [{"line": scripts[place].text, "styles": _styles(scripts[place])} for place in asked]
        found = asker.check(stage, asker.prompt("test_system", f"test_{stage}"), kind, values)
        scripts = _tell(scripts, asked, stage, found, complaint)
    return check_relevance(write_answers(scripts, asker), asker)


def tones_asked(tones: Sequence[str]) -> str:
    """What the answer's prompt says about tones."""
    return f"The tone must be one of: {', '.join(tones)}." if tones else FREE_TONE


def write_answers(scripts: Sequence[Script], asker: CurationLLM) -> list[Script]:
    """The best answer to each style of every script that is still in and has none: words and tone."""
    tones = asker.config.agent_tones
    asked = [place for place in _passed(scripts) if not scripts[place].answers]
    values: list[Mapping[str, Any]] = [
        {"line": {"words": scripts[place].text, "spoken": style}} for place in asked for style in scripts[place].styles
    ]
    prompt = asker.prompt("answer_system", "answer")
    found = asker.check("answers", prompt, WrittenAnswer, values, {"tones": tones_asked(tones)})
    told = list(scripts)
    for number, place in enumerate(asked):
        pair = found[2 * number : 2 * number + 2]
        failed = [one for one in pair if isinstance(one, JudgeError)]
        strange = [one.tone for one in pair if isinstance(one, WrittenAnswer) and tones and one.tone not in tones]
        if failed:
            told[place] = reject(told[place], "answers", f"{NOT_ASKED}{failed[0]}")
        elif strange:
            told[place] = reject(told[place], "answers", f"tone {strange[0]!r} is not one of {', '.join(tones)}")
        else:
            answers = tuple(PlannedAnswer(one.answer, one.tone) for one in pair if isinstance(one, WrittenAnswer))
            told[place] = replace(told[place], answers=answers)
    return told


def check_relevance(scripts: Sequence[Script], asker: CurationLLM) -> list[Script]:
    """Whether the answers to the two styles differ in what matters."""
    asked = _passed(scripts)
    values: list[Mapping[str, Any]] = []
    for place in asked:
        script = scripts[place]
        given = [
            {"to": style, "answer": one.text, "tone": one.tone}
            for style, one in zip(script.styles, script.answers, strict=True)
        ]
        values.append({"line": script.text, "answers": given})
    found = asker.check("relevance", asker.prompt("test_system", "test_relevance"), Relevance, values)
    return _tell(scripts, asked, "relevance", found, _irrelevant)
