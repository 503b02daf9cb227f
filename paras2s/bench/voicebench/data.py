"""VoiceBench's questions, read from its published JSONL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paras2s.errors import DataError
from paras2s.utils.io import read_rows

SUBSETS = {
    **dict.fromkeys(("alpacaeval", "alpacaeval_full", "commoneval", "wildvoice"), "open"),
    **dict.fromkeys(("openbookqa", "mmsu"), "choice"),
    "sd-qa": "qa",
    "bbh": "reasoning",
    "advbench": "refusal",
}
LEFT_OUT = {
    "ifeval": "its 25 rules are not implemented here; score it with VoiceBench's own evaluator",
    "mtbench": "it has several turns, and no evaluator in VoiceBench",
}


@dataclass(frozen=True)
class VoiceBenchItem:
    """One question of a subset. Made by `load_voicebench`; `id` is the file's own, or FILE/LINE.

    `reference` is the right answer, None if the file has none. `letter` is the right option and `choices` their words by
    letter, as far as the prompt gives them; both None if nothing is to be chosen.
    """

    id: str
    subset: str
    prompt: str
    reference: str | None
    letter: str | None
    choices: dict[str, str] | None


def load_voicebench(path: Path, subset: str | None = None) -> list[VoiceBenchItem]:
    """Read the items of one JSONL in VoiceBench's form (as its `main.py` writes it; a `response` is not needed).

    The subset is the argument, the row's key `subset`, or part of the file's name (MODEL-SUBSET-SPLIT-MODALITY.jsonl).

    Raises:
        DataError: missing, empty, a subset that is unknown or left out, or a row that is wrong; names file:line and key.
    """
    items: dict[str, VoiceBenchItem] = {}
    for number, row in read_rows(path):
        try:
            if not isinstance(row, dict):
                raise DataError("expected an object")
            item = _item(row, f"{path.stem}/{number}", _subset(path.stem, row, subset))
            if item.id in items:
                raise DataError(f"id: {item.id!r} occurs more than once")
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from error
        items[item.id] = item
    if not items:
        raise DataError(f"{path}: holds no items")
    return list(items.values())


def _subset(stem: str, row: Mapping[str, Any], given: str | None) -> str:
    # Names are told apart by the dashes around them; "sd-qa" holds one itself.
    in_name = [name for name in (*SUBSETS, *LEFT_OUT) if re.search(rf"(?:^|-){re.escape(name)}(?:-|$)", stem)]
    named = str(given or row.get("subset") or (in_name[0] if len(in_name) == 1 else "not given"))
    if named in LEFT_OUT:
        raise DataError(f"subset: {named} is left out: {LEFT_OUT[named]}")
    if named not in SUBSETS:
        raise DataError(f"subset: {named!r}; as argument, key or in the file's name, give one of {', '.join(SUBSETS)}")
    return named


def _item(row: Mapping[str, Any], line: str, subset: str) -> VoiceBenchItem:
    name, kind, letter, choices = row.get("id", line), SUBSETS[subset], None, None
    if isinstance(name, bool) or not isinstance(name, int | str) or name == "":
        raise DataError(f"id: {name!r} is not a name")
    prompt = _text(row, "prompt")
    reference = _text(row, "reference") if kind in ("qa", "choice", "reasoning") or row.get("reference") else None
    if reference and (kind == "choice" or (kind == "reasoning" and reference.startswith("("))):
        letter, choices = reference.strip(" ().").upper(), _choices(prompt, row.get("choices"))
        if letter not in (choices or list("ABCD")):
            raise DataError(f"reference: {reference!r} is not the letter of an option")
    elif reference and kind == "reasoning":
        reference = reference.lower()
        if reference not in ("yes", "no"):
            raise DataError(f"reference: {reference!r} is neither yes, no, (a) nor (b)")
    return VoiceBenchItem(str(name), subset, prompt, reference, letter, choices)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{key}: expected text, found {value!r}" if key in row else f"{key}: is missing")
    return value.strip()


def _choices(prompt: str, given: Any) -> dict[str, str] | None:
    """Return the options by letter: the row's own, or as the prompt lists them ("A. ..., B. ..."), or None."""
    if given is not None:
        if not isinstance(given, dict) or not all(key in list("ABCD") and isinstance(text, str) for key, text in given.items()):
            raise DataError("choices: expected texts by letter, A to D")
        return given
    marks: list[re.Match[str]] = []
    for letter in "ABCD":
        mark = re.compile(rf"(?:^|[\s(]){letter}[.):]\s", re.IGNORECASE).search(prompt, marks[-1].end() if marks else 0)
        if mark is None:
            break
        marks.append(mark)
    if len(marks) < 2:
        return None
    ends = [*(mark.start() for mark in marks[1:]), len(prompt)]
    texts = [prompt[mark.end() : end].strip().split("\n")[0] for mark, end in zip(marks, ends, strict=True)]
    return {letter: text.strip(" \t,.;()") for letter, text in zip("ABCD", texts, strict=False)}
