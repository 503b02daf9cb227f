"""An ASGI application served by uvicorn, on the loopback address unless another one is given."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from paras2s.errors import ConfigError

LOOPBACK = "127.0.0.1"
# A page that polls must not hold up the end.
SHUTDOWN_S = 1


class LoopbackServer:
    """A server on its socket. The kernel holds requests from the first moment; they are answered while `run` runs."""

    def __init__(self, port: int, host: str = LOOPBACK) -> None:
        """Take the port; 0 takes any free one. Raises ConfigError: the port cannot be used."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(128)
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise ConfigError(
                f"port: {port} on {host} cannot be used ({error}); choose another, or 0 for any free one"
            ) from error

    @property
    def port(self) -> int:
        """The port it has."""
        return int(self._socket.getsockname()[1])

    def run(self, app: ASGIApp, on_ready: Callable[[], object]) -> None:
        """Answer requests until Ctrl-C, once `on_ready` has returned."""
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_S, lifespan="off"
        )
        server = uvicorn.Server(config)
        try:
            on_ready()
            server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            # uvicorn has ended by itself, and hands the signal on.
            pass
        finally:
            self._socket.close()
