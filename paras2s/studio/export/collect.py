"""The search for all that belongs into an export: pages that the list of runs leads to, and data and sounds they request."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from starlette.applications import Starlette
from starlette.routing import Route

from paras2s.studio.app import MODULES
from paras2s.studio.compare import MAX_RUNS
from paras2s.studio.export.pages import read_page
from paras2s.studio.export.requests import InProcess, name_of, runs_of
from paras2s.studio.web import Needed, Studio

API = "/api/"
START = "/"


@dataclass(frozen=True)
class Page:
    """A page as the server gives it, and its file in the export."""

    address: str
    file: str
    text: str

    @property
    def route(self) -> str:
        """The path of its address."""
        return urlsplit(self.address).path


@dataclass
class ExportPlan:
    """The content of an export: by the name of its address each page, JSON and sound; and modules and files of `static`."""

    pages: dict[str, Page] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    sounds: dict[str, Needed] = field(default_factory=dict)
    modules: dict[str, None] = field(default_factory=dict)
    assets: dict[str, None] = field(default_factory=dict)

    def add_sound(self, needed: Needed) -> None:
        """Add a sound; a sound that any page draws is drawn."""
        name = name_of(needed.address)
        if needed.drawn or name not in self.sounds:
            self.sounds[name] = needed


def collect(app: Starlette, studio: Studio, requests: InProcess, runs: Sequence[str]) -> ExportPlan:
    """Follow the pages from the list on; addresses that name a run may name none but `runs` (addresses)."""
    plan = ExportPlan()
    routes = [
        route.path
        for route in app.routes
        if isinstance(route, Route) and "GET" in (route.methods or ()) and "{" not in route.path
    ]
    queue = deque([START, *comparisons(runs)])
    for run in runs:
        for needed in (request for module in MODULES if hasattr(module, "needed") for request in module.needed(studio, run)):
            if needed.page:
                queue.append(needed.address)
            elif urlsplit(needed.address).path.startswith(API):
                plan.data[name_of(needed.address)] = needed.address
            else:
                plan.add_sound(needed)
        # Data about a run as such, whichever module gives it.
        for address in (f"{path}?{urlencode({'run': run})}" for path in routes if path.startswith(API)):
            if requests.get(address).status == 200:
                plan.data[name_of(address)] = address
    seen: set[str] = set()
    while queue:
        address = queue.popleft()
        if name_of(address) not in seen and may_follow(address, routes, runs):
            queue += _add_page(plan, requests, address)
        seen.add(name_of(address))
    return plan


def _add_page(plan: ExportPlan, requests: InProcess, address: str) -> list[str]:
    """Add a page with what it names; return its links. An address with a sound at it is a sound."""
    reply = requests.get(address)
    if reply.media_type != "text/html":
        plan.add_sound(Needed(address))
        return []
    text = reply.body.decode(errors="replace")
    plan.pages[name_of(address)] = Page(address, file_name(address), text)
    parts = read_page(text)
    plan.modules |= dict.fromkeys(parts.modules)
    plan.assets |= dict.fromkeys(parts.assets)
    for sound in parts.sounds:
        plan.add_sound(Needed(sound))
    return parts.links


def file_name(address: str) -> str:
    """Return the file of a page: letters of the route and a hash, whatever the names of runs hold."""
    route = urlsplit(address).path.strip("/")
    if not route and not urlsplit(address).query:
        return "index.html"
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in route or "runs")
    return f"{letters}-{hashlib.sha256(name_of(address).encode()).hexdigest()[:12]}.html"


def may_follow(address: str, routes: Sequence[str], runs: Sequence[str]) -> bool:
    """Return whether a link leads to a page of the export: a part of the list, or a page about the chosen runs alone."""
    path, named = urlsplit(address).path, runs_of(address)
    if path not in routes or path.startswith(API):
        return False
    return set(named) <= set(runs) if named else path == START


def comparisons(runs: Sequence[str]) -> list[str]:
    """Return the addresses of the comparisons of each two runs, and of all of them."""
    chosen = list(itertools.combinations(runs, 2))
    groups = [*chosen, tuple(runs)] if 2 < len(runs) <= MAX_RUNS else chosen
    return [f"/compare?{urlencode({'run': group}, doseq=True)}" for group in groups]
