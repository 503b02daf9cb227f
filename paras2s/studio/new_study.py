"""A study of a run's benched systems, made in the browser: the same as `paras2s study new RUN`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.errors import ConfigError, ParaS2SError, StorageError
from paras2s.run import RESOLVED
from paras2s.studies.forms import load_forms
from paras2s.studies.store import check_annotator, make_study
from paras2s.studies.study import as_study
from paras2s.studio.annotation.run_items import items_of_run
from paras2s.studio.folders import Folders
from paras2s.studio.web import Studio, json_response, posted_record

Name = Annotated[str, Field(min_length=1, max_length=80)]


class _Posted(BaseModel):
    """The study to make: `name` is its folder, beside the run's; `limit` None takes all questions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    run: str
    kind: Literal["pair", "single"]
    systems: tuple[Name, ...]
    people: tuple[Name, ...] = Field((), max_length=50)
    name: Name
    title: str = Field("", max_length=120)
    limit: int | None = Field(None, ge=1)


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the route that makes a study."""

    async def make(request: Request) -> Response:
        posted = await posted_record(request, _Posted)
        try:
            return json_response({"address": await run_in_threadpool(make_run_study, studio.folders, posted)})
        except StorageError as error:
            return json_response({"error": str(error)}, 507)
        except ParaS2SError as error:
            return json_response({"error": str(error).removeprefix("--")}, 400)

    return [Route("/api/studies", make, methods=["POST"])]


def make_run_study(folders: Folders, posted: _Posted) -> str:
    """Make a study beside its run; return its address. Raises ConfigError: no folder, or wrong systems. DataError: no bench."""
    number = posted.run.partition("/")[0]
    root, out = folders.path(number), folders.path(number, posted.name)
    if (root / RESOLVED).is_file():
        raise ConfigError("a study is a folder beside its run: start the studio on the folder above (paras2s studio runs)")
    if out.parent != root:
        raise ConfigError(f"name {posted.name!r}: give the name of one new folder, without a slash")
    if out.exists():
        raise ConfigError(f"name {posted.name!r}: is there already; give another")
    people = list(dict.fromkeys(posted.people))
    for person in people:
        check_annotator(person)
    run = folders.path(posted.run)
    items = items_of_run(run, posted.kind, posted.systems, posted.limit, seed=0)
    title = posted.title.strip() or load_forms()[posted.kind].title
    store = make_study(out, as_study(posted.kind, title, 0, items), run)
    for person in people:
        store.add_annotator(person)
    return f"{number}/{posted.name}"
