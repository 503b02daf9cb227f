"""The studio's server: one process on the loopback address, until Ctrl-C."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from paras2s.errors import ConfigError
from paras2s.studio.app import make_app

LOOPBACK = "127.0.0.1"
# A page that polls must not hold up the end.
SHUTDOWN_S = 1


def serve(folders: Sequence[Path], port: int, open_browser: bool, say: Callable[[str], object]) -> None:
    """Serves the folders until Ctrl-C; `say` gets the address once a request would be answered.

    Raises:
        ConfigError: a folder is not there, or the port is taken.
    """
    app = make_app(folders)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"port {port}: {error.strerror}; give another with --port, or 0 for any free one") from error
    listener.listen(128)
    address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/"
    # From here on the kernel holds requests until the server takes them.
    say(f"studio: {address}  (Ctrl-C ends it)")
    if open_browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_S, lifespan="off")
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        # uvicorn has ended by itself, and hands the signal on.
        pass
    finally:
        listener.close()
