"""Several runs side by side: curves over each other, a diff of their configs, and results paired by question."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.bench.results import AnswerRow, load_rows
from paras2s.bench.stats import paired_difference, summarise
from paras2s.errors import DataError
from paras2s.run import flatten
from paras2s.studio.run_state import Interval, RunFiles, interval_of, read_state
from paras2s.studio.web import Studio

# More lines than distinct colours cannot be read.
MAX_RUNS = 6
SYSTEM = "aligned"


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the route that compares the runs of the query string."""

    def compare(request: Request) -> Response:
        addresses = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 2 <= len(addresses) <= MAX_RUNS:
            raise DataError(f"choose 2 to {MAX_RUNS} runs to compare; these are {len(addresses)}")
        runs = [read_state(studio.folders, address, time.time()) for address in addresses]
        files = {address: RunFiles(studio.folders, address) for address in addresses}
        results = {address: answers_of(run_files) for address, run_files in files.items()}
        answered = {address: rows for address, rows in results.items() if rows}
        return studio.page(
            request,
            "compare.html.j2",
            runs=runs,
            problems=list(dict.fromkeys(problem for run_files in files.values() for problem in run_files.problems)),
            differences=config_differences([run_files.config() for run_files in files.values()]),
            table=score_table(answered),
            questions=question_table(answered),
            judges=sorted({row.judge for rows in answered.values() for row in rows if row.judge}),
        )

    return [Route("/compare", compare)]


def answers_of(files: RunFiles) -> list[AnswerRow]:
    """Return the judged answers of a run's aligned policy; [] if there are none, and a problem if they are unreadable."""
    path = files.path(f"bench/{SYSTEM}.jsonl")
    if path is None:
        return []
    try:
        return load_rows(path)
    except DataError as error:
        files.problems.append(str(error))
        return []


def config_differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the dotted keys whose values differ, each with its value in every config; run folders differ anyway."""
    settings = [flatten(dict(config)) if config else {} for config in configs]
    keys = dict.fromkeys(key for config in settings for key in config)
    return [
        (key, [_shown(config, key) for config in settings])
        for key in keys
        if key != "run_dir" and len({repr(config.get(key, settings)) for config in settings}) > 1
    ]


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else "not set"


@dataclass(frozen=True)
class ScoreRow:
    """A run's score, and its difference from the first run on the questions that both answered, `pairs` of `questions`."""

    score: Interval | None
    scored: int
    answers: int
    difference: Interval | None
    pairs: int
    questions: int


def score_table(results: Mapping[str, Sequence[AnswerRow]]) -> dict[str, ScoreRow]:
    """Return a row for each run, by address; the first is the baseline of the others."""
    table = {}
    for index, (address, rows) in enumerate(results.items()):
        overall = summarise(rows).overall.to_json()
        first = next(iter(results.values()))
        difference = None if index == 0 else paired_difference(rows, first).difference.to_json()
        table[address] = ScoreRow(
            interval_of(overall),
            overall["n_scored"],
            overall["n_asked"],
            interval_of(difference) if difference else None,
            difference["n_scored"] if difference else 0,
            difference["n_asked"] if difference else 0,
        )
    return table


@dataclass(frozen=True)
class QuestionRow:
    """A question and its mean score in every run (None: not answered, or unscored), and how far apart they are."""

    query_id: str
    text: str
    style: str
    category: str
    clip: tuple[str, str]
    scores: tuple[float | None, ...]
    answers: tuple[tuple[tuple[str, str, str], ...], ...]
    spread: float


def question_table(results: Mapping[str, Sequence[AnswerRow]]) -> list[QuestionRow]:
    """Return a row a question, unlike answers first: `clip` (address, name), `answers` (transcript, address, name) a run."""
    first: dict[str, tuple[str, AnswerRow]] = {}
    for address, rows in results.items():
        for row in rows:
            first.setdefault(row.query_id, (address, row))
    table = []
    for query_id, (address, row) in first.items():
        own = [[row for row in rows if row.query_id == query_id] for rows in results.values()]
        scores = tuple(_mean([row.score for row in rows if row.score is not None]) for rows in own)
        known = [score for score in scores if score is not None]
        answers = tuple(
            tuple((row.transcript or row.text_stream, run_address, row.answer_clip) for row in rows)
            for run_address, rows in zip(results, own, strict=True)
        )
        spread = max(known) - min(known) if known else 0.0
        clip = (address, row.question_clip)
        table.append(QuestionRow(query_id, row.question_text, row.style, row.category, clip, scores, answers, spread))
    return sorted(table, key=lambda question: -question.spread)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
