"""Studies with people: the list, a study's overview with its results, and the page that annotators work on.

An annotator's pages know the link's secret alone: neither the study's folder nor a system's name reaches them.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from paras2s.errors import ConfigError, DataError, ParaS2SError, StorageError
from paras2s.run import RESOLVED
from paras2s.studies.clicks import Action, Click, Progress, as_shown, clock_ms, missing, other_side
from paras2s.studies.store import DATABASE, Annotator, ClickRefusedError, StudyStore
from paras2s.studies.study import CLIP_SUFFIXES
from paras2s.studio.annotation.report import agreement_rows, judge_cells
from paras2s.studio.annotation.results import Results, results, summaries
from paras2s.studio.folders import MAX_DEPTH, Folders, is_text
from paras2s.studio.web import Studio, json_response, posted_record
from paras2s.utils.io import path_inside

MAX_NAME_CHARACTERS = 200
# A study can be made here of the runs that changed last; `paras2s study new` takes any.
MOST_RUNS = 200


class _Posted(BaseModel):
    """A click as a page sends it: `position` is in the annotator's order, and sides are those on the screen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str = Field(min_length=1, max_length=80)
    position: int = Field(alias="place")
    action: Action
    name: str = Field(default="", max_length=MAX_NAME_CHARACTERS)
    # A comment that is too long is refused by the study, in words for the annotator.
    value: str = ""
    view: str = Field(default="", max_length=80)
    shown_ms: Any = None


class _Added(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str


@dataclass(frozen=True)
class FoundStudy:
    """A study below the given folders: its address there and its folder."""

    address: str
    path: Path


class Studies:
    """The studies below the given folders. An opened study stays open as long as it and its items are the same."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        # A study may be deleted and made again in its place.
        self._stores: dict[Path, StudyStore] = {}
        self._of_token: dict[str, Path] = {}
        self._results: dict[Path, tuple[StudyStore, int, Results]] = {}
        self._lock = threading.Lock()

    def found(self) -> list[FoundStudy]:
        """Return all studies, by address."""
        studies: dict[Path, FoundStudy] = {}
        for number, root in enumerate(self._folders.roots):
            for path in _find(root, MAX_DEPTH):
                below = path.relative_to(root).as_posix()
                studies.setdefault(path, FoundStudy(str(number) if below == "." else f"{number}/{below}", path))
        return sorted(studies.values(), key=lambda study: study.address)

    def open(self, path: Path) -> StudyStore:
        """Open a study's store. Raises DataError: no study, or an unreadable study."""
        with self._lock:
            known = self._stores.get(path)
        if known is not None and known.is_current():
            return known
        store = StudyStore(path)
        with self._lock:
            self._stores[path] = store
        return store

    def at(self, address: str) -> StudyStore:
        """Return the study at an address."""
        return self.open(self._folders.path(address))

    def results_at(self, address: str) -> Results:
        """Return the results of the study at an address; they are measured again only after a new click."""
        store = self.at(address)
        clicks = store.count_clicks()
        known = self._results.get(store.folder)
        if known is None or known[0] is not store or known[1] != clicks:
            known = (store, clicks, results(store))
            self._results[store.folder] = known
        return known[2]

    def of_annotator(self, token: str) -> tuple[StudyStore, Annotator]:
        """Return the study and the annotator of a link. Raises HTTPException: 404 no such link, 503 an unreadable study."""
        known, unreadable = self._of_token.get(token), ""
        for path in itertools.chain([known] if known else [], (study.path for study in self.found())):
            try:
                store = self.open(path)
                annotator = store.find(token)
            except DataError as error:
                # A damaged study hides no other; but it may be the link's own, and be back in a moment.
                unreadable = str(error)
                continue
            if annotator is not None:
                self._of_token[token] = path
                return store, annotator
        if unreadable:
            raise HTTPException(503, "The study of this link cannot be read at the moment.")
        raise HTTPException(404, "There is no such link; ask for yours again.")


def _find(folder: Path, depth: int) -> Iterator[Path]:
    """Study folders in and below a folder. Links are not followed; runs and studies are not searched."""
    if (folder / DATABASE).is_file():
        yield folder
        return
    if depth == 0 or (folder / RESOLVED).is_file():
        return
    try:
        inner = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in inner:
        if not entry.name.startswith("."):
            yield from _find(Path(entry.path), depth - 1)


def state_of(store: StudyStore, annotator: Annotator, progress: Progress) -> dict[str, Any]:
    """Return the part of a study that its annotator's page shows: the first open item in their order; no system's name."""
    order = store.order(annotator)
    closed = [progress.item(slot.item).closed for slot in order]
    shown = [not store.study.items[slot.item].retired for slot in order]
    done = sum(is_closed and other for is_closed, other in zip(closed, shown, strict=True))
    counts = {"total": sum(shown), "done": done, "can_undo": progress.can_undo}
    if done == sum(shown):
        return {**counts, "place": None}
    at = next(at for at in range(len(order)) if shown[at] and not closed[at])
    item, state = store.study.items[order[at].item], as_shown(progress.item(order[at].item), order[at].flipped)
    return {
        **counts,
        "place": at,
        "text": item.question_text,
        "context": item.context,
        "clips": list(item.clips()),
        "choices": state.choices,
        "plays": state.plays,
        "comment": state.comment,
        "missing": missing(store.form_of(order[at].item), state),
        "picked": item.picked,
    }


def _add_click(store: StudyStore, annotator: Annotator, posted: _Posted) -> Response:
    order = store.order(annotator)
    if not 0 <= posted.position < len(order):
        raise HTTPException(400, "place: there is no such item")
    slot = order[posted.position]
    name = other_side(posted.name, slot.flipped) if posted.action == "play" else posted.name
    value = other_side(posted.value, slot.flipped) if posted.action == "choose" else posted.value
    click = Click(posted.id, slot.item, posted.action, name, value, posted.view, clock_ms(posted.shown_ms))
    try:
        return json_response({"state": state_of(store, annotator, store.add_click(annotator.name, click))})
    except ClickRefusedError as error:
        state = state_of(store, annotator, store.progress(annotator.name))
        return json_response({"error": str(error), "state": state}, 409)
    except StorageError as error:
        # The page keeps the click and sends it again.
        return json_response({"error": str(error)}, 507)


def _overview(studies: Studies, study: FoundStudy) -> dict[str, Any]:
    """Return a line of the list; a study that cannot be opened has its reason instead."""
    try:
        store = studies.open(study.path)
        people = store.annotators()
        done = [sum(state.closed for state in store.progress(annotator.name).items.values()) for annotator in people]
    except ParaS2SError as error:
        return {"address": study.address, "error": str(error)}
    total = len(store.study.items)
    return {
        "address": study.address,
        "title": store.study.title,
        "kind": store.study.kind,
        "items": total,
        "people": len(people),
        "done": sum(done),
        "of": total * len(people),
    }


def _clip(store: StudyStore, annotator: Annotator, place_number: int, name: str) -> Response:
    order = store.order(annotator)
    if place_number >= len(order):
        raise HTTPException(404, "There is no such item.")
    slot = order[place_number]
    clip = store.study.items[slot.item].clips().get(other_side(name, slot.flipped))
    path = None if clip is None else path_inside(store.folder, clip)
    if path is None or path.suffix.lower() not in CLIP_SUFFIXES:
        raise HTTPException(404, "There is no such clip.")
    if not path.is_file():
        raise HTTPException(404, "This clip is missing in the study's folder.")
    # The address says nothing about the file, and the file's header nothing about the system.
    headers = {"Cache-Control": "no-store", "Content-Disposition": "inline"}
    return FileResponse(path, media_type=CLIP_SUFFIXES[path.suffix.lower()], headers=headers)


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the pages and their data."""
    studies = Studies(studio.folders)

    def list_studies(request: Request) -> Response:
        rows = [_overview(studies, study) for study in studies.found()]
        runs = [run for run in studio.folders.runs() if is_text(run.address)]
        return studio.page(request, "studies.html.j2", studies=rows, runs=runs[:MOST_RUNS])

    def show_study(request: Request) -> Response:
        address = request.path_params["address"]
        store = studies.at(address)
        return studio.page(
            request,
            "study.html.j2",
            address=address,
            folder=str(store.folder),
            study=store.study,
            form=store.form,
            links={who.name: str(request.url.replace(path=f"/annotate/{who.token}", query="")) for who in store.annotators()},
            people=summaries(store),
            gold=sum(bool(item.gold) for item in store.study.items),
        )

    def show_results(request: Request) -> Response:
        results = studies.results_at(request.path_params["address"])
        template = "study_results.html.j2"
        return studio.page(request, template, results=results, agreement_rows=agreement_rows, judge_cells=judge_cells)

    async def add_annotator(request: Request) -> Response:
        added = await posted_record(request, _Added)
        try:
            await run_in_threadpool(studies.at(request.path_params["address"]).add_annotator, added.name)
        except (ConfigError, StorageError) as error:
            return json_response({"error": str(error)}, 400)
        return json_response({})

    return [
        Route("/studies", list_studies),
        Route("/study/{address:path}", show_study),
        Route("/study-results/{address:path}", show_results),
        Route("/api/study/{address:path}", add_annotator, methods=["POST"]),
        *annotator_routes(studio, studies),
    ]


def annotator_routes(studio: Studio, studies: Studies) -> list[BaseRoute]:
    """Return an annotator's page and its data; each needs the secret of the annotator's link."""

    def annotate(request: Request) -> Response:
        store, _ = studies.of_annotator(request.path_params["token"])
        return studio.page(request, "annotate.html.j2", title=store.study.title, form=store.form)

    def read_state(request: Request) -> Response:
        store, annotator = studies.of_annotator(request.path_params["token"])
        state = state_of(store, annotator, store.progress(annotator.name))
        return json_response({"form": store.form.model_dump(), "state": state})

    async def post_click(request: Request) -> Response:
        posted = await posted_record(request, _Posted)
        store, annotator = await run_in_threadpool(studies.of_annotator, request.path_params["token"])
        return await run_in_threadpool(_add_click, store, annotator, posted)

    def send_clip(request: Request) -> Response:
        store, annotator = studies.of_annotator(request.path_params["token"])
        return _clip(store, annotator, request.path_params["place"], request.path_params["name"])

    return [
        Route("/annotate/{token}", annotate),
        Route("/annotate/{token}/clip/{place:int}/{name}", send_clip),
        Route("/api/annotate/{token}", read_state),
        Route("/api/annotate/{token}/click", post_click, methods=["POST"]),
    ]
