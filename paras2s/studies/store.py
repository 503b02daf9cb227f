"""A study on disk: a folder with its clips and one SQLite file of the description, the annotators and every click.

Every click is its own transaction, flushed to the disk before the page hears of it: a server that is killed between two clicks
loses nothing, and a click that is sent again because no reply came counts once. Clicks are appended and never changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from paras2s.errors import ConfigError, DataError, ParaS2SError, StorageError, message_of
from paras2s.studies.clicks import Click, Place, Progress, order_of, refusal, replay
from paras2s.studies.forms import Form, load_forms
from paras2s.studies.study import CLIP_SUFFIXES, STUDY_VERSION, Study, StudyItem, as_study, clip_names, with_clips
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


def check_annotator(name: str) -> None:
    """Check the name of an annotator. Raises ConfigError: it is no name."""
    if not ANNOTATOR.fullmatch(name):
        raise ConfigError(f"annotator {name!r}: use 1 to 40 letters, digits, dots, dashes and underscores")


def make_study(out: Path, study: Study, source: Path) -> StudyStore:
    """Make a study folder: clips are copied from below `source` and named after their content, so that no name tells a system.

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
                db.execute(f"PRAGMA user_version = {secrets.randbelow(2**30)}")
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
    if not os.path.isfile(path):
        raise DataError(f"{path}: no such clip")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:24]
    copy = f"clips/{digest}{path.suffix.lower()}"
    shutil.copyfile(path, folder / copy)
    return copy


@contextmanager
def _connect(path: Path, address: str | None = None) -> Iterator[sqlite3.Connection]:
    """Open a connection for one call, without implicit transactions: each statement is its own unless it begins one."""
    db = sqlite3.connect(address or path.resolve().as_uri(), uri=True, timeout=WAIT_S, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous=FULL")
        yield db
    finally:
        db.close()


class StudyStore:
    """A study's folder. Safe with several threads and processes: no state is held between calls but the description."""

    def __init__(self, folder: Path) -> None:
        """Open a study. Raises DataError: no study, a damaged one, or one of a newer version."""
        self.folder = folder
        self._path = folder / DATABASE
        if not self._path.is_file():
            raise DataError(f"{folder}: is no study; `paras2s study new` makes one")
        with self._reading() as db:
            row = db.execute("SELECT version, description FROM study").fetchone()
            self._edition = _edition(db)
        if row is None or row[0] != STUDY_VERSION:
            version = "none" if row is None else row[0]
            raise DataError(f"{folder}: a study of version {version}, but this program reads {STUDY_VERSION}; update paras2s")
        try:
            self.study = Study.model_validate_json(row[1])
        except ValidationError as error:
            raise DataError(f"{self._path}: the study's description is damaged ({message_of(error.errors()[0])})") from error

    @property
    def form(self) -> Form:
        """The form of its kind, with a choice for every take that any item has."""
        form = load_forms()[self.study.kind]
        return form.with_takes(max(len(item.answers) for item in self.study.items)) if form.takes else form

    def form_of(self, number: int) -> Form:
        """Return the form of one item: of takes, with a choice for each of its own."""
        in_study = 0 <= number < len(self.study.items)
        return self.form.with_takes(len(self.study.items[number].answers)) if self.form.takes and in_study else self.form

    def is_current(self) -> bool:
        """Return whether the study and its items are those that were read when it was opened."""
        with self._reading() as db:
            return _edition(db) == self._edition

    def order(self, annotator: Annotator) -> tuple[Place, ...]:
        """Return the order and the sides in which an annotator is shown the items."""
        if self.form.takes:
            return tuple(Place(number, False) for number in range(len(self.study.items)))
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
        """Return all annotators, in the order in which they were added."""
        with self._reading() as db:
            return [Annotator(*row) for row in db.execute("SELECT name, token, seed FROM annotator ORDER BY rowid")]

    def add_annotator(self, name: str) -> Annotator:
        """Return an annotator with an unguessable link. Raises ConfigError: no name, or an existing one. StorageError."""
        check_annotator(name)
        with self._writing() as db:
            if _has_annotator(db, name):
                raise ConfigError(f"annotator {name!r}: is there already")
            return self._insert_annotator(db, name)

    def _insert_annotator(self, db: sqlite3.Connection, name: str) -> Annotator:
        added = Annotator(name, secrets.token_urlsafe(24), seed_of(self.study.seed, "annotator", name))
        db.execute("INSERT INTO annotator VALUES (?, ?, ?)", (added.name, added.token, added.seed))
        return added

    def find(self, token: str) -> Annotator | None:
        """Return the annotator with this link."""
        given = token.encode("utf-8", "surrogatepass")
        people = self.annotators()
        return next((person for person in people if secrets.compare_digest(person.token.encode(), given)), None)

    def clicks(self, annotator: str) -> list[Click]:
        """Return all clicks of an annotator, in the order in which they were stored."""
        with self._reading() as db:
            return _clicks(db, annotator)

    def count_clicks(self) -> int:
        """Return the number of clicks of all annotators: results that were measured at the same number still hold."""
        with self._reading() as db:
            return int(db.execute("SELECT count(*) FROM click").fetchone()[0])

    def progress(self, annotator: str) -> Progress:
        """Return the state of an annotator's items."""
        return replay(self.clicks(annotator))

    def submissions(self) -> list[tuple[str, int]]:
        """Annotator and item of every submission, each once, in the order of the last one; an undo does not remove it."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT annotator, item FROM click WHERE action = 'submit' GROUP BY annotator, item ORDER BY max(number)"
            )
            return [(name, number) for name, number in rows]

    def update_items(self, items: Sequence[StudyItem], source: Path, given: Sequence[tuple[str, Click]] = ()) -> None:
        """Make the shown items of a study of takes those given; numbers and clicks of the known ones stay.

        New items are appended, with their clips copied from below `source`, and the others are retired. `given` are clicks by
        annotator that were made elsewhere: their item is the place in `items`, and each is stored once.

        Raises:
            DataError: a clip is missing or leaves the source. StorageError: the disk refused; nothing was stored.
        """
        with self._writing() as db:
            known = Study.model_validate_json(db.execute("SELECT description FROM study").fetchone()[0]).items
            keys, shown = {item.key for item in known}, {item.key for item in items}
            new = [item for item in items if item.key not in keys]
            try:
                names = {name: _copy_clip(source, name, self.folder) for name in clip_names(new)}
            except OSError as error:
                raise StorageError(f"{self.folder}: cannot be written ({error}); nothing was stored") from error
            kept = [item.model_copy(update={"retired": item.key not in shown}) for item in known]
            merged = tuple([*kept, *(with_clips(item, names) for item in new)])
            study = as_study(self.study.kind, self.study.title, self.study.seed, merged)
            if merged != known:
                db.execute("UPDATE study SET description = ?", (study.model_dump_json(),))
                db.execute(f"PRAGMA user_version = {_edition(db) + 1}")
            numbers = {item.key: number for number, item in enumerate(merged)}
            for name, click in given:
                if not _has_annotator(db, name):
                    self._insert_annotator(db, name)
                _insert_click(db, name, replace(click, item=numbers[items[click.item].key]))
            self.study, self._edition = study, _edition(db)

    def add_click(self, annotator: str, click: Click) -> Progress:
        """Store a new click; return the annotator's items after it. Raises ClickRefusedError: not now. StorageError."""
        with self._writing() as db:
            clicks = _clicks(db, annotator)
            if all(click.id != stored.id for stored in clicks):
                if why := refusal(self.form_of(click.item), len(self.study.items), replay(clicks), click):
                    raise ClickRefusedError(why)
                _insert_click(db, annotator, click)
                clicks.append(click)
        return replay(clicks)


def _clicks(db: sqlite3.Connection, annotator: str) -> list[Click]:
    query = "SELECT id, item, action, name, value, view, shown_ms FROM click WHERE annotator = ? ORDER BY number"
    return [Click(*row) for row in db.execute(query, (annotator,))]


def _insert_click(db: sqlite3.Connection, annotator: str, click: Click) -> None:
    values = (annotator, click.id, click.item, click.action, click.name, click.value, click.view, click.shown_ms)
    # For people alone: nothing is ordered by this clock.
    now = datetime.now(UTC).isoformat(timespec="seconds")
    db.execute(
        "INSERT OR IGNORE INTO click (annotator, id, item, action, name, value, view, shown_ms, at_utc) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, now),
    )


def _has_annotator(db: sqlite3.Connection, name: str) -> bool:
    return db.execute("SELECT 1 FROM annotator WHERE name = ?", (name,)).fetchone() is not None


def _edition(db: sqlite3.Connection) -> int:
    """Return the number of this state of the items: drawn when the study is made, and one more after each change.

    It also tells a study from another that was made later in its folder, whose file may have the old one's inode.
    """
    return int(db.execute("PRAGMA user_version").fetchone()[0])
