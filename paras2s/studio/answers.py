"""Answers of a bench, those of all systems by question, for a page that shows where it went wrong."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.bench.paras2s.gain import AFTER, BEFORE, BOUNDS
from paras2s.bench.results import AnswerRow, load_rows
from paras2s.errors import DataError
from paras2s.run import REPORT, RESOLVED
from paras2s.studio.clips import clip_address
from paras2s.studio.dialogues import read_turns, turns_view
from paras2s.studio.run_state import RunFiles
from paras2s.studio.web import ANSWERS, Studio, json_response
from paras2s.types import CATEGORIES

# Points between two scores of one answer from which they contradict each other: from a fitting answer to a wrong one.
CONTRADICTION = 2.0
INDEPENDENT = "independent"
API = "/api/answers"
# Files of rows that are held: nine systems by two judges, of a few runs.
FILES_HELD = 64
Systems = Mapping[str, Sequence[AnswerRow]]
ORDER = (BEFORE, AFTER, *(name for names in BOUNDS.values() for name in names))


@dataclass(frozen=True)
class Benched:
    """All verdicts on a run's answers, and messages about files that cannot be read.

    `by_folder` has the rows of each file by the folder of its judge ("" is the bench's own); `rows` are by question (query and
    number of the answer) and system, a row a judge.
    """

    by_folder: dict[str, dict[str, Sequence[AnswerRow]]] = field(default_factory=dict)
    rows: dict[tuple[str, int], dict[str, list[AnswerRow]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def systems(self) -> list[str]:
        """All systems: the policies, baselines and ceilings, then others as they were read."""
        names = dict.fromkeys(system for by_system in self.rows.values() for system in by_system)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    @property
    def judges(self) -> list[str]:
        """The judges, the bench's own first."""
        return list(dict.fromkeys(row.judge for folder in self.by_folder.values() for rows in folder.values() for row in rows))


def read_bench(run: Path) -> Benched:
    """Return all verdicts below RUN/bench, or in a folder of `bench paras2s`: those of the bench's own judge first."""
    benched = Benched()
    bench = run / "bench" if (run / "bench").is_dir() else run
    # The logs of a training run that has no bench yet are no verdicts.
    if bench == run and (run / RESOLVED).is_file():
        return benched
    paths = [*sorted(bench.glob("*.jsonl")), *(sorted(bench.glob("*/*.jsonl")) if bench != run else ())]
    for path in paths:
        # A link could lead to any file of this machine.
        if not path.resolve().is_relative_to(run.resolve()):
            benched.problems.append(f"{path.relative_to(run)}: a link that leaves the run")
            continue
        try:
            stat = path.stat()
            rows = _load(path, stat.st_mtime_ns, stat.st_size)
        except (DataError, OSError) as error:
            benched.problems.append(str(error).replace(f"{run}{os.sep}", ""))
            continue
        benched.by_folder.setdefault("" if path.parent == bench else path.parent.name, {})[path.stem] = rows
        for row in rows:
            benched.rows.setdefault((row.query_id, row.answer_index), {}).setdefault(row.system, []).append(row)
    return benched


@functools.lru_cache(maxsize=FILES_HELD)
def _load(path: Path, changed_ns: int, size: int) -> tuple[AnswerRow, ...]:
    return tuple(load_rows(path))


def contradicts(row: AnswerRow) -> bool:
    """Return whether the reward model's score is two points or more from the judge's."""
    return row.score is not None and row.model_score is not None and abs(row.score - row.model_score) >= CONTRADICTION


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the routes of the page and of its data."""

    def show(request: Request) -> Response:
        address = request.query_params.get("run", "")
        run = studio.folders.path(address)
        problems = [*read_bench(run).problems, *filter(None, [read_turns(studio.folders, run)[1]])]
        return studio.run_page(request, "answers.html.j2", address, problems)

    def answers(request: Request) -> Response:
        return json_response(answers_view(studio, request.query_params.get("run", "")))

    return [Route(ANSWERS, show), Route(API, answers)]


def answers_view(studio: Studio, address: str) -> dict[str, Any]:
    """Return every question with the answers of all systems; in a file of its own the chosen ones."""
    run = studio.folders.path(address)
    benched = read_bench(run)
    systems, judges = benched.systems, benched.judges
    contrasts = choose_contrasts([rows[0] for by_system in benched.rows.values() for rows in by_system.values()])
    shown = contrasts
    if studio.export and studio.export.contrasts:
        shown = shown[: studio.export.contrasts]
        played = (RunFiles(studio.folders, address).json(REPORT) or {}).get("played")
        systems = [name for name in systems if isinstance(played, list) and name in played] or systems
    questions: dict[str, dict[str, Any]] = {}
    turns, _ = read_turns(studio.folders, run)
    for (query_id, _), by_system in benched.rows.items():
        first = next(iter(by_system.values()))[0]
        if first.contrast_id not in shown:
            continue
        if query_id not in questions:
            facts = {"query": query_id, "contrast": first.contrast_id, "category": first.category, "style": first.style}
            before = turns_view(studio.folders, run, turns.get(query_id, ()))
            questions[query_id] = {**facts, "text": first.question_text, "before": before, "answers": []} | clip_address(
                studio.folders, run, first.question_clip
            )
        answers = [_answer(studio, run, by_system[system], judges) for system in systems if system in by_system]
        questions[query_id]["answers"] += answers
    return {
        "judges": judges,
        "systems": systems,
        "policies": [BEFORE, AFTER],
        "contradiction": CONTRADICTION,
        "contrasts": [len(shown), len(contrasts)],
        "questions": list(questions.values()),
    }


def _answer(studio: Studio, run: Path, rows: Sequence[AnswerRow], judges: Sequence[str]) -> dict[str, Any]:
    """Return an answer with its score, or the reason for its absence, by each judge; None for a judge that was not asked."""
    first, by_judge = rows[0], {row.judge: row for row in rows}
    silent = {"clip": "", "problem": "this system gave no sound"}
    verdicts = [
        {"score": row.score, "reason": row.reason if row.unscored is None else row.unscored} if row is not None else None
        for row in map(by_judge.get, judges)
    ]
    return {
        "system": first.system,
        "n": first.answer_index,
        "text": first.text_stream,
        "transcript": first.transcript,
        "tone": first.tone,
        "duration_s": first.duration_s,
        "model": next((row.model_score for row in rows if row.model_score is not None), None),
        "verdicts": verdicts,
    } | (clip_address(studio.folders, run, first.answer_clip) if first.duration_s else silent)


class InContrast(Protocol):
    """A question or an answer of a contrast."""

    @property
    def contrast_id(self) -> str:
        """Its contrast."""

    @property
    def category(self) -> str | None:
        """Its category."""


def choose_contrasts(rows: Sequence[InContrast]) -> list[str]:
    """Return all contrasts, taken from the categories in turn, so that the first ones are of all."""
    category_of = {row.contrast_id: row.category for row in reversed(rows)}
    queues = [
        [key for key in dict.fromkeys(row.contrast_id for row in rows) if category_of[key] == category]
        for category in dict.fromkeys((*CATEGORIES, *category_of.values()))
    ]
    return [key for turn in zip_longest(*queues) for key in turn if key is not None]


def sounds_of(view: Mapping[str, Any]) -> Iterator[str]:
    """Yield the addresses of the clips that a view of answers plays."""
    for question in view["questions"]:
        yield from (part["clip"] for part in (*question["before"], question, *question["answers"]) if part["clip"])
