"""The studio's server: one process on the loopback address, until Ctrl-C."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable

from starlette.applications import Starlette

from paras2s.utils.loopback import LOOPBACK, LoopbackServer


def serve(app: Starlette, port: int, open_browser: bool, say: Callable[[str], object], page: str = "") -> None:
    """Serve an application until Ctrl-C; `say` gets the address of `page` once it answers. Raises ConfigError: a taken port."""
    server = LoopbackServer(port)
    address = f"http://{LOOPBACK}:{server.port}/{page}"

    def announce() -> None:
        say(f"studio: {address}  (Ctrl-C ends it)")
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    server.run(app, announce)
