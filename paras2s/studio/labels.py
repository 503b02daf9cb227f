"""Labels that people give a run: a title, tags, notes, and whether it is archived, in one small file of its folder.

Nothing is moved or deleted: the list leaves an archived run out until it is asked for.
"""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.errors import DataError, StorageError, first_problem
from paras2s.run import RESOLVED
from paras2s.studio.folders import Folders
from paras2s.studio.web import Studio, json_response, posted_record
from paras2s.utils.io import write_json

FILE = "labels.json"
Tag = Annotated[str, Field(min_length=1, max_length=40)]


class Labels(BaseModel):
    """The labels of a run; `title` replaces the folder's name on pages, "" for none."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    title: str = Field("", max_length=120)
    tags: tuple[Tag, ...] = Field((), max_length=12)
    notes: str = Field("", max_length=10_000)
    archived: bool = False


NO_LABELS = Labels()


def read_labels(folders: Folders, address: str) -> tuple[Labels, list[str]]:
    """Return the labels of a run that is in the folders, and a message if its file cannot be read: it then has none."""
    number, _, below = address.partition("/")
    # Of ten thousand runs few have labels, and a path is resolved for those alone.
    if not os.path.lexists(f"{folders.roots[int(number)]}/{below}/{FILE}"):
        return NO_LABELS, []
    try:
        return Labels.model_validate_json(folders.path(address, FILE).read_bytes()), []
    except ValidationError as error:
        return NO_LABELS, [f"{FILE}: {first_problem(error)}; save the labels again"]
    except (DataError, OSError) as error:
        return NO_LABELS, [f"{FILE}: {error}"]


def routes(studio: Studio) -> list[BaseRoute]:
    """Return the route that keeps the labels of a run."""

    async def keep(request: Request) -> Response:
        labels, address = await posted_record(request, Labels), request.query_params.get("run", "")
        if not studio.folders.path(address, RESOLVED).is_file():
            return json_response({"error": f"{address!r}: is no run"}, 404)
        try:
            await run_in_threadpool(write_json, studio.folders.path(address, FILE), labels.model_dump(mode="json"))
        except StorageError as error:
            return json_response({"error": str(error)}, 507)
        return json_response({})

    return [Route("/api/labels", keep, methods=["POST"])]
