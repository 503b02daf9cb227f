"""Export of a study to the files that `bench speakbench`, `rank` and `bench paras2s --human` read, and to one table of all."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from paras2s.audio.clip import read_clip
from paras2s.bench.results import FITTING_SCORE
from paras2s.data_gen.preference_file import FILE as PREFERENCES
from paras2s.data_gen.preference_file import labelled_row, pair_row
from paras2s.reward.judges.votes import POINTS
from paras2s.statistics.annotators import majority
from paras2s.studies.store import StudyStore
from paras2s.studies.study import StudyItem
from paras2s.studio.annotation.results import FITNESS, OVERALL, Annotation, list_annotations
from paras2s.types import DIMENSIONS
from paras2s.utils.io import write_json, write_jsonl, write_text
from paras2s.utils.tables import spreadsheet_cell

QUESTIONS = (*DIMENSIONS, OVERALL)
# A name that no annotator can have.
EVERYONE = "majority"


def export_study(store: StudyStore, out: Path, preferences: bool = False) -> dict[str, Any]:
    """Write the export and return names of files with their rows, and the items left out with the reason.

    `annotations.jsonl` always. Of pairs `labels.json` (people's majority, for `bench speakbench` and `rank --human`) and
    `labels-NAME.json` of each annotator, with clips relative to the study's folder; `system_scores.csv` (win rates, for
    `rank --human`). Of single answers `ratings.csv` (`bench paras2s --human`). Gold items are left out of all but the first.
    With `preferences` also `preferences.jsonl` (`align --preferences`), whose clips stay in the study's folder.

    Raises:
        StorageError: the disk refused. AssetError: preferences need ASR, which is not installed.
    """
    annotations = list_annotations(store)
    write_jsonl(out / "annotations.jsonl", (_row(store, annotation) for annotation in annotations))
    written: dict[str, int] = {"annotations.jsonl": len(annotations)}
    left_out: dict[str, str] = {}
    pairs: list[dict[str, Any]] = []
    ratings: list[tuple[str, str, str, str, str]] = []
    counted = [
        annotation for annotation in annotations if not store.study.items[annotation.number].gold and annotation.skipped is None
    ]
    if store.study.kind == "pair":
        names = list(dict.fromkeys(annotation.annotator for annotation in counted))
        by_name = {name: [annotation for annotation in counted if annotation.annotator == name] for name in names}
        for name, mine in {EVERYONE: counted, **by_name}.items():
            file = "labels.json" if name == EVERYONE else f"labels-{name}.json"
            labelled, why = _pairs(store, mine)
            # `bench speakbench` reads no empty list of pairs.
            if labelled:
                write_json(out / file, labelled)
                written[file] = len(labelled)
            if name == EVERYONE:
                left_out |= why
                pairs, scores = labelled, _system_scores(labelled)
                _write_csv(out / "system_scores.csv", ("system", "score"), scores)
                written["system_scores.csv"] = len(scores)
    elif store.study.kind == "single":
        ratings = _ratings(store, counted)
        _write_csv(out / "ratings.csv", ("id", "system", "category", "rater", "score"), ratings)
        written["ratings.csv"] = len(ratings)
    if preferences:
        preferred, why = study_preferences(store, out, pairs, ratings)
        write_jsonl(out / PREFERENCES, preferred)
        written[PREFERENCES] = len(preferred)
        left_out |= why
    for annotation in annotations:
        if annotation.skipped is not None:
            left_out[f"{_key(store.study.items[annotation.number])}, {annotation.annotator}"] = f"skipped: {annotation.skipped}"
    summary = {"study": store.study.title, "kind": store.study.kind, "files": written, "left_out": left_out}
    write_json(out / "export.json", summary)
    return summary


def _key(item: StudyItem) -> str:
    return " ".join(item.key)


def _row(store: StudyStore, annotation: Annotation) -> dict[str, Any]:
    item = store.study.items[annotation.number]
    systems = [answer.system for answer in item.answers]
    return {"id": item.id, "category": item.category, "systems": systems, "is_gold": bool(item.gold), **asdict(annotation)}


def _pairs(store: StudyStore, annotations: Sequence[Annotation]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return pairs in the form of TRACE's release, and the reason for each left out."""
    given: dict[int, list[Mapping[str, str]]] = {}
    for annotation in annotations:
        given.setdefault(annotation.number, []).append(annotation.values)
    pairs, left_out = [], {}
    for number, item in enumerate(store.study.items):
        if item.gold:
            continue
        label = {name: majority([values[name] for values in given.get(number, []) if name in values]) for name in QUESTIONS}
        without = [name for name, value in label.items() if value is None]
        if without:
            left_out[_key(item)] = f"no majority on {', '.join(without)}" if number in given else "no annotator has done it"
            continue
        first, second = item.answers
        pairs.append(
            {
                "index": number,
                "instruction_id": item.cluster,
                "instruction_text": item.question_text or item.id,
                "instruction_path": item.question or "clips/none",
                "model_a": first.system,
                "model_b": second.system,
                "audio1_path": first.clip,
                "audio2_path": second.clip,
                "label": label,
            }
        )
    return pairs, left_out


def _system_scores(pairs: Iterable[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return each system's win rate, a tie of either kind half a win; the best first."""
    points: dict[str, list[float]] = {}
    for pair in pairs:
        gained = POINTS[pair["label"][OVERALL]]
        points.setdefault(pair["model_a"], []).append(gained)
        points.setdefault(pair["model_b"], []).append(1 - gained)
    return sorted(((name, sum(got) / len(got)) for name, got in points.items()), key=lambda item: (-item[1], item[0]))


def _ratings(store: StudyStore, annotations: Iterable[Annotation]) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for annotation in annotations:
        item = store.study.items[annotation.number]
        rows.append((item.id, item.answers[0].system, item.category, annotation.annotator, annotation.values[FITNESS]))
    return rows


def _write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([spreadsheet_cell(cell) for cell in row] for row in rows)
    write_text(path, text.getvalue())


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
    return [_preference(store.folder, out, item, words, good[number]) for number, item in chosen.items()], left_out


def _words(folder: Path, items: Any) -> dict[str, str]:
    """Return the words of all clips of items by name: those of a question as they are given, else as ASR transcribes them."""
    words = {item.question: item.question_text for item in items if item.question_text}
    names = [name for name in dict.fromkeys(name for item in items for name in item.clips().values()) if name not in words]
    if not names:
        return words
    from paras2s.audio.asr import transcribe

    transcripts = transcribe([read_clip(folder / name) for name in names])
    return words | {name: transcript.text for name, transcript in zip(names, transcripts, strict=True)}


def _preference(folder: Path, out: Path, item: StudyItem, words: Mapping[str, str], first_good: bool) -> dict[str, Any]:
    def seen(clip: str) -> str:
        return os.path.relpath((folder / clip).resolve(), out.resolve())

    assert item.question is not None
    id, question, spoken = " ".join(item.key), seen(item.question), words[item.question]
    answers = [(seen(answer.clip), words[answer.clip]) for answer in item.answers]
    if len(answers) == 1:
        return labelled_row(id, question, spoken, answers[0], first_good, system=item.answers[0].system)
    better, worse = (0, 1) if first_good else (1, 0)
    return pair_row(
        id, question, spoken, answers[better], answers[worse],
        chosen_system=item.answers[better].system, rejected_system=item.answers[worse].system,
    )  # fmt: skip
