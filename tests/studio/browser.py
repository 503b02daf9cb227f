"""A real Chromium for tests of the studio, with the server that it looks at; a test without a browser skips, but not in CI."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette

from paras2s.studio.app import make_app

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required",
    # A microphone that beeps, and that every page may use.
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
)  # fmt: skip
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PATIENCE_MS = 60_000


def chromium() -> str:
    """The browser's path; without one the test skips, and in CI it fails."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        reason = "needs a Chromium (Debian's package chromium)"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return str(found)


@contextmanager
def served(folders: Sequence[Path], app: Starlette | None = None) -> Iterator[str]:
    """The studio over these folders, or `app`, at a free port of the loopback address, which it gives without a slash."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app or make_app(folders), log_level="warning", access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        # The listener already takes connections; they wait until the server does.
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@contextmanager
def opened() -> Iterator[Any]:
    """A browser with a fresh profile."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS), timeout=PATIENCE_MS)
        yield browser
        browser.close()


def findings(page: Any) -> list[str]:
    """All that axe-core finds on the page as it is, its advice on good practice too; it does not fetch style sheets again."""
    page.evaluate(AXE.read_text())
    found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations'], preload: false}).then((result) => result.violations)"
    )
    return [f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:4]]}" for one in found]
