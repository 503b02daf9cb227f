"""Sound files of the given folders, and no other kind of file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from paras2s.errors import DataError
from paras2s.studies.study import CLIP_SUFFIXES
from paras2s.studio.folders import Folders
from paras2s.studio.web import Studio

# A study measures its clips, and nothing here reads this one.
TYPES = CLIP_SUFFIXES | {".m4a": "audio/mp4"}


def routes(studio: Studio) -> list[BaseRoute]:
    """`/clip?run=ADDRESS&name=PATH`, with ranges, so that a player can seek."""

    def clip(request: Request) -> Response:
        name = request.query_params.get("name", "")
        path = studio.folders.path(request.query_params.get("run", ""), name)
        if path.suffix.lower() not in TYPES:
            raise DataError(f"{name!r}: not a sound file")
        if not path.is_file():
            raise DataError(f"{name!r}: the clip is missing")
        return FileResponse(path, media_type=TYPES[path.suffix.lower()])

    return [Route("/clip", clip)]


def clip_address(folders: Folders, run: Path, name: str) -> dict[str, str]:
    """Return the address of a clip that a row of a run names, or the problem that is shown instead."""
    try:
        root, below = folders.locate(run / name)
        path = folders.path(root, below)
    except DataError as error:
        return {"clip": "", "problem": str(error)}
    if not path.is_file():
        return {"clip": "", "problem": f"clip missing: {name}"}
    return {"clip": f"/clip?{urlencode({'run': root, 'name': below})}", "problem": ""}
