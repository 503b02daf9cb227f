"""The rollouts that a run kept: a step group by group, an answer with its sound and tokens, and a query through training."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np
import pyarrow.parquet as pq
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.audio.clip import encode_clip
from paras2s.errors import DataError
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.policy import special_ids
from paras2s.rollout.store import (
    FOLDER,
    INDEX,
    IndexedGroup,
    KeptAnswer,
    KeptTokens,
    read_answers,
    read_index,
    read_tokens,
    step_path,
    step_summary,
    steps_kept,
)
from paras2s.run import flatten
from paras2s.studio.dialogues import read_turns, turns_view
from paras2s.studio.folders import OutsideError
from paras2s.studio.run_state import RunFiles
from paras2s.studio.web import Needed, Studio, integer_of, json_response
from paras2s.types import AUDIO, TEXT
from paras2s.utils.io import read_json, reading

# Steps that are shown of a query through training, evenly, with the first and the last.
STRIP_STEPS = 24
# Decoded sounds that are held, of up to 70 kB each for the embedded policy.
SOUNDS_HELD = 512

T = TypeVar("T")
Groups = dict[int, list[IndexedGroup]]


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the routes of the page, its JSON, and the sound of one answer."""

    def show(request: Request) -> Response:
        address = request.query_params.get("run", "")
        files = RunFiles(studio.folders, address)
        has_rollouts = files.path(FOLDER) is not None
        return studio.run_page(request, "rollouts.html.j2", address, files.problems, has_rollouts=has_rollouts)

    def steps(request: Request) -> Response:
        folder = rollouts_folder(studio, request)
        index, problem = index_of(folder)
        summaries = [step_summary(step, index.get(step, ())) for step in steps_shown(studio, folder)]
        noise = noise_of(RunFiles(studio.folders, request.query_params["run"]).config())
        return json_response({"steps": summaries, "problem": problem, "noise": noise})

    def step(request: Request) -> Response:
        folder, number = rollouts_folder(studio, request), integer_of(request, "step")
        answers = read_answers(step_path(folder, number))
        firsts = first_means(index_of(folder)[0])
        questions = questions_of(RunFiles(studio.folders, request.query_params["run"]))
        groups = [
            {
                "group": group,
                "question": questions(rows[0].query_id),
                "gain": gain_of(rows, firsts.get(rows[0].query_id)),
                "answers": [vars(row) for row in rows],
            }
            for group, rows in by_group(answers).items()
        ]
        return json_response({"step": number, "groups": groups})

    def answer(request: Request) -> Response:
        folder = rollouts_folder(studio, request)
        files = RunFiles(studio.folders, request.query_params["run"])
        tokens = read_tokens(
            step_path(folder, integer_of(request, "step")), integer_of(request, "group"), integer_of(request, "answer")
        )
        return json_response(token_view(tokens, pieces_of(files)))

    def query(request: Request) -> Response:
        folder, query_id = rollouts_folder(studio, request), request.query_params.get("query", "")
        places = places_of(index_of(folder)[0], query_id)
        question = questions_of(RunFiles(studio.folders, request.query_params["run"]))(query_id)
        return json_response(
            {"question": question, "all": len(places), "steps": [strip_step(folder, *key) for key in evenly(places)]}
        )

    def sound(request: Request) -> Response:
        path = step_path(rollouts_folder(studio, request), integer_of(request, "step"))
        changed_ns = path.stat().st_mtime_ns if path.is_file() else 0
        group, answer = integer_of(request, "group"), integer_of(request, "answer")
        # A run that was started again has other answers at the same place.
        headers = {"Cache-Control": "private, no-cache", "ETag": f'"{changed_ns}-{group}-{answer}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(decoded(path, changed_ns, group, answer), media_type="audio/wav", headers=headers)

    return [
        Route("/rollouts", show),
        Route("/api/rollouts", steps),
        Route("/api/rollouts/step", step),
        Route("/api/rollouts/answer", answer),
        Route("/api/rollouts/query", query),
        Route("/sound", sound),
    ]


def noise_of(config: dict[str, Any]) -> float:
    """Return the judge's noise in points of reward, `align.sampling.flat_std`; 0 where the settings do not say."""
    value = flatten(config).get("align.sampling.flat_std")
    return float(value) if isinstance(value, int | float) else 0.0


def rollouts_folder(studio: Studio, request: Request) -> Path:
    """Return the folder of a run's rollouts. Raises DataError: it kept none. OutsideError: it is not in the given folders."""
    return folder_at(studio, request.query_params.get("run", ""))


def folder_at(studio: Studio, address: str) -> Path:
    """Return the folder of the rollouts of a run's address. Raises DataError: it kept none. OutsideError: it is outside."""
    folder = studio.folders.path(address, FOLDER)
    if not folder.is_dir():
        raise DataError("this run kept no rollouts; align.keep_rollouts_every says which steps are kept")
    with os.scandir(folder) as entries:
        if link := next((entry.name for entry in entries if entry.is_symlink()), None):
            raise OutsideError(f"{FOLDER}/{link}: a link; rollouts are read from files alone")
    return folder


def steps_shown(studio: Studio, folder: Path) -> list[int]:
    """Return the kept steps; in an export a few of them."""
    steps = list(steps_kept(folder))
    return studio.export.choose_steps(steps) if studio.export else steps


def needed(studio: Studio, address: str) -> Iterator[Needed]:
    """Yield the requests of a run's page of rollouts: of the shown steps all of it, and each query through training."""
    try:
        folder = folder_at(studio, address)
    except DataError:
        return
    index = index_of(folder)[0]
    groups = functools.cache(lambda step: _groups_at(folder, step))
    queries: dict[str, None] = {}
    for step in steps_shown(studio, folder):
        yield Needed(_address("/api/rollouts/step", address, step=step))
        for rows in groups(step).values():
            queries[rows[0].query_id] = None
            for row in rows:
                answer_key = {"step": step, "group": row.group, "answer": row.answer}
                yield Needed(_address("/api/rollouts/answer", address, **answer_key))
                yield Needed(_address("/sound", address, **answer_key), drawn=True)
    for query_id in queries:
        yield Needed(_address("/api/rollouts/query", address, query=query_id))
        for step, group in evenly(places_of(index, query_id)):
            for row in best_and_worst(groups(step).get(group, [])):
                yield Needed(_address("/sound", address, step=step, group=group, answer=row.answer))
    with contextlib.suppress(DataError):
        question = questions_of(RunFiles(studio.folders, address))
        for about in map(question, queries):
            if about["clip"]:
                yield Needed(_address("/clip", address, name=about["clip"]))
            yield from (Needed(turn["clip"]) for turn in about["before"] if turn["clip"])


def _address(path: str, run: str, **more: str | int) -> str:
    return f"{path}?{urlencode({'run': run, **more})}"


def _groups_at(folder: Path, step: int) -> dict[int, list[KeptAnswer]]:
    """Return a step's answers by group; {} if it cannot be read, which its page says."""
    try:
        return by_group(read_answers(step_path(folder, step)))
    except DataError:
        return {}


def best_and_worst(rows: Sequence[KeptAnswer]) -> list[KeptAnswer]:
    """Return the answers of a group that a query through training plays; the first if fewer than two have a reward."""
    ranked = sorted((row for row in rows if row.reward is not None), key=lambda row: -(row.reward or 0.0))
    return [ranked[0], ranked[-1]] if len(ranked) > 1 else list(rows[:1])


def index_of(folder: Path) -> tuple[Groups, str | None]:
    """Return the index, and a message in place of a broken index; the steps are shown all the same."""
    path = folder / INDEX
    try:
        stat = path.stat()
    except OSError:
        return {}, None
    try:
        return _read_index(folder, stat.st_mtime_ns, stat.st_size), None
    except DataError as error:
        return {}, str(error)


@functools.lru_cache(maxsize=8)
def _read_index(folder: Path, changed_ns: int, size: int) -> Groups:
    return read_index(folder)


def by_group(answers: Sequence[KeptAnswer]) -> dict[int, list[KeptAnswer]]:
    """Return answers by group, in their order."""
    groups: dict[int, list[KeptAnswer]] = {}
    for answer in answers:
        groups.setdefault(answer.group, []).append(answer)
    return groups


def first_means(index: Groups) -> dict[str, tuple[int, float]]:
    """Return each query's first step and its answers' mean reward in that step: hardly more than the warm-up."""
    firsts: dict[str, tuple[int, float]] = {}
    for step, groups in index.items():
        for group in groups:
            if group.mean is not None:
                firsts.setdefault(group.query_id, (step, group.mean))
    return firsts


def gain_of(rows: Sequence[KeptAnswer], first: tuple[int, float] | None) -> float | None:
    """Return the mean reward of a group over that of the query's first group; None if one of them is unknown."""
    scored = [row.reward for row in rows if row.reward is not None]
    return None if first is None or not scored else float(np.mean(scored)) - first[1]


def places_of(index: Groups, query_id: str) -> list[tuple[int, int]]:
    """Return every step and group of a query."""
    return [(step, group) for step, groups in index.items() for group, entry in enumerate(groups) if entry.query_id == query_id]


def evenly(places: Sequence[T], most: int = STRIP_STEPS) -> list[T]:
    """Return at most `most` of them, evenly, with the first and the last; of a single one the last."""
    if len(places) <= most:
        return list(places)
    return [places[int(at)] for at in np.linspace(len(places) - 1, 0, most).round()][::-1]


def strip_step(folder: Path, step: int, group: int) -> dict[str, Any]:
    """Return a query's group at one step, or the reason why it cannot be shown."""
    try:
        rows = by_group(read_answers(step_path(folder, step))).get(group, [])
    except DataError as error:
        return {"step": step, "group": group, "problem": str(error), "answers": []}
    return {"step": step, "group": group, "problem": None, "answers": [asdict(row) for row in rows]}


def questions_of(files: RunFiles) -> Callable[[str], dict[str, Any]]:
    """Return a function from a query's id to its words, style, clip and the turns before it; unknown facts are None."""
    path, table = files.path("data/queries.parquet"), {}
    if path is not None:
        table = _read_questions(path, path.stat().st_mtime_ns)
    run = files.folders.path(files.address)
    turns, _ = read_turns(files.folders, run)

    def question(query_id: str) -> dict[str, Any]:
        row = table.get(query_id, {})
        clip = f"data/{row['clip']}" if row.get("clip") else None
        words = row.get("text") or row.get("transcript")
        about = {key: row.get(key) for key in ("style", "category")}
        before = turns_view(files.folders, run, turns.get(query_id, ()))
        return {"id": query_id, "text": words, **about, "clip": clip, "before": before}

    return question


@functools.lru_cache(maxsize=8)
def _read_questions(path: Path, changed_ns: int) -> dict[str, dict[str, Any]]:
    with reading("data/queries.parquet"):
        table = pq.read_table(path, columns=["id", "clip", "transcript", "text", "style", "category"])
    return {row["id"]: row for row in table.to_pylist()}


def pieces_of(files: RunFiles) -> tuple[str, ...]:
    """Return the embedded policy's word pieces and special tokens by id; () for another policy, shown by token number."""
    path = files.path("sft/vocabulary.json")
    if path is None:
        return ()
    try:
        pieces = read_json(path)
    except DataError:
        return ()
    if not isinstance(pieces, list):
        return ()
    return tuple(map(str, pieces)) + tuple(f"<{name.removesuffix('_id')}>" for name in special_ids(len(pieces)))


def token_view(tokens: KeptTokens, pieces: Sequence[str]) -> dict[str, Any]:
    """Return the tokens of an answer by step: each sampled text token with its log-prob, and the audio tokens' mean."""
    steps: list[dict[str, Any]] = []
    for ids, logprobs, streams in zip(tokens.tokens, tokens.logprobs, tokens.streams, strict=True):
        for row, logp, stream in zip(ids, logprobs, streams, strict=True):
            sampled = ~np.isnan(logp)
            text, audio = sampled & (stream == TEXT), sampled & (stream == AUDIO)
            steps.append(
                {
                    "text": [
                        {"token": pieces[row[n]] if row[n] < len(pieces) else f"#{row[n]}", "logprob": float(logp[n])}
                        for n in np.flatnonzero(text)
                    ],
                    "audio": float(logp[audio].mean()) if audio.any() else None,
                }
            )
    known = tokens.code_format == Codec2Pairs.version
    return {"steps": steps, "step_s": 1 / Codec2Pairs.frame_rate_hz if known else None, "codec": tokens.code_format}


_DECODING = threading.Lock()


@functools.lru_cache(maxsize=SOUNDS_HELD)
def decoded(path: Path, changed_ns: int, group: int, answer: int) -> bytes:
    """Return the sound of an answer as a WAV file, from its codes. Raises DataError: no answer, or a large model's codec."""
    tokens = read_tokens(path, group, answer)
    if tokens.code_format != Codec2Pairs.version:
        raise DataError(
            f"these are codes of {tokens.code_format}, which only the policy's own decoder makes audible; "
            "`validation/` has clips of this run"
        )
    if not len(tokens.codes):
        raise DataError("the answer is empty: the policy ended it before it began")
    with _DECODING:
        return encode_clip(Codec2Pairs().decode(tokens.codes))
