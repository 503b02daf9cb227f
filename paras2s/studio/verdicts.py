"""Verdicts: the files that hold them, and one verdict with all that it was made from."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.bench.paras2s.gain import AFTER, BEFORE
from paras2s.errors import AssetError, AudioError, DataError
from paras2s.studio.answers import read_bench
from paras2s.studio.clips import TYPES
from paras2s.studio.folders import OutsideError
from paras2s.studio.verdict_files import find_files, read_rows, run_of
from paras2s.studio.verdict_view import Row, group_of, judgements_of, shown_answers, shown_row, title_of
from paras2s.studio.web import Needed, Studio, integer_of, json_response

# What can be measured while one waits; words take a model, and are asked for apart.
EXTRACTORS = ("pitch", "loudness")
MEASURED_CLIPS = 256
# Whisper takes about a tenth of a clip's length on one core.
LONGEST_RECOGNISED_S = 120.0
PER_PART = 100
# Rows of the same item that may be shown beside a single answer.
MOST_PEERS = 50
# The systems that are shown side by side unless the address names others.
POLICIES = (BEFORE, AFTER)


def measure(path: Path) -> dict[str, Any]:
    """Return a clip's quickly measured fields: value, unit, confidence, or why none. Raises AudioError: it is unreadable."""
    return dict(_measure(path, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=MEASURED_CLIPS)
def _measure(path: Path, changed_ns: int) -> dict[str, Any]:
    from paras2s.audio.clip import read_clip
    from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
    from paras2s.types import Absent

    clip = read_clip(path)
    (blueprint,) = build_blueprints([clip], make_extractors(EXTRACTORS))
    fields = [
        {"name": key.rpartition(".")[2], "absent": feature.reason}
        if isinstance(feature, Absent)
        else {"name": key.rpartition(".")[2], "value": feature.value, "unit": feature.unit, "confidence": feature.confidence}
        for key, feature in blueprint.fields.items()
    ]
    return {"duration_s": clip.duration_s, "fields": fields}


def recognise(path: Path) -> dict[str, Any]:
    """Return a clip's recognised words with start, end and probability. Raises AudioError: over two minutes. AssetError."""
    return dict(_recognise(path, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=MEASURED_CLIPS)
def _recognise(path: Path, changed_ns: int) -> dict[str, Any]:
    from paras2s.audio.asr import transcribe
    from paras2s.audio.clip import read_clip

    clip = read_clip(path, max_duration_s=LONGEST_RECOGNISED_S)
    (transcript,) = transcribe([clip], timed=True)
    words = [
        {"text": word.text.strip(), "start_s": word.start_s, "end_s": min(word.end_s, clip.duration_s), "p": word.probability}
        for word in transcript.words
    ]
    return {"duration_s": clip.duration_s, "words": words}


def verdict_address(run: str, key: tuple[str, int], systems: list[str]) -> str:
    """Return the address of a benched question's page."""
    return "/verdict?" + urlencode({"run": run, "query": key[0], "n": key[1], "system": systems}, doseq=True)


def side_by_side(systems: list[str]) -> list[str]:
    """Return the systems that are shown first: the policy and its warm-up where both answered, else the first two."""
    return list(POLICIES) if set(POLICIES) <= set(systems) else systems[:2]


def row_address(run: str, file: str, row: int) -> str:
    """Return the address of the page of a row of a file."""
    return "/verdict?" + urlencode({"run": run, "file": file, "row": row})


def needed(studio: Studio, address: str) -> Iterator[Needed]:
    """Yield the requests of a run's verdicts: each clip and what is measured on it; and the policy beside its warm-up."""
    clips: dict[str, None] = {}
    for key, by_system in read_bench(studio.folders.path(address)).rows.items():
        yield Needed(verdict_address(address, key, side_by_side(list(by_system))), page=True)
        for rows in by_system.values():
            clips[rows[0].question_clip] = None
            if rows[0].duration_s:
                clips[rows[0].answer_clip] = None
    folder = studio.folders.path(address)
    for name in filter(None, clips):
        try:
            # As the page of a verdict names its clips, which may lie anywhere in the given folders.
            root, below = studio.folders.locate(folder / name)
        except OutsideError:
            continue
        query = urlencode({"run": root, "name": below})
        yield Needed(f"/clip?{query}", drawn=True)
        yield Needed(f"/api/measured?{query}")


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the routes of the files of verdicts, a file's rows, a verdict, and a clip's measurements."""
    return [
        Route("/verdicts", functools.partial(show_files, studio)),
        Route("/verdict", functools.partial(show_verdict, studio)),
        Route("/api/measured", functools.partial(measurements, studio)),
        Route("/api/words", functools.partial(words_in_place, studio)),
    ]


def show_files(studio: Studio, request: Request) -> Response:
    """Show the list of files, or the rows of one of them."""
    if not request.query_params.get("file"):
        files, complete = find_files(studio.folders)
        return studio.page(request, "verdict_files.html.j2", files=files, complete=complete)
    address, file, rows = _file(studio, request)
    query = request.query_params.get("find", "").strip()
    places = [index for index, row in enumerate(rows) if query.lower() in _line(row).lower()]
    parts = max(1, -(-len(places) // PER_PART))
    part = min(integer_of(request, "part", 0), parts - 1)
    shown = places[part * PER_PART : (part + 1) * PER_PART]
    return studio.page(
        request,
        "verdict_rows.html.j2",
        address=address,
        file=file,
        rows=[(row_address(address, file, index), title_of(rows[index]), judgements_of(rows[index])[-1]) for index in shown],
        total=len(places),
        part=part,
        part_count=parts,
        find=query,
    )


def _line(row: Row) -> str:
    """Return the words of a row that a search looks through."""
    last = judgements_of(row)[-1]
    return " ".join((title_of(row), last.judge, last.outcome, last.text))


def _file(studio: Studio, request: Request) -> tuple[str, str, tuple[dict[str, Any], ...]]:
    address, file = request.query_params.get("run", ""), request.query_params.get("file", "")
    path = studio.folders.path(address, file)
    if path.suffix != ".jsonl":
        raise DataError(f"{file!r}: not a file of verdicts")
    return address, file, read_rows(path)


def show_verdict(studio: Studio, request: Request) -> Response:
    """Show one row of a file of verdicts, or a benched question with two systems' answers."""
    return _show_row(studio, request) if request.query_params.get("file") else _show_benched(studio, request)


def _show_row(studio: Studio, request: Request) -> Response:
    address, file, rows = _file(studio, request)
    at, other = integer_of(request, "row"), request.query_params.get("with")
    folder = studio.folders.path(address, file).parent
    beside = integer_of(request, "with") if other else None
    if at >= len(rows) or (beside is not None and beside >= len(rows)):
        raise DataError(f"{file!r} has {len(rows)} verdicts; there is no number {max(at, beside or 0) + 1}")
    shown = shown_row(studio.folders, folder, rows[at])
    sides = list(shown.sides)
    if beside is not None and len(sides) == 1:
        sides += shown_row(studio.folders, folder, rows[beside]).sides[:1]
    group = group_of(rows[at]) if len(shown.sides) == 1 else None
    peers = [index for index, row in enumerate(rows) if group is not None and index != at and group_of(row) == group]
    near = {"previous": at - 1 if at else None, "next": at + 1 if at + 1 < len(rows) else None}
    values: dict[str, Any] = dict(
        page=shown,
        sides=sides,
        back=("/verdicts?" + urlencode({"run": address, "file": file}), file),
        fields={"run": address, "file": file, "row": at},
        choices=[("With", "with", [("", "nothing"), *((str(n), _peer(rows[n], n)) for n in peers[:MOST_PEERS])], other or "")]
        if peers
        else [],
        near={way: row_address(address, file, index) for way, index in near.items() if index is not None},
    )
    run = run_of(studio.folders, address, file)
    return (
        studio.page(request, "verdict.html.j2", **values)
        if run is None
        else studio.run_page(request, "verdict.html.j2", run, **values)
    )


def _peer(row: Row, index: int) -> str:
    judgement, system = judgements_of(row)[-1], row.get("system")
    return f"{index + 1}: {system if isinstance(system, str) else judgement.judge}, {judgement.outcome}"


def _show_benched(studio: Studio, request: Request) -> Response:
    address = request.query_params.get("run", "")
    run = studio.folders.path(address)
    benched = read_bench(run)
    key = (request.query_params.get("query", ""), integer_of(request, "n", 0))
    by_system = benched.rows.get(key)
    if by_system is None:
        raise DataError(f"{key[0]!r}, answer {key[1]}: the bench of {run.name} has no such question")
    chosen = [name for name in request.query_params.getlist("system") if name in by_system]
    shown = list(dict.fromkeys(chosen))[:2] or side_by_side(list(by_system))
    keys = list(benched.rows)
    at = keys.index(key)
    near = {"previous": keys[at - 1] if at else None, "next": keys[at + 1] if at + 1 < len(keys) else None}
    page = shown_answers(studio.folders, run, {name: by_system[name] for name in shown})
    names = [(name, name) for name in by_system]
    return studio.run_page(
        request,
        "verdict.html.j2",
        address,
        page=page,
        sides=page.sides,
        back=None,
        fields={"run": address, "query": key[0], "n": key[1]},
        choices=[("With" if side else "Show", "system", names, (shown[side:] or [""])[0]) for side in (0, 1)],
        near={way: verdict_address(address, neighbour, shown) for way, neighbour in near.items() if neighbour is not None},
    )


def _clip(studio: Studio, request: Request) -> Path:
    name = request.query_params.get("name", "")
    path = studio.folders.path(request.query_params.get("run", ""), name)
    if path.suffix.lower() not in TYPES or not path.is_file():
        raise DataError(f"{name!r}: no such clip")
    return path


def measurements(studio: Studio, request: Request) -> Response:
    """Pitch and loudness of a clip."""
    path = _clip(studio, request)
    try:
        return json_response(measure(path))
    except AudioError as error:
        return json_response({"error": f"{path.name!r}: {error}"}, 422)


def words_in_place(studio: Studio, request: Request) -> Response:
    """Return the recognised words of a clip, each with its times."""
    path = _clip(studio, request)
    try:
        return json_response(recognise(path))
    except (AudioError, AssetError) as error:
        return json_response({"error": f"{path.name!r}: {error}"}, 422)
