"""The studio's server: one process on the loopback address, until Ctrl-C."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from paras2s.studio.app import make_app
from paras2s.utils.loopback import LOOPBACK, LoopbackServer


def serve(folders: Sequence[Path], port: int, open_browser: bool, say: Callable[[str], object]) -> None:
    """Serves the folders until Ctrl-C; `say` gets the address once a request would be answered.

    Raises:
        ConfigError: a folder is not there, or the port is taken.
    """
    app = make_app(folders)
    server = LoopbackServer(port)
    address = f"http://{LOOPBACK}:{server.port}/"

    def announce() -> None:
        say(f"studio: {address}  (Ctrl-C ends it)")
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    server.run(app, announce)
