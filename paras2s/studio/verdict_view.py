"""The content of a verdict's page, from a row of any file of verdicts: of `judge`, `probe`, or a benchmark that judges.

The files agree on the names of their keys. What one of them does not keep is said in place, and a value of a wrong type is
passed over: the files may come from anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paras2s.bench.made_from import Fusion, MadeFrom
from paras2s.bench.results import AnswerRow
from paras2s.studio.answers import contradicts
from paras2s.studio.clips import TYPES
from paras2s.studio.folders import Folders, OutsideError

Row = Mapping[str, Any]
# The keys by which rows of a file are told apart, in the order in which a title names them.
NAMES = ("about", "change", "item", "instruction_id", "id", "index", "system", "aspect", "condition")
LOCAL = ("rubric", "independent", "reward model")


@dataclass(frozen=True)
class Sound:
    """A clip by given folder and path, or the problem shown instead; `fields` are its kept blueprint as of `/api/measured`."""

    title: str
    run: str = ""
    clip: str = ""
    problem: str = ""
    fields: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Judgement:
    """A judge's verdict as it is shown. `prompts` is None if they were not kept, () if no call was made.

    With `is_part` they are kept with the last of several verdicts. `words` is the answer's transcript, "" if the file has none.
    """

    judge: str
    outcome: str
    good: bool | None
    text: str
    facts: Sequence[tuple[str, str]] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    fusion: Sequence[Fusion] = ()
    prompts: Sequence[str] | None = None
    reply: str | None = None
    words: str = ""
    is_part: bool = False

    @property
    def is_local(self) -> bool:
        """Whether the judge makes no calls."""
        return self.judge.partition("/")[0].replace("_", " ") in LOCAL


@dataclass(frozen=True)
class Side:
    """An answer with the verdicts that are about it alone."""

    sound: Sound
    judgements: Sequence[Judgement] = ()
    text: str | None = None


@dataclass(frozen=True)
class Shown:
    """A question, one or two answers, and the verdicts that are about both."""

    title: str
    about: str
    question: Sound | None
    sides: Sequence[Side]
    judgements: Sequence[Judgement] = ()
    notes: Sequence[str] = ()
    style: str = ""


# Values of files that may hold anything.


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def _number(row: Row, key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def _texts(row: Row, key: str) -> dict[str, str]:
    value = row.get(key)
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def made_from(row: Row) -> MadeFrom | None:
    """Return the sources that the row names for its verdict; None if it names none, or in a form that is not ours."""
    kept = row.get("made_from")
    try:
        return MadeFrom.model_validate(kept) if isinstance(kept, dict) else None
    except ValueError:
        return None


# Verdicts.


def judgement_of(judge: str, verdict: Row, made: MadeFrom | None, overall: str = "") -> Judgement:
    """Return a verdict, or the reason why there is none; `judge` is used if the verdict names none itself."""
    unscored = _text(verdict, "unscored") or (_text(verdict, "reason") if verdict.get("type") == "Unscored" else "")
    name = "/".join(part for part in (_text(verdict, "judge") or judge, _text(verdict, "version")) if part)
    outcome, good = ("unscored", False) if unscored else _outcome(verdict, overall)
    fusion = made.fusion if made else ()
    return Judgement(
        judge=f"{_text(verdict, 'task')}: {name}" if _text(verdict, "task") else name or "a judge without a name",
        outcome=outcome or (fusion[-1].steps[-1][1] if fusion and fusion[-1].steps else "no verdict"),
        good=good,
        text=unscored or _text(verdict, "reason") or "The judge gave no reason beside its verdict.",
        facts=_facts(verdict),
        labels=_texts(verdict, "labels") or _texts(verdict, "dimensions"),
        fusion=fusion,
        prompts=made.prompts if made else None,
        reply=_text(verdict, "reply") if "reply" in verdict else None,
    )


def _outcome(verdict: Row, overall: str) -> tuple[str, bool | None]:
    """Return the verdict in a word, and whether it is a good score."""
    score = _number(verdict, "score") if "score" in verdict else _number(verdict, "overall")
    if score is not None:
        return f"{score:.2f}", score >= 4
    label = overall or _text(verdict, "label") or _text(verdict, "better")
    return {"1": "answer 1", "2": "answer 2", "A": "answer 1", "B": "answer 2"}.get(label, label.replace("_", " ")), None


def _facts(verdict: Row) -> list[tuple[str, str]]:
    cost, estimated = _number(verdict, "cost_usd"), verdict.get("cost_estimated") is True
    counted = " (audio counted by its length)" if estimated else ""
    missing = "not known" if "cost_usd" in verdict else "not kept"
    facts = [("Cost", missing if cost is None else f"{cost:.4f} USD{counted}")]
    tokens = [_number(verdict, f"{name}_tokens") for name in ("text_in", "audio_in", "text_out")]
    if None not in tokens:
        facts.append(("Tokens of text in, audio in, out", ", ".join(f"{count or 0:.0f}" for count in tokens)))
    for name, key in (("Call took", "latency_s"), ("Measuring took", "local_s")):
        if (seconds := _number(verdict, key)) is not None:
            facts.append((name, f"{seconds:.2f} s"))
    for name, key in (("Scores of the clips", "scores"), ("Votes", "votes"), ("Labels by order", "order_labels")):
        if isinstance(many := verdict.get(key), list) and many:
            facts.append((name, ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in many)))
    if (spread := _number(verdict, "spread")) is not None:
        facts.append(("Spread of the votes", f"{spread:.2f}"))
    if isinstance(same := verdict.get("consistent"), bool):
        facts.append(("Both orders", "agree" if same else "do not agree"))
    return facts


def judgements_of(row: Row) -> list[Judgement]:
    """Return all verdicts of a row: one, or one for each task of an audio judge."""
    made, overall = made_from(row), _text(row, "overall")
    many = row.get("verdicts")
    tasks = many.items() if isinstance(many, dict) else ()
    if judgements := [judgement_of(str(task), verdict, made, overall) for task, verdict in tasks if isinstance(verdict, dict)]:
        # The fusion and the prompts are of all tasks together: they are shown under the last, the ensemble.
        return [replace(judgement, fusion=(), prompts=None, is_part=True) for judgement in judgements[:-1]] + judgements[-1:]
    own = row.get("verdict")
    return [judgement_of("", own if isinstance(own, dict) else row, made, overall)]


# Clips and pages.


def sound_of(folders: Folders, folder: Path, title: str, path: str, fields: Sequence[Mapping[str, Any]] | None = None) -> Sound:
    """Return a clip that a file in `folder` names; a problem if it is outside the given folders, missing, or no sound."""
    try:
        run, clip = folders.locate(folder / path)
        if Path(clip).suffix.lower() not in TYPES:
            return Sound(title, problem=f"{clip!r} is not a sound file.", fields=fields)
        if not folders.path(run, clip).is_file():
            return Sound(title, problem=f"The clip {clip!r} is missing.", fields=fields)
    except OutsideError as error:
        return Sound(title, problem=f"This clip cannot be played: {error}", fields=fields)
    return Sound(title, run, clip, fields=fields)


def title_of(row: Row) -> str:
    """Return the question in writing, or the row's name in its file."""
    made = made_from(row)
    if made is not None and made.words:
        return made.words
    names = [str(row[name]) for name in NAMES if isinstance(row.get(name), str | int)]
    return ", ".join(names) or _text(row, "kind") or "verdict"


def group_of(row: Row) -> str | None:
    """Return the item or question that rows of single answers share, to be shown side by side; None without it."""
    made = made_from(row)
    names = (_text(row, "item"), made.words if made else "", made.clips.get("question", "") if made else "")
    return next((name for name in names if name), None)


def shown_row(folders: Folders, folder: Path, row: Row) -> Shown:
    """Return the page of a row of a file in `folder`."""
    made, blueprints = made_from(row), row.get("blueprints")
    clips = dict(made.clips) if made else {}
    for name, key in (("answer 1", "system_answer"), ("answer 2", "reference_answer")):
        clips |= {name: _text(row, key)} if _text(row, key) else {}
    described = {name: fields_of(blueprint) for name, blueprint in blueprints.items()} if isinstance(blueprints, dict) else {}

    def sound(name: str) -> Sound:
        return sound_of(folders, folder, name, clips[name], described.get(name))

    answers = [name for name in clips if name != "question"]
    judgements, notes = judgements_of(row), []
    if not clips:
        notes.append("This file does not say where its clips lie, so none can be played.")
    if change := _text(row, "change"):
        notes.append(f"The judge was given these clips {change}. Clips that a probe changes are made again, and not kept.")
    question = sound("question") if "question" in clips else None
    alone = len(answers) == 1
    sides = [Side(sound(name), judgements if alone else ()) for name in answers]
    ids = [f"{name.replace('_', ' ')} {row[name]}" for name in NAMES if isinstance(row.get(name), str | int)]
    style = f"spoken {made.style}" if made and made.style else ""
    return Shown(title_of(row), ", ".join(ids), question, sides, () if alone else judgements, notes, style)


def fields_of(blueprint: object) -> list[dict[str, Any]]:
    """Return the fields of a blueprint as `to_json` wrote it, in the form of `/api/measured`."""
    fields = blueprint.get("fields") if isinstance(blueprint, dict) else None
    shown: list[dict[str, Any]] = []
    for key, measured in (fields or {}).items() if isinstance(fields, dict) else ():
        name = key.rpartition(".")[2]
        if isinstance(measured, dict) and measured.get("type") == "Measured":
            value, confidence = measured.get("value"), _number(measured, "confidence")
            shown.append({"name": name, "value": value, "unit": _text(measured, "unit") or None, "confidence": confidence})
        else:
            reason = _text(measured, "reason") if isinstance(measured, dict) else ""
            shown.append({"name": name, "absent": reason or "no reason was kept"})
    return shown


# Answers of a bench.


def shown_answers(folders: Folders, folder: Path, systems: Mapping[str, Sequence[AnswerRow]]) -> Shown:
    """Return the page of a benched question: the answers of one or two systems, with every judge's verdict."""
    first = next(iter(systems.values()))[0]
    sides = []
    for name, rows in systems.items():
        answer = rows[0]
        sound = Sound(name, problem="There is no sound: this system gave none.")
        if answer.duration_s:
            sound = sound_of(folders, folder, name, answer.answer_clip)
        sides.append(Side(sound, [_benched(row) for row in rows], answer.text_stream or "none"))
    about = f"{first.query_id}, answer {first.answer_index + 1}"
    question = sound_of(folders, folder, "Question", first.question_clip)
    style = f"{first.category}, {first.style}"
    return Shown(first.question_text or first.query_id, about, question, sides, style=style)


def _benched(row: AnswerRow) -> Judgement:
    errors = "not measured" if row.word_error_rate is None else f"{100 * row.word_error_rate:.0f} %"
    facts = [
        ("Kind of answer", row.family or "not named"),
        ("Tone", _tones(row)),
        ("Reward model", _rewarded(row)),
        ("Word errors", errors),
    ]
    facts += [] if row.cost_usd is None else [("Cost", f"{row.cost_usd:.4f} USD")]
    return Judgement(
        judge=row.judge,
        outcome="unscored" if row.score is None else f"{row.score:.2f} of 5",
        good=False if row.score is None else True if row.fitting else None,
        text=row.reason if row.score is not None else row.unscored or "",
        facts=facts,
        prompts=row.prompts,
        reply=row.reply or None,
        words="not measured" if row.transcript is None else row.transcript,
    )


def _rewarded(row: AnswerRow) -> str:
    if row.model_score is None:
        return "none"
    return f"{row.model_score:.2f}{', contradicts the judge' if contradicts(row) else ''}"


def _tones(row: AnswerRow) -> str:
    shares = sorted(row.tone_scores.items(), key=lambda item: -item[1])
    return row.tone or "not measured" if not shares else ", ".join(f"{tone} {100 * share:.0f} %" for tone, share in shares)
