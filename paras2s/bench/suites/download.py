"""The user's download of a suite: its files, the makers' prompts in them, and what is wrong, one line a problem.

Nothing of a suite is copied into this package. Prompts that the makers keep in their Python files are read, and never run.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.systems import SUFFIXES
from paras2s.clients.chat import Audio
from paras2s.errors import DataError, JudgeError, one_line
from paras2s.reward.blueprint.schema import is_silent
from paras2s.reward.judges.audio_judge.judge import TranscriptCache
from paras2s.reward.judges.base import MAX_CLIP_S
from paras2s.utils.io import path_inside, read_text

Made = TypeVar("Made")
Key = TypeVar("Key")
JUDGED_RATE_HZ = 16_000
# Words of an answer that was not given yet, in an estimate.
UNKNOWN_WORDS = "word " * 120


@dataclass(frozen=True)
class Template:
    """A prompt of the makers with {names} to fill; `hash` changes with every letter."""

    text: str

    @property
    def hash(self) -> str:
        """The first 16 digits of the SHA-256."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def fill(self, **values: object) -> str:
        """Return the prompt with the values in their places, as the makers' code puts them; each is put in once."""
        return re.sub(r"\{(\w+)\}", lambda match: str(values.get(match[1], match[0])), self.text)


@dataclass
class Download:
    """A folder with a suite; `source` says where the makers put it. `estimates`: answers are not transcribed."""

    folder: Path
    source: str
    estimates: bool = False
    problems: list[str] = field(default_factory=list)
    _templates: dict[tuple[Path, str], Template] = field(default_factory=dict)
    _transcripts: TranscriptCache = field(default_factory=TranscriptCache)

    # Files.

    def find(self, name: str) -> Path:
        """Return a file or folder of the download, at most one folder down. Raises DataError: says where the makers put it."""
        if (path := self.look_for(name)) is None:
            raise DataError(f"{self.folder / name}: missing; the makers have it in {self.source}")
        return path

    def look_for(self, name: str) -> Path | None:
        """Return a file or folder of the download, or None."""
        return next((path for root in self._roots() if (path := root / name).exists()), None)

    def _roots(self) -> Iterator[Path]:
        yield self.folder
        if self.folder.is_dir():
            yield from sorted(path for path in self.folder.iterdir() if path.is_dir())

    def present(self, files: Mapping[Key, str]) -> dict[Key, Path]:
        """Return the existing parts of a suite, by name, with their files. Raises DataError: none is; names the first."""
        paths = {name: path for name, file in files.items() if (path := self.look_for(file))}
        if not paths:
            self.find(next(iter(files.values())))
        return paths

    def made(self, path: Path, make: Callable[[dict[str, Any], int], Made]) -> Iterator[Made]:
        """Yield what `make` makes of every row and its line, from 0; a row without a key that it needs is a problem."""
        for where, row in self.rows(path):
            try:
                yield make(row, int(where.rpartition(":")[2]) - 1)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                self.problems.append(f"{where}: no item of the suite ({type(error).__name__}: {one_line(error)})")

    def sound(self, folder: Path, name: str) -> Path | None:
        """Return the clip that a row names, below a folder and of whichever suffix; None, and a problem, if it is missing."""
        path = path_inside(folder, name)
        if path is not None and not path.is_file():
            path = next((other for suffix in SUFFIXES if (other := path.with_suffix(suffix)).is_file()), None)
        if path is None:
            self.problems.append(f"{folder / name}: no such sound")
        return path

    def rows(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the rows of a file as `read_any` does; a broken line is a problem. Raises DataError: missing, or no list."""
        yield from read_any(path, self.problems)

    # Prompts.

    def prompt(self, name: str, variable: str = "") -> Template:
        """Return a prompt of the makers: a text file, or a variable of a Python file. Raises DataError: there is none."""
        path = self.find(name)
        if (path, variable) not in self._templates:
            text = read_text(path)
            self._templates[path, variable] = Template(python_text(path, text, variable) if variable else text)
        return self._templates[path, variable]

    # Sound for the judge.

    def audio(self, clip: Clip) -> Audio:
        """Return a clip as judges of suites are sent it."""
        clip = clip.at(JUDGED_RATE_HZ)
        return Audio(encode_clip(clip), clip.duration_s)

    def clip(self, path: Path | None) -> Clip:
        """Return a clip of the download. Raises JudgeError: it is missing. AudioError: it cannot be read."""
        if path is None:
            raise JudgeError("the download lacks the item's sound")
        return read_clip(path, max_duration_s=MAX_CLIP_S)

    def sound_of(self, answer: SystemAnswer) -> Clip:
        """Return the sound of an answer. Raises JudgeError: there is none, or it is silent."""
        clip = answer.response.clip
        if clip is None:
            raise JudgeError(answer.response.missing or "no sound")
        if is_silent(clip) and not self.estimates:
            raise JudgeError("the answer is silent")
        return clip

    def words(self, answer: SystemAnswer, language: str = "en") -> str:
        """Return an answer's recognised words; in a language other than English its text. Raises JudgeError: it has neither."""
        if self.estimates:
            return answer.response.text or UNKNOWN_WORDS
        if answer.response.clip is None or language != "en":
            if answer.response.text:
                return answer.response.text
            raise JudgeError(answer.response.missing or f"no text, and no recogniser of {language} is installed")
        return self._transcripts([self.sound_of(answer)])[0]


def read_any(path: Path, problems: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a JSONL (or .gz) or JSON list with their place; a broken line is a problem. Raises DataError: none."""
    try:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else read_text(path)
        rows = json.loads(text) if path.suffix == ".json" else None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)})") from error
    if rows is not None and not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of items")
    for number, line in enumerate(text.split("\n") if rows is None else rows, 1):
        if rows is None and not line.strip():
            continue
        try:
            row = json.loads(line) if rows is None else line
        except ValueError as error:
            problems.append(f"{path}:{number}: not valid JSON ({one_line(error)})")
            continue
        if isinstance(row, dict):
            yield f"{path}:{number}", row
        else:
            problems.append(f"{path}:{number}: expected an object")


def python_text(path: Path, source: str, variable: str) -> str:
    """Return the text that a Python file assigns to a variable, with {names} for parts of an f-string. Raises DataError."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise DataError(f"{path}: is no Python file ({one_line(error)})") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(name, ast.Name) and name.id == variable for name in node.targets):
            text = _text_of(node.value)
            if text is not None:
                return text
    raise DataError(f"{path}: has no text {variable}; another version of the makers' code?")


def _text_of(node: ast.expr) -> str | None:
    """Return the text of a string, an f-string, or one of them that is stripped; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_part, node.values))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "strip":
        text = _text_of(node.func.value)
        return None if text is None else text.strip()
    return None


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    return str(node.value) if isinstance(node, ast.Constant) else ""
