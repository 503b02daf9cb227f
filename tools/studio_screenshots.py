"""The pictures of docs/studio.md, and docs/report.png, of the studio over real runs in a headless Chromium.

    python tools/studio_screenshots.py RUN OTHER [--hacked HACKED] [--out docs/studio]

RUN has rollouts and a bench of `aligned` and `sft`; OTHER is what it is compared with. The study is made for the pictures, of
RUN's answers, and nobody has judged in it. HACKED is the run of docs/tutorials/why-the-reward-rose.md, for its two pictures.
Needs `chromium` and the extra `dev` (playwright).
"""

from __future__ import annotations

import argparse
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import uvicorn
from playwright.sync_api import sync_playwright

from paras2s.studies.forms import load_forms
from paras2s.studies.store import make_study
from paras2s.studies.study import as_study
from paras2s.studio.annotation.run_items import items_of_run
from paras2s.studio.app import make_app
from paras2s.studio.export.one_file import export_report

FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
SIZE = {"width": 1120, "height": 700}


# Where the runs lie on the machine that takes the picture is nobody's business.
HIDE_PLACES = "() => document.querySelectorAll('main > p > code, dd.mono').forEach((one) => one.parentElement.remove())"


def draw(page: Any, address: str, out: Path) -> None:
    """Opens each page of runs as a reader would, and takes its picture."""
    run, other = "0", "1"
    page.goto(address)
    page.evaluate(HIDE_PLACES)
    page.screenshot(path=out / "runs.png", clip={"x": 0, "y": 0, "width": SIZE["width"], "height": 340})
    page.goto(f"{address}run?run={run}")
    page.wait_for_selector("#run[data-read]")
    page.screenshot(path=out / "run.png")
    page.goto(f"{address}curves?run={run}")
    page.wait_for_selector("#run[data-read]")
    page.screenshot(path=out / "curves.png")
    page.goto(f"{address}timeline?run={run}")
    page.evaluate("() => document.querySelectorAll('th:last-child, td:last-child').forEach((one) => one.remove())")
    page.screenshot(path=out / "timeline.png", full_page=True)
    page.goto(f"{address}compare?run={run}&run={other}")
    page.wait_for_selector("#plots[data-read]")
    page.screenshot(path=out / "compare.png")
    page.goto(f"{address}rollouts?run={run}")
    page.wait_for_selector("tr.answer")
    page.select_option("#sort", "spread")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator(".wave canvas").nth(1).wait_for(state="attached")
    page.wait_for_selector(".token")
    page.wait_for_load_state("networkidle")
    # A spectrogram as PNG would be 300 kB.
    page.screenshot(path=out / "rollouts.jpg", type="jpeg", quality=80)
    page.locator("tr.answer.at").focus()
    page.keyboard.press("t")
    page.wait_for_selector("#strip .columns li")
    page.locator("#strip").screenshot(path=out / "strip.png")
    page.goto(f"{address}answers?run={run}")
    page.wait_for_selector("#answers[data-shown]")
    page.screenshot(path=out / "answers.png")
    page.locator(".question-box li a").first.click()
    page.locator(".wave canvas").nth(5).wait_for(state="attached")
    page.wait_for_load_state("networkidle")
    page.screenshot(path=out / "verdict.jpg", type="jpeg", quality=80, full_page=True)


def draw_study(page: Any, address: str, out: Path) -> None:
    """The pages of the study that the third folder is."""
    page.goto(f"{address}studies")
    page.screenshot(path=out / "studies.png", clip={"x": 0, "y": 0, "width": SIZE["width"], "height": 240})
    page.goto(f"{address}study/2")
    page.locator("#results h2", has_text="Agreement of people").wait_for()
    link = page.locator("table.links a").first.get_attribute("href")
    page.evaluate(HIDE_PLACES)
    page.screenshot(path=out / "study.png")
    page.goto(link)
    page.wait_for_selector("#item:not([hidden])")
    page.screenshot(path=out / "annotate.png", full_page=True)


def draw_hacked(page: Any, address: str, out: Path) -> None:
    """The alerts of the run that the fourth folder is, and one of its questions through training."""
    page.set_viewport_size(SIZE | {"height": 840})
    page.goto(f"{address}curves?run=3")
    page.wait_for_selector("#run[data-read]")
    page.screenshot(path=out / "hacked-run.png")
    page.goto(f"{address}rollouts?run=3")
    page.wait_for_selector("tr.answer")
    page.keyboard.press("j")
    page.keyboard.press("t")
    page.wait_for_selector("#strip .columns li")
    page.locator("#strip").screenshot(path=out / "hacked-strip.png")


def draw_report(browser: Any, report: Path, out: Path) -> None:
    """The first screen of the page that a run ends with, from disk."""
    page = browser.new_page(viewport=SIZE | {"height": 1400})
    page.goto(report.as_uri())
    page.wait_for_selector("#run[data-read]")
    page.screenshot(path=out)


def make_shown_study(run: Path, folder: Path) -> None:
    """A study of twelve pairs of the policy and its warm-up, for two people."""
    items = items_of_run(run, "pair", ("aligned", "sft"), limit=12, seed=0)
    store = make_study(folder, as_study("pair", load_forms()["pair"].title, 0, items), run)
    for name in ("ann", "bob"):
        store.add_annotator(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs=2, type=Path)
    parser.add_argument("--hacked", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/studio"))
    options = parser.parse_args()
    hacked = [options.hacked] if options.hacked else []
    options.out.mkdir(parents=True, exist_ok=True)
    listener = socket.create_server(("127.0.0.1", 0))
    with tempfile.TemporaryDirectory() as scratch:
        study = Path(scratch) / "study"
        make_shown_study(options.runs[0], study)
        report = Path(scratch) / "report.html"
        # Before the browser: an export runs an event loop of its own, and Playwright's is running then.
        export_report([options.runs[0]], report, [])
        server = uvicorn.Server(uvicorn.Config(make_app([*options.runs, study, *hacked]), log_level="warning", lifespan="off"))
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
            page = browser.new_page(viewport=SIZE)
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            draw(page, address, options.out)
            draw_study(page, address, options.out)
            draw_report(browser, report, options.out.parent / "report.png")
            if hacked:
                draw_hacked(page, address, options.out)
            browser.close()
        server.should_exit = True


if __name__ == "__main__":
    main()
