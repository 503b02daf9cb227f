"""The studio as files: what is written, what is refused, and the pages opened from disk in a real Chromium.

Not covered: another browser, and an export that is served by a web server.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import soundfile
from studio.browser import PATIENCE_MS, findings, opened
from studio.world import HOSTILE, make_run, tone
from tiny.world import invoke

from paras2s.audio.clip import Clip, encode_clip
from paras2s.bench.results import load_rows, save_rows
from paras2s.errors import ConfigError, StorageError
from paras2s.studio.app import make_app
from paras2s.studio.export import site as export_module
from paras2s.studio.export.collect import comparisons, file_name, may_follow
from paras2s.studio.export.folder import check_folder, new_folder
from paras2s.studio.export.pages import bundle_modules, read_page, write_page
from paras2s.studio.export.requests import InProcess, name_of
from paras2s.studio.export.site import Choice, choose_runs, compressed
from paras2s.studio.folders import FoundRun
from paras2s.utils.io import write_json, write_text

# The address of what has begun to play is noted on the page.
NOTE_PLAYED = """() => {
  const play = HTMLMediaElement.prototype.play;
  HTMLMediaElement.prototype.play = function () {
    const done = play.call(this);
    const note = (text) => { document.body.dataset.played = text; };
    done.then(() => note(this.currentSrc), (error) => note(error.message));
    return done;
  };
}"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "runs"
    one, two = make_run(folder / "one"), make_run(folder / "two", score=3.0, seed=7)
    make_run(folder / "private")
    rows = load_rows(one / "bench/aligned.jsonl")
    for system in ("sft", "topline"):
        save_rows(one / f"bench/{system}.jsonl", [replace(row, system=system) for row in rows])
    write_json(two / "report.json", {"facts": [[HOSTILE, HOSTILE]], "notes": [HOSTILE]})
    # The place of the folder on this machine stands in messages.
    write_text(two / "bench/broken.jsonl", "{}\n")
    return folder


@pytest.fixture(scope="module")
def exported(runs: Path) -> Path:
    out = runs.parent / "site"
    said = invoke("studio", runs, "--export", out, "--run", "one", "--run", "two", "--steps", 2).output
    assert "2 runs: " in said
    assert re.search(r"about \d+\.\d MB in all", said)
    assert re.search(r"index\.html: \d+\.\d MB in \d+ files", said)
    return out


def index_of(out: Path) -> dict[str, Any]:
    text = (out / "data/index.js").read_text()
    return dict(json.loads(json.loads(text[text.index("(") + 1 : text.rindex(")")].removeprefix("JSON.parse("))))


def data_at(out: Path, address: str) -> Any:
    text = (out / index_of(out)[name_of(address)]).read_text()
    return json.loads(json.loads(f"[{text[text.index('(') + 1 : text.rindex(')')]}]")[1])


# -- what is written ---------------------------------------------------------------------------------------------------


def test_the_pages_their_data_and_their_sounds_are_there(exported: Path) -> None:
    index = index_of(exported)
    routes = {json.loads(name)[0] for name, file in index.items() if isinstance(file, str) and file.endswith(".html")}
    assert routes == {"/", "/run", "/compare", "/curves", "/rollouts", "/answers", "/verdict", "/report", "/timeline"}
    assert all((exported / file).is_file() for file in index.values() if isinstance(file, str))
    assert data_at(exported, "/api/run?run=0/one")["state"] == "finished"
    assert [row["step"] for row in data_at(exported, "/api/metrics?run=0/one&offset=0&file=")["rows"]] == [0, 1, 2, 3]
    assert data_at(exported, "/api/rollouts/answer?run=0/one&step=3&group=1&answer=2")["step_s"] == 0.08
    # Two runs, two steps of three groups of three answers; a query through training has all four steps.
    assert sum(json.loads(name)[0] == "/api/rollouts/answer" for name in index) == 2 * 2 * 9
    assert len(data_at(exported, "/api/rollouts/query?run=0/one&query=q1")["steps"]) == 4


def test_the_timeline_names_no_machine_and_leads_to_no_other_steps(exported: Path) -> None:
    text = (exported / index_of(exported)[name_of("/timeline?run=0/one")]).read_text()
    assert "rollout 2" in text
    assert "on h" not in text
    assert "Earlier steps" not in text


def test_the_first_and_the_last_step_are_listed(exported: Path) -> None:
    assert [one["step"] for one in data_at(exported, "/api/rollouts?run=0/one")["steps"]] == [0, 3]
    index = index_of(exported)
    assert isinstance(index[name_of("/api/rollouts/step?run=0/one&step=0")], str)
    assert name_of("/api/rollouts/step?run=0/one&step=1") not in index


def test_nothing_of_other_runs_and_no_place_of_this_machine_is_in_it(exported: Path, runs: Path) -> None:
    assert not any("private" in name for name in index_of(exported))
    for path in exported.rglob("*"):
        if path.suffix in (".html", ".js", ".json"):
            text = path.read_text()
            assert str(runs.parent) not in text, path
            assert "private" not in text or path.name == "modules.js", path
    listed = (exported / "index.html").read_text()
    assert listed.count('aria-label="Compare ') == 2
    assert "/studies" not in listed


def test_every_link_and_source_leads_to_a_file(exported: Path) -> None:
    for path in exported.glob("*.html"):
        for address in re.findall(r'(?:href|src)="([^"#]+)[^"]*"', path.read_text()):
            assert (exported / urlsplit(address).path).is_file(), (path.name, address)
    assert all(re.fullmatch(r"[a-zA-Z0-9./_-]+", path.relative_to(exported).as_posix()) for path in exported.rglob("*"))


def test_hostile_words_stay_text(exported: Path) -> None:
    for path in exported.glob("*.html"):
        text = path.read_text()
        assert HOSTILE not in text
        assert "<img" not in text


def test_a_sound_is_compressed_and_the_same() -> None:
    samples, rate_hz = np.asarray(tone(1.0).samples), 8000
    data, suffix = compressed(encode_clip(Clip(samples, rate_hz)), "audio/wav")
    assert (suffix, len(data) < len(samples) / 2) == (".ogg", True)
    found, found_rate_hz = soundfile.read(io.BytesIO(data))
    assert abs(len(found) / found_rate_hz - 1.0) < 0.05
    assert abs(np.abs(np.fft.rfft(found)).argmax() * found_rate_hz / len(found) - 220) < 3
    # 22,050 Hz is no rate of Opus.
    assert compressed(encode_clip(tone().at(22_050)), "audio/wav")[1] == ".ogg"
    assert compressed(b"no sound", "audio/wav") == (b"no sound", ".wav")
    assert compressed(b"flac", "audio/flac") == (b"flac", ".flac")


# -- names, links and modules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/verdict?run=0%2Fa&query=q+1&n=0", "/verdict?n=0&query=q%201&run=0/a", True),
        ("/api/metrics?run=0&offset=0&file=", "/api/metrics?run=0", True),
        ("/api/rollouts/step?run=0&step=0", "/api/rollouts/step?run=0", False),
        ("/compare?run=1&run=2", "/compare?run=2&run=1", False),
        ("/rollouts?run=0&step=3", "/rollouts?run=0", True),
        ("/answers?run=0&gap=reward", "/answers?run=1", False),
        ("/clip?name=a%26b&run=1", "/clip?name=a&b=&run=1", False),
    ],
)
def test_names_of_addresses(one: str, other: str, same: bool) -> None:
    assert (name_of(one) == name_of(other)) == same


@pytest.mark.parametrize("run", ["0/../../etc", "0/a/b", "0/<b>", "0/..\\x", "0/" + "x" * 300, "0/é"])
def test_files_have_plain_names(run: str) -> None:
    assert re.fullmatch(r"run-[0-9a-f]{12}\.html", file_name(f"/run?run={run}"))


@pytest.mark.parametrize(
    ("address", "follows"),
    [
        ("/run?run=0/a", True),
        ("/compare?run=0/a&run=0/b", True),
        ("/compare?run=0/a&run=0/private", False),
        ("/?part=1&find=", True),
        ("/studies", False),
        ("/api/run?run=0/a", False),
        ("/elsewhere?run=0/a", False),
    ],
)
def test_links_are_followed_to_the_chosen_runs_alone(address: str, follows: bool) -> None:
    routes = ["/", "/run", "/compare", "/studies", "/api/run"]
    assert may_follow(address, routes, ["0/a", "0/b"]) == follows


def test_comparisons_are_of_each_two_and_of_all() -> None:
    assert comparisons(["a"]) == []
    assert comparisons(["a", "b"]) == ["/compare?run=a&run=b"]
    assert comparisons(["a", "b", "c"])[1:] == ["/compare?run=a&run=c", "/compare?run=b&run=c", "/compare?run=a&run=b&run=c"]
    # More lines than can be told apart are in no plot.
    assert len(comparisons("abcdefg")) == 7 * 6 // 2


PAGE = (
    '<!doctype html>\n<html><head><meta name="style-nonce" content="abc"><link rel="stylesheet" href="/static/a.css">'
    '<script type="module" src="/static/run.js"></script></head><body><a class="x" href="/run?run=1&amp;step=2">1 &lt; 2</a>'
    '<a href="/studies">S</a><a href="#m">m</a><button data-clip="/clip?run=1&amp;name=a.wav">/here/x</button></body></html>'
)


def test_a_page_names_what_it_needs_and_leads_to_files() -> None:
    found = read_page(PAGE)
    assert (found.links, found.sounds) == (["/run?run=1&step=2", "/studies"], ["/clip?run=1&name=a.wav"])
    assert (found.modules, found.assets) == (["run.js"], ["a.css"])
    text = write_page(
        PAGE, lambda address: "run-1.html" if address.startswith("/run") else None, lambda part: part.replace("/here/", "")
    )
    for words in (
        '<a class="x" href="run-1.html?run=1&amp;step=2">1 &lt; 2</a>',
        '<a title="This is not part of the export; the studio shows it.">S</a>',
        '<a href="#m">m</a><button data-clip="/clip?run=1&amp;name=a.wav">x</button>',
        '<script type="text/plain" data-module="run.js"></script>',
        '<link rel="stylesheet" href="static/a.css">',
        'content="export"',
    ):
        assert words in text


def test_modules_come_with_what_they_import() -> None:
    files = {
        "a.js": 'import { x } from "./b.js";\nimport "./vendor/c.js";\nexport { y } from "./b.js";\nconst s = "./b.js";',
        "b.js": "export const x = 1;",
        "vendor/c.js": 'import d from"./d.js"',
        "vendor/d.js": "",
    }
    found = bundle_modules(["a.js"], files.__getitem__)
    assert set(found) == set(files)
    assert found["a.js"].splitlines() == [
        'import { x } from "module:b.js";',
        'import "module:vendor/c.js";',
        'export { y } from "module:b.js";',
        'const s = "./b.js";',
    ]
    assert found["vendor/c.js"] == 'import d from"module:vendor/d.js"'


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing(runs: Path) -> None:
    said = invoke("studio", runs / "one", "--export", runs.parent / "dry", "--dry-run").output
    pages = re.search(r"pages: (.*)", said)
    assert pages is not None
    assert {"1 runs", "1 run", "1 answers", "1 rollouts"} <= set(pages[1].split(", "))
    assert re.search(r"\d+ files of data and \d+ sounds; about \d+\.\d MB in all", said)
    assert not (runs.parent / "dry").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run", "none"], "--run none: there is no such run; there are "),
        (["--step", 9], "--step 9: is not kept; the kept steps are 0 to 3"),
        (["--step", 1, "--steps", 2], "--steps and --step: give one of them"),
    ],
)
def test_what_is_not_there_is_named(runs: Path, words: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        invoke("studio", runs, "--export", runs.parent / "never", *words)
    assert not (runs.parent / "never").exists()


def test_options_of_an_export_need_one(runs: Path) -> None:
    with pytest.raises(ConfigError, match="--run: belongs to --export OUT"):
        invoke("studio", runs, "--run", "one", "--no-open")


def test_a_name_of_several_runs_is_refused() -> None:
    found = [FoundRun("0/a/x", "x", 0.0), FoundRun("0/b/x", "x", 0.0), FoundRun("1", "y", 0.0)]
    assert choose_runs(found, ["y", "b/x"]) == found[1:]
    assert choose_runs(found, []) == found
    with pytest.raises(ConfigError, match="--run x: is the name of several; give one of 0/a/x, 0/b/x"):
        choose_runs(found, ["x"])
    with pytest.raises(ConfigError, match="no run in these folders"):
        choose_runs([], [])


def test_steps_are_chosen_evenly_or_by_number() -> None:
    assert Choice(count=3).of_steps([0, 10, 20, 30, 40]) == [0, 20, 40]
    assert Choice(count=1).of_steps([0, 10]) == [10]
    assert Choice(steps=(10, 99)).of_steps([0, 10]) == [10]


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    check_folder(out, [run])
    with new_folder(out, {"made": "now"}) as folder:
        write_text(folder / "data/old.js", "")
    check_folder(out, [run])
    with new_folder(out, {}) as folder:
        write_text(folder / "new.js", "")
    assert sorted(path.name for path in out.rglob("*")) == ["export.json", "new.js"]
    write_text(out / "notes.txt", "mine")
    for place, message in (
        (out, "holds notes.txt, which no export wrote"),
        (run / "site", "is inside a run"),
        (tmp_path, "is not empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_folder(place, [run])
    with pytest.raises(ConfigError, match="is a file"):
        check_folder(out / "notes.txt", [run])
    write_json(out / "export.json", [])
    with pytest.raises(ConfigError, match=r"export\.json cannot be read"):
        check_folder(out, [run])


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path) -> None:
    write_text(tmp_path / "out/old.js", "")
    with pytest.raises(StorageError, match=r"cannot write .*out: No space left"), new_folder(tmp_path / "out", {}):
        raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old.js"]


def test_a_folder_that_cannot_be_put_in_place_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "out/old.js", "")
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if Path(target).name == "out" and not str(source).endswith(".former"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError, match="No space left"), new_folder(tmp_path / "out", {}):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old.js"]


def test_a_file_of_the_studio_that_is_away_ends_the_export() -> None:
    with InProcess(make_app([])) as requests, pytest.raises(StorageError, match=r"gone\.css: this file of the studio"):
        export_module.Site(requests, []).static("gone.css")


# -- in the browser, from disk -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(exported: Path) -> Iterator[Any]:
    """A browser. The export is made before: the driver's event loop runs from here on, and another cannot."""
    with opened() as browser:
        yield browser


@contextmanager
def visited(browser: Any, out: Path, **options: Any) -> Iterator[Any]:
    """A page of its own on the first page of an export; nothing may go wrong, and no request leave the folder."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    context.set_default_timeout(PATIENCE_MS)
    page, wrong = context.new_page(), []
    here = (f"{out.as_uri()}/", "blob:", "data:")
    page.add_init_script(f"({NOTE_PLAYED})()")
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(here) else wrong.append(request.url))
    page.goto((out / "index.html").as_uri())
    yield page
    title = page.title()
    context.close()
    assert "owned" not in title
    assert wrong == []


def played(page: Any, out: Path) -> Path:
    """The file of the export that was played."""
    source = page.wait_for_selector("body[data-played]").get_attribute("data-played")
    page.evaluate("delete document.body.dataset.played")
    path = Path(unquote(urlsplit(source).path))
    assert path.is_relative_to(out), source
    assert path.is_file()
    return path


def test_it_opens_from_disk_and_plays(browser: Any, exported: Path) -> None:
    with visited(browser, exported) as page:
        page.click("a.open:text-is('one')")
        page.wait_for_selector("#run[data-read]")
        assert page.text_content("#steps") == "4"
        page.click("nav >> text=Curves")
        page.wait_for_selector("#plots .panel canvas")
        assert page.locator(".panel canvas").count() > 8
        page.locator("#plots .plot").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#rollouts[data-step='3']")
        page.keyboard.press("j")
        page.keyboard.press("Space")
        assert played(page, exported).suffix == ".ogg"
        page.keyboard.press("Enter")
        page.wait_for_selector(".detail .token")
        # The waveform's and the spectrogram's.
        page.locator(".wave canvas").nth(1).wait_for(state="attached")
        page.locator("tr.answer.at").focus()
        page.keyboard.press("t")
        page.wait_for_selector("#strip .columns li")
        # Steps 1 and 2 are there to play, and not to go to.
        assert page.locator("#strip .columns li .quiet").evaluate_all("all => all.map((one) => one.disabled)") == [
            False, True, True, False
        ]  # fmt: skip
        page.locator("#strip .columns li").nth(1).locator(".play").first.click()
        played(page, exported)
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector("#rollouts[data-step='0']")
        page.reload()
        page.wait_for_selector("#rollouts[data-step='0']")


def test_runs_are_compared_and_answers_opened_from_disk(browser: Any, exported: Path) -> None:
    with visited(browser, exported) as page:
        for key in ("j", "x", "j", "x", "c"):
            page.keyboard.press(key)
        page.wait_for_selector("#plots[data-read='4']")
        page.locator(".questions .play").first.click()
        played(page, exported)
        page.keyboard.press("g")
        page.keyboard.press("r")
        page.wait_for_url((exported / "index.html").as_uri())
        page.click("a.open:text-is('one')")
        page.click("nav >> text=Answers")
        # Filters work from disk, and stay in the address.
        page.wait_for_selector("#answers[data-shown='4']")
        page.fill("[name=find]", "nothing like it")
        page.wait_for_selector("#answers[data-shown='0']", state="attached")
        page.reload()
        page.wait_for_selector("#answers[data-shown='0']", state="attached")
        page.fill("[name=find]", "")
        page.locator("li a", has_text="verdict").first.click()
        page.locator(".wave canvas").nth(1).wait_for(state="attached")
        # What no page of the export is says so in place.
        for place, system in enumerate(("topline", "aligned")):
            page.locator("select[name=system]").nth(place).select_option(system)
        page.locator("form button", has_text="Show").click()
        assert "not part of the export" in page.text_content("#not-exported")
        page.locator("select[name=system]").nth(0).select_option("sft")
        page.locator("form button", has_text="Show").click()
        page.wait_for_url(re.compile(r"/verdict-[0-9a-f]+\.html\?.*system=sft&system=aligned"))


def test_reports_play_from_disk(browser: Any, exported: Path) -> None:
    with visited(browser, exported) as page:
        page.goto((exported / file_name("/report?run=0/one")).as_uri())
        page.wait_for_selector("#plots canvas")
        page.locator(".play").first.click()
        played(page, exported)
        assert "not part" not in page.text_content("main")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_exported_pages_are_accessible_and_fit(browser: Any, exported: Path, width: int, scheme: str) -> None:
    index = index_of(exported)
    pages = [
        next(file for name, file in index.items() if json.loads(name)[0] == route)
        for route in ("/", "/run", "/curves", "/answers", "/rollouts", "/verdict", "/report")
    ]
    # axe-core sets inline styles of its own to measure contrast.
    with visited(browser, exported, bypass_csp=True, color_scheme=scheme) as page:
        page.set_viewport_size({"width": width, "height": 800})
        for file in pages:
            page.goto((exported / file).as_uri())
            page.wait_for_load_state("networkidle")
            assert findings(page) == [], file
            assert page.evaluate("document.documentElement.scrollWidth") <= width, file
