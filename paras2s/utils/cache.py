"""A cache of JSON values by key in one SQLite file. Pickle is never read.

Safe with several processes: write-ahead log, one transaction a write, and a reader waits rather than fails.
"""

from __future__ import annotations

import errno
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paras2s.errors import StorageError
from paras2s.utils.io import cannot_write

WAIT_S = 30.0
QUERY_KEYS = 500
_ERRNO = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}


def key_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value: two values that differ anywhere have different keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class JsonCache:
    """A table of JSON values by key. A value stays until its key is written again."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises StorageError: it cannot be created, or is no such cache."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            # The table keeps its first name, so that caches of earlier versions stay valid.
            self._db.execute("CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"{path}: cannot be used as a cache ({error}); delete it or give another folder") from error

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of the keys that are in the cache. Raises StorageError: the file is damaged."""
        distinct = list(dict.fromkeys(keys))
        values: dict[str, Any] = {}
        for start in range(0, len(distinct), QUERY_KEYS):
            part = distinct[start : start + QUERY_KEYS]
            marks = ",".join("?" * len(part))
            try:
                rows = self._db.execute(f"SELECT key, value FROM kept WHERE key IN ({marks})", part)
                values.update((key, json.loads(value)) for key, value in rows)
            except (sqlite3.Error, ValueError, RecursionError) as error:
                raise StorageError(f"{self.path}: cannot be read ({error}); delete it, and it is made again") from error
        return values

    def get(self, key: str) -> Any | None:
        """Return one value, or None."""
        return self.get_many([key]).get(key)

    def put_many(self, values: Mapping[str, Any]) -> None:
        """Write all values in one transaction. Raises StorageError: the disk refused."""
        rows = [(key, json.dumps(value, allow_nan=False)) for key, value in values.items()]
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            # The low byte is the kind; the others are its details.
            reason = _ERRNO.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, 0)
            raise cannot_write(self.path, OSError(reason, str(error))) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()
