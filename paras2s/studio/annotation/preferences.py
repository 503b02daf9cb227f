"""Preferences of people, from the labels and ratings of a study, in the rows that `paras2s align --preferences` reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from paras2s.audio.clip import read_clip
from paras2s.bench.results import FITTING_SCORE
from paras2s.data_gen.preference_file import labelled_row, pair_row
from paras2s.studies.store import StudyStore
from paras2s.studies.study import Item
from paras2s.studio.annotation.results import OVERALL

# Up to this mean fitness an answer is bad; from `FITTING_SCORE` on it is good.
UNFITTING_SCORE = 2.0


def study_preferences(
    store: StudyStore, out: Path, pairs: Sequence[Mapping[str, Any]], ratings: Sequence[tuple[str, str, str, str, str]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return rows of a study's pairs with a preferred answer and of its answers with a clear rating, and what is left out.

    `pairs` are the majority's labels, `ratings` (id, system, category, rater, score). Clips are named as seen from `out`.

    Raises:
        AssetError: ASR is not installed.
    """
    items = store.study.items
    preferred = {pair["index"]: pair["label"][OVERALL] for pair in pairs}
    scores: dict[tuple[str, str], list[float]] = {}
    for id, system, _, _, score in ratings:
        scores.setdefault((id, system), []).append(float(score))
    good: dict[int, bool] = {}
    left_out = {}
    for number, item in enumerate(items):
        label, given = preferred.get(number), scores.get((item.id, item.answers[0].system))
        if label is None and given is None:
            continue
        if given is not None and (fmean(given) >= FITTING_SCORE or fmean(given) <= UNFITTING_SCORE):
            good[number] = fmean(given) >= FITTING_SCORE
        elif label in ("1", "2"):
            good[number] = label == "1"
        else:
            left_out[f"preference of {' '.join(item.key)}"] = "rated between good and bad" if given else f"a tie ({label})"
        if number in good and item.question is None:
            del good[number]
            left_out[f"preference of {' '.join(item.key)}"] = "no clip of the question"
    chosen = {number: items[number] for number in good}
    words = _words(store.folder, chosen.values())
    return [_row(store.folder, out, item, words, good[number]) for number, item in chosen.items()], left_out


def _words(folder: Path, items: Any) -> dict[str, str]:
    """Return the words of all clips of items by name: those of a question as they are given, else as ASR transcribes them."""
    words = {item.question: item.question_text for item in items if item.question_text}
    names = [name for name in dict.fromkeys(name for item in items for name in item.clips().values()) if name not in words]
    if not names:
        return words
    from paras2s.audio.asr import transcribe

    transcripts = transcribe([read_clip(folder / name) for name in names])
    return words | {name: transcript.text for name, transcript in zip(names, transcripts, strict=True)}


def _row(folder: Path, out: Path, item: Item, words: Mapping[str, str], first_good: bool) -> dict[str, Any]:
    def seen(clip: str) -> str:
        return os.path.relpath((folder / clip).resolve(), out.resolve())

    assert item.question is not None
    id, question, spoken = " ".join(item.key), seen(item.question), words[item.question]
    answers = [(seen(answer.clip), words[answer.clip]) for answer in item.answers]
    if len(answers) == 1:
        return labelled_row(id, question, spoken, answers[0], first_good, system=item.answers[0].system)
    better, worse = (0, 1) if first_good else (1, 0)
    systems = {"chosen_system": item.answers[better].system, "rejected_system": item.answers[worse].system}
    return pair_row(id, question, spoken, answers[better], answers[worse], **systems)
