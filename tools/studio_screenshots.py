"""The pictures of docs/studio.md, of the studio over real runs in a headless Chromium.

    python tools/studio_screenshots.py RUN OTHER [--out docs/studio]

RUN has rollouts; OTHER is what it is compared with. Needs `chromium` and the extra `dev` (playwright).
"""

from __future__ import annotations

import argparse
import shutil
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from playwright.sync_api import sync_playwright

from paras2s.studio.app import make_app

FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
SIZE = {"width": 1120, "height": 700}


def draw(page: Any, address: str, folders: list[Path], out: Path) -> None:
    """Opens each page as a reader would, and takes its picture."""
    run, other = (quote(f"{number}") for number in range(len(folders)))
    page.goto(address)
    # Where the runs lie on the machine that takes the picture is nobody's business.
    page.evaluate("() => document.querySelectorAll('main > p').forEach((one) => one.remove())")
    page.screenshot(path=out / "runs.png", clip={"x": 0, "y": 0, "width": SIZE["width"], "height": 340})
    page.goto(f"{address}run?run={run}")
    page.wait_for_selector("#run[data-read]")
    page.screenshot(path=out / "run.png")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs=2, type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/studio"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(options.runs), log_level="warning", lifespan="off"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        page = browser.new_page(viewport=SIZE)
        draw(page, f"http://127.0.0.1:{listener.getsockname()[1]}/", options.runs, options.out)
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main()
