"""A page as one file that holds its styles, scripts, data and sounds, for e-mail: the report of a run, a bench's answers."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

from paras2s.errors import ConfigError, DataError
from paras2s.studio.answers import API as ANSWERS
from paras2s.studio.answers import sounds_of
from paras2s.studio.app import app_of
from paras2s.studio.export.pages import bundle_modules, inline_page, read_page
from paras2s.studio.export.requests import InProcess, name_of
from paras2s.studio.export.site import Site, choose_runs
from paras2s.studio.folders import Folders, open_folders
from paras2s.studio.run_page import REPORT_PATH
from paras2s.studio.web import ANSWERS as PAGE
from paras2s.studio.web import Export, Studio, make_templates, show_time
from paras2s.utils.io import write_text

DATA = ("/api/run", "/api/metrics", ANSWERS)
# A file of more is hard to send.
MAX_CONTRASTS = 48
MEDIA_TYPES = {".ogg": "audio/ogg", ".flac": "audio/flac", ".wav": "audio/wav", ".mp3": "audio/mpeg", ".m4a": "audio/mp4"}


def export_report(folders: Sequence[Path], out: Path, names: Sequence[str]) -> None:
    """Write the report of a run (`names` chooses it) to `out`. Raises ConfigError: not one run. DataError: it has no bench."""
    given = open_folders(folders)
    runs = choose_runs(given.runs(), names)
    if len(runs) != 1:
        raise ConfigError(
            f"--export {out.name}: one file holds one run; name it with --run: {', '.join(run.name for run in runs)}"
        )
    write_text(out, _page_of(given, runs[0].address, REPORT_PATH, DATA))


def export_answers(folder: Path, data: Path, out: Path) -> None:
    """Write the answers and scores of a folder of `bench paras2s` to `out`, with their sounds; `data` has the questions'."""
    given = open_folders([folder, data])
    address = given.locate(folder.resolve())[0]
    write_text(out, _page_of(given, address, PAGE, (ANSWERS,)))


def _page_of(given: Folders, address: str, path: str, data: Sequence[str]) -> str:
    """Return a page of one folder with its answers' sounds and the replies that its scripts request; no other is listed."""
    shown = replace(given, listed=frozenset([address]))
    studio = Studio(shown, make_templates(), Export(show_time(time.time()), lambda kept: [], MAX_CONTRASTS))
    query = urlencode({"run": address})
    with InProcess(app_of(studio)) as requests:
        site = Site(requests, [str(root) for root in given.roots])
        view = json.loads(requests.get(f"{ANSWERS}?{query}").body)
        return page_in_one_file(requests, site, f"{path}?{query}", list(sounds_of(view)), [f"{api}?{query}" for api in data])


def page_in_one_file(
    requests: InProcess, site: Site, address: str, sounds: Sequence[str] = (), data: Sequence[str] = ()
) -> str:
    """Return a page with the sounds that it names and the `sounds` and `data` that its scripts request. Raises DataError."""
    reply = requests.get(address)
    if reply.problem is not None:
        raise DataError(reply.problem)
    page = reply.body.decode()
    parts = read_page(page)
    files: dict[str, str | list[str]] = {}
    texts: dict[str, str] = {}
    for sound in dict.fromkeys([*parts.sounds, *sounds]):
        made = site.sound_of(sound, drawn=False)
        files[name_of(sound)] = [made.problem] if made.problem is not None else _data_uri(*next(iter(made.files.items())))
    for requested in data:
        answer = requests.get(requested)
        files[name_of(requested)] = requested if answer.problem is None else [answer.problem]
        texts[requested] = site.without_roots(answer.body.decode())
    modules = bundle_modules(parts.modules, lambda name: site.static(name).decode())
    start = site.static("export.js").decode()
    return inline_page(page, lambda name: site.static(name).decode(), start, [files, modules, texts], site.without_roots)


def _data_uri(file: str, data: bytes) -> str:
    kind = MEDIA_TYPES.get(Path(file).suffix, "application/octet-stream")
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
