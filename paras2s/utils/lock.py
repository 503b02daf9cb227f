"""One writer a folder: a lock that ends with its process, however that ends, and names who holds it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from paras2s.errors import ConfigError
from paras2s.utils.io import UNFINISHED, cannot_write

LOCK = ".lock"
_held: dict[Path, IO[str]] = {}


def hold(folder: Path, wait: bool = False) -> None:
    """Keep other processes, of other machines on a shared disk as well, from writing into a folder until this one ends.

    Files that killed processes left unfinished are removed. `wait`: until the other one ends. Where the disk knows no locks
    there is none.

    Raises:
        ConfigError: another process holds it. StorageError: the disk refused.
    """
    import fcntl

    path = folder.resolve()
    if path in _held and os.fstat(_held[path].fileno()).st_nlink:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise cannot_write(path / LOCK, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = f"{folder}: another command works here ({file.read().strip() or 'of an unknown process'})"
        if not wait:
            file.close()
            raise ConfigError(f"{holder}; add --wait, or give another --run-dir") from None
        print(f"paras2s: {holder}; waiting for its end", file=sys.stderr, flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        # A disk without locks, as some network file systems are.
        pass
    try:
        # What writers that were killed in the midst of a file have left, which may be as large as a checkpoint.
        for unfinished in path.rglob(f"{UNFINISHED}*"):
            unfinished.unlink(missing_ok=True)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
        file.flush()
    except OSError as error:
        # Which would write once more what was refused.
        with contextlib.suppress(OSError):
            file.close()
        raise cannot_write(path / LOCK, error) from error
    _held[path] = file
