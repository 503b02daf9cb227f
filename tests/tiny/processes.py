"""Processes that a test starts and that end with their block, whatever happens inside it."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

# A start on a busy machine takes half a minute; after this long nothing comes any more.
PATIENCE_S = 180.0


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose output is read as text; it is killed after three minutes and at the end of the block.

    Without it a read from a silent process never returns, and a block that fails waits for a server that serves on.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **{**pipes, **options}) as process:
        watch = threading.Timer(PATIENCE_S, process.kill)
        watch.daemon = True
        watch.start()
        try:
            yield process
        finally:
            watch.cancel()
            process.kill()
