"""A study on disk: a folder with its clips and one SQLite file of the description, the annotators and every click.

Every click is its own transaction, flushed to the disk before the page hears of it: a server that is killed between two clicks
loses nothing, and a click that is sent again because no reply came counts once. Clicks are appended and never changed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from paras2s.errors import ConfigError, DataError, ParaS2SError, StorageError
from paras2s.studio.annotation.clicks import Click, Place, Progress, order_of, refusal, replay
from paras2s.studio.annotation.forms import Form, load_forms
from paras2s.studio.annotation.study import CLIP_SUFFIXES, STUDY_VERSION, Study, as_study, clip_names, with_clips
from paras2s.utils.io import path_inside
from paras2s.utils.seeds import seed_of

DATABASE = "study.sqlite"
WAIT_S = 30.0
ANNOTATOR = re.compile(r"\w[\w.-]{0,39}")
SCHEMA = """
CREATE TABLE study (version INTEGER NOT NULL, description TEXT NOT NULL);
CREATE TABLE annotator (name TEXT PRIMARY KEY, token TEXT NOT NULL UNIQUE, seed INTEGER NOT NULL);
CREATE TABLE click (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    annotator TEXT NOT NULL REFERENCES annotator (name),
    id TEXT NOT NULL,
    item INTEGER NOT NULL,
    action TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    view TEXT NOT NULL,
    shown_ms REAL,
    at_utc TEXT NOT NULL,
    UNIQUE (annotator, id)
);
"""


class ClickRefusedError(ParaS2SError):
    """A click that the form or the state of the item does not allow; nothing was stored."""


@dataclass(frozen=True)
class Annotator:
    """A person who takes part: the name, the secret in the link, and the seed of order and sides."""

    name: str
    token: str
    seed: int


def make_study(out: Path, study: Study, source: Path) -> StudyStore:
    """A new study folder: clips are copied from below `source` and named after their content, so that no name tells a system.

    Raises:
        ConfigError: `out` is there. DataError: a clip is missing or leaves the source. StorageError: the disk refused.
    """
    if out.exists():
        raise ConfigError(f"{out}: is there already; give another --out, or delete it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as made:
            folder = Path(made) / "study"
            (folder / "clips").mkdir(parents=True)
            names = {name: _copy_clip(source, name, folder) for name in clip_names(study.items)}
            items = [with_clips(item, names) for item in study.items]
            description = as_study(study.kind, study.title, study.seed, items).model_dump_json()
            with _connect(folder / DATABASE) as db:
                db.execute("PRAGMA journal_mode=WAL")
                db.executescript(SCHEMA)
                db.execute("INSERT INTO study VALUES (?, ?)", (STUDY_VERSION, description))
            folder.rename(out)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"{out}: cannot be written ({error}); free disk space or give another --out") from error
    return StudyStore(out)


def _copy_clip(source: Path, name: str, folder: Path) -> str:
    path = path_inside(source, name)
    if path is None:
        raise DataError(f"{name}: leaves {source}")
    if path.suffix.lower() not in CLIP_SUFFIXES:
        raise DataError(f"{name}: no sound that browsers play; they play {', '.join(CLIP_SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"{path}: no such clip")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:24]
    copy = f"clips/{digest}{path.suffix.lower()}"
    shutil.copyfile(path, folder / copy)
    return copy


@contextmanager
def _connect(path: Path, address: str | None = None) -> Iterator[sqlite3.Connection]:
    """A connection for one call, without implicit transactions: each statement is its own unless it begins one."""
    db = sqlite3.connect(address or path.resolve().as_uri(), uri=True, timeout=WAIT_S, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous=FULL")
        yield db
    finally:
        db.close()


class StudyStore:
    """A study's folder. Safe with several threads and processes: no state is held between calls but the description."""

    def __init__(self, folder: Path) -> None:
        """Opens a study.

        Raises:
            DataError: no study, a damaged one, or one of a newer version.
        """
        self.folder = folder
        self._path = folder / DATABASE
        if not self._path.is_file():
            raise DataError(f"{folder}: is no study; `paras2s study new` makes one")
        with self._reading() as db:
            row = db.execute("SELECT version, description FROM study").fetchone()
        if row is None or row[0] != STUDY_VERSION:
            version = "none" if row is None else row[0]
            raise DataError(f"{folder}: a study of version {version}, but this program reads {STUDY_VERSION}; update paras2s")
        try:
            self.study = Study.model_validate_json(row[1])
        except ValidationError as error:
            raise DataError(f"{self._path}: the study's description is damaged ({error.errors()[0]['msg']})") from error

    @property
    def form(self) -> Form:
        """The form of its kind."""
        return load_forms()[self.study.kind]

    def order(self, annotator: Annotator) -> tuple[Place, ...]:
        """The order and the sides in which an annotator is shown the items."""
        return order_of(annotator.seed, len(self.study.items), self.form.answers == 2)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        address = self._path.resolve().as_uri()
        try:
            with _connect(self._path, f"{address}?mode=ro") as db:
                try:
                    db.execute("SELECT 1 FROM study")
                    readable = True
                except sqlite3.OperationalError:
                    readable = False
                if readable:
                    yield db
                    return
            # A read-only folder cannot hold the shared memory of a write-ahead log; without a log none is needed.
            with _connect(self._path, f"{address}?mode=ro&immutable=1") as db:
                yield db
        except sqlite3.Error as error:
            raise DataError(f"{self._path}: cannot be read as a study ({error})") from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            with _connect(self._path, f"{self._path.resolve().as_uri()}?mode=rw") as db:
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageError(f"{self._path}: cannot be written ({error}); nothing was stored") from error

    def annotators(self) -> list[Annotator]:
        """All annotators, in the order in which they were added."""
        with self._reading() as db:
            return [Annotator(*row) for row in db.execute("SELECT name, token, seed FROM annotator ORDER BY rowid")]

    def add_annotator(self, name: str) -> Annotator:
        """An annotator with a link of their own that cannot be guessed.

        Raises:
            ConfigError: no name, or one that is there. StorageError: the disk refused.
        """
        if not ANNOTATOR.fullmatch(name):
            raise ConfigError(f"annotator {name!r}: use 1 to 40 letters, digits, dots, dashes and underscores")
        one = Annotator(name, secrets.token_urlsafe(24), seed_of(self.study.seed, "annotator", name))
        with self._writing() as db:
            if db.execute("SELECT 1 FROM annotator WHERE name = ?", (name,)).fetchone():
                raise ConfigError(f"annotator {name!r}: is there already")
            db.execute("INSERT INTO annotator VALUES (?, ?, ?)", (one.name, one.token, one.seed))
        return one

    def find(self, token: str) -> Annotator | None:
        """The annotator with this link."""
        given = token.encode("utf-8", "surrogatepass")
        return next((one for one in self.annotators() if secrets.compare_digest(one.token.encode(), given)), None)

    def clicks(self, annotator: str) -> list[Click]:
        """All clicks of an annotator, in the order in which they were stored."""
        with self._reading() as db:
            return _clicks(db, annotator)

    def count_clicks(self) -> int:
        """The number of clicks of all annotators: results that were measured at the same number still hold."""
        with self._reading() as db:
            return int(db.execute("SELECT count(*) FROM click").fetchone()[0])

    def progress(self, annotator: str) -> Progress:
        """The state of an annotator's items."""
        return replay(self.clicks(annotator))

    def add_click(self, annotator: str, click: Click) -> Progress:
        """Stores a click, unless its id is there already; returns where the annotator stands then.

        Raises:
            ClickRefusedError: the click cannot be taken now. StorageError: the disk refused.
        """
        with self._writing() as db:
            clicks = _clicks(db, annotator)
            if all(click.id != there.id for there in clicks):
                if why := refusal(self.form, len(self.study.items), replay(clicks), click):
                    raise ClickRefusedError(why)
                values = (annotator, click.id, click.item, click.action, click.name, click.value, click.view, click.shown_ms)
                # For people alone: nothing is ordered by this clock.
                now = datetime.now(UTC).isoformat(timespec="seconds")
                db.execute(
                    "INSERT INTO click (annotator, id, item, action, name, value, view, shown_ms, at_utc) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*values, now),
                )
                clicks.append(click)
        return replay(clicks)


def _clicks(db: sqlite3.Connection, annotator: str) -> list[Click]:
    query = "SELECT id, item, action, name, value, view, shown_ms FROM click WHERE annotator = ? ORDER BY number"
    return [Click(*row) for row in db.execute(query, (annotator,))]
