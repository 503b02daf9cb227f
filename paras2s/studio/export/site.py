"""The verb `studio --export`: chooses runs and steps, says how large the export becomes, and writes it."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from paras2s import __version__
from paras2s.audio.clip import encode_clip, read_clip
from paras2s.errors import AudioError, ConfigError, StorageError
from paras2s.rollout.store import FOLDER, steps_kept
from paras2s.studio.app import app_of
from paras2s.studio.clips import TYPES
from paras2s.studio.export.collect import API, ExportPlan, Page, collect
from paras2s.studio.export.folder import check_folder, new_folder
from paras2s.studio.export.pages import STATIC, bundle_modules, write_page
from paras2s.studio.export.requests import InProcess, name_of
from paras2s.studio.folders import FoundRun, open_folders
from paras2s.studio.rollouts import evenly
from paras2s.studio.web import Export, Studio, make_templates, show_time
from paras2s.utils.progress import open_console, progress_bar

STEPS = 5
# Files of each kind that are made, evenly over all, to estimate the size of the export.
SAMPLED = 8
OPUS_RATES_HZ = (8000, 12000, 16000, 24000, 48000)
SUFFIXES = {kind: suffix for suffix, kind in reversed(TYPES.items())}


@dataclass(frozen=True)
class Choice:
    """A choice of runs by name (none: all below the folders), and of their kept steps: these, or `count` of them, evenly."""

    runs: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    count: int = STEPS

    def of_steps(self, kept: Sequence[int]) -> list[int]:
        """Return the chosen steps of a run's kept steps."""
        return [step for step in kept if step in self.steps] if self.steps else evenly(kept, self.count)


def export_site(folders: Sequence[Path], out: Path, choice: Choice, dry_run: bool, say: Callable[[str], object]) -> None:
    """Write a static site of runs to `out`, or with `dry_run` tell its size. Raises ConfigError: no run, or other content."""
    given = open_folders(folders)
    runs = choose_runs(given.runs(), choice.runs)
    paths = [given.path(run.address) for run in runs]
    check_folder(out, paths)
    check_steps(choice, paths)
    made = show_time(time.time())
    shown = replace(given, listed=frozenset(run.address for run in runs))
    studio = Studio(shown, make_templates(), Export(made, choice.of_steps))
    app = app_of(studio)
    with InProcess(app) as requests:
        site = Site(requests, [str(root) for root in given.roots])
        plan = collect(app, studio, requests, [run.address for run in runs])
        say(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {', '.join(run.name for run in runs)}")
        routes = Counter(page.route for page in plan.pages.values())
        say("pages: " + ", ".join(f"{count} {route.strip('/') or 'runs'}" for route, count in routes.items()))
        say(f"{len(plan.data)} files of data and {len(plan.sounds)} sounds; about {megabytes(estimate(plan, site))} in all")
        if dry_run:
            say(f"nothing was written; without --dry-run it would be {out / 'index.html'}")
            return
        facts = {"paras2s": __version__, "made": made, "runs": [run.name for run in runs]}
        with new_folder(out, facts) as folder:
            site.write(plan, folder)
    sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    say(f"{out / 'index.html'}: {megabytes(sum(sizes))} in {len(sizes)} files")


def choose_runs(runs: Sequence[FoundRun], names: Sequence[str]) -> list[FoundRun]:
    """Return the runs of these names or addresses, in order; all without a name. Raises ConfigError: none, or several."""
    if not runs:
        raise ConfigError("there is no run in these folders; give the folder of a run, or a folder above it")
    chosen = []
    for name in names:
        same = [run for run in runs if name in (run.name, run.address, run.address.partition("/")[2])]
        if not same:
            others = ", ".join(run.name for run in runs[:10]) + (" ..." if len(runs) > 10 else "")
            raise ConfigError(f"--run {name}: there is no such run; there are {others}")
        if len(same) > 1:
            raise ConfigError(f"--run {name}: is the name of several; give one of {', '.join(run.address for run in same)}")
        chosen += same
    return [run for run in runs if run in chosen] if names else list(runs)


def check_steps(choice: Choice, runs: Sequence[Path]) -> None:
    """Check that each step is kept by one of the runs. Raises ConfigError: one is not."""
    kept = {step for run in runs for step in steps_kept(run / FOLDER)}
    if missing := [step for step in choice.steps if step not in kept]:
        known = f"the kept steps are {min(kept)} to {max(kept)}" if kept else "no rollouts are kept"
        raise ConfigError(f"--step {missing[0]}: is not kept; {known}")


def megabytes(size: float) -> str:
    """Return a size of bytes in words."""
    return f"{size / 1e6:.1f} MB"


def compressed(data: bytes, media_type: str) -> tuple[bytes, str]:
    """Return a sound as exported and its suffix, a WAV in Ogg Opus (or FLAC); an undecodable clip stays as it is."""
    if media_type != TYPES[".wav"]:
        return data, SUFFIXES.get(media_type, ".bin")
    import soundfile

    try:
        clip = read_clip(data)
    except AudioError:
        return data, ".wav"
    if "OPUS" not in soundfile.available_subtypes("OGG"):
        return encode_clip(clip, "FLAC"), ".flac"
    rate_hz = next((rate_hz for rate_hz in OPUS_RATES_HZ if rate_hz >= clip.sample_rate_hz), OPUS_RATES_HZ[-1])
    return encode_clip(clip.at(rate_hz), "OPUS"), ".ogg"


def register(file: str, text: str) -> bytes:
    """Return a script that gives a page a text: the only data that a page opened from disk may read."""
    return f"paras2sSite.add({json.dumps(file)}, {json.dumps(text)});\n".encode()


def estimate(plan: ExportPlan, site: Site) -> float:
    """Return the size of an export in bytes, by a sample of its data and sounds; equal ones, which are one file, count each."""
    kinds: dict[tuple[str, bool], list[str]] = {}
    for address in plan.data.values():
        kinds.setdefault((urlsplit(address).path, False), []).append(address)
    for sound in plan.sounds.values():
        kinds.setdefault((urlsplit(sound.address).path, sound.drawn), []).append(sound.address)
    total = float(sum(len(page.text) for page in plan.pages.values()))
    for (path, drawn), addresses in kinds.items():
        sample = evenly(addresses, SAMPLED)
        made = [site.data_of(address) if path.startswith(API) else site.sound_of(address, drawn) for address in sample]
        total += len(addresses) * sum(file.size for file in made) / len(made)
    return total + sum(len(site.static(name)) for name in [*plan.modules, *plan.assets])


@dataclass(frozen=True)
class Made:
    """The files of an address by name, the first known to pages; or the reason in words why there is none."""

    files: dict[str, bytes]
    problem: str | None = None

    @property
    def size(self) -> int:
        """The size of its files in bytes."""
        return sum(map(len, self.files.values()))

    @property
    def entry(self) -> str | list[str]:
        """Its entry in the index that pages read."""
        return next(iter(self.files)) if self.problem is None else [self.problem]


class Site:
    """The files of an export. Their names are hashes of what they hold: no name of a run, clip or question makes a path."""

    def __init__(self, requests: InProcess, roots: Sequence[str]) -> None:
        self._requests, self._roots = requests, roots

    def static(self, name: str) -> bytes:
        """Return a static file of the studio. Raises StorageError: it is missing, the package was removed meanwhile."""
        reply = self._requests.get(STATIC + name)
        if reply.status != 200:
            raise StorageError(f"{name}: this file of the studio cannot be read; install paras2s again")
        return reply.body

    def without_roots(self, text: str) -> str:
        """Return a text without the path of the given folders on this machine."""
        for root in (root for root in self._roots if root != "/"):
            for written in dict.fromkeys((root, escape(root), json.dumps(root)[1:-1])):
                text = text.replace(f"{written}/", f"{Path(root).name}/")
        return text

    def data_of(self, address: str) -> Made:
        """Return the JSON at an address, as the script that gives it to a page."""
        reply = self._requests.get(address)
        if reply.problem is not None:
            return Made({}, self.without_roots(reply.problem))
        text = self.without_roots(reply.body.decode())
        file = f"data/{_digest(text.encode())}.js"
        return Made({file: register(file, text)})

    def sound_of(self, address: str, drawn: bool) -> Made:
        """Return the sound at an address, compressed; a drawn sound as text as well, since a page reads no other file."""
        reply = self._requests.get(address)
        if reply.problem is not None:
            return Made({}, self.without_roots(reply.problem))
        data, suffix = compressed(reply.body, reply.media_type)
        file = f"sounds/{_digest(data)}{suffix}"
        script = {f"{file}.js": register(f"{file}.js", base64.b64encode(data).decode())}
        return Made({file: data} | (script if drawn else {}))

    def page_of(self, plan: ExportPlan, page: Page) -> Made:
        """Return a page, with links to the files of others."""
        pages = plan.pages
        text = write_page(page.text, lambda to: pages[name_of(to)].file if name_of(to) in pages else None, self.without_roots)
        return Made({page.file: text.encode()})

    def write(self, plan: ExportPlan, folder: Path) -> None:
        """Write all files, with a progress bar."""
        for inner in ("data", "sounds", "static"):
            (folder / inner).mkdir()
        index: dict[str, str | list[str]] = {}
        works: list[tuple[str, Callable[[], Made]]] = [
            *((name, functools.partial(self.data_of, address)) for name, address in plan.data.items()),
            *((name, functools.partial(self.sound_of, sound.address, sound.drawn)) for name, sound in plan.sounds.items()),
            *((name, functools.partial(self.page_of, plan, page)) for name, page in plan.pages.items()),
        ]
        with progress_bar(open_console(to_stderr=True), "exported", len(works)) as bar:
            for done, (name, make) in enumerate(works, 1):
                made = make()
                index[name] = made.entry
                for file, data in made.files.items():
                    (folder / file).write_bytes(data)
                bar.at(done, len(works))
        self._write_static(plan, folder / "static")
        (folder / "data" / "index.js").write_text(f"paras2sSite.files = JSON.parse({json.dumps(json.dumps(index))});\n")

    def _write_static(self, plan: ExportPlan, folder: Path) -> None:
        for name in [*plan.assets, "export.js"]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(self.static(name))
        modules = bundle_modules(list(plan.modules), lambda name: self.static(name).decode())
        (folder / "modules.js").write_text(f"paras2sSite.modules = JSON.parse({json.dumps(json.dumps(modules))});\n")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]
