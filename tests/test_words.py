"""No old word of this project is left in code, settings or documents; `words.yaml` has the table.

As a script it prints what is left: python tests/test_words.py [--list] [PATH ...]
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
TABLE = yaml.safe_load((TESTS / "words.yaml").read_text())
SUFFIXES = {".py", ".yaml", ".yml", ".md", ".j2", ".toml"}
# A docstring that begins so is a fragment, no sentence that says what the thing is or does.
FRAGMENT = re.compile(r"(What|Who|Whom|Whose|Of|As|Where|How)\b")
# A help text or a description of a setting that begins so lacks its noun.
NOUNLESS = re.compile(r"(What|Who|Whose|Of|As|Where|How|That|Which|At|By|For)\b", re.IGNORECASE)
# The docstring of a function begins with an imperative: no verb in -s, no article, no pronoun.
NO_IMPERATIVE = re.compile(
    r"(?!(Pass|Process|Compress|Address|Express|Press|Assess|Discuss|Focus)\b)"
    r"([A-Z][a-z-]*s|The|A|An|Each|Every|All|Whether|One|Those|These|It|Both|Why|When|If|In|With|From|Nothing)\b"
)


@dataclass(frozen=True)
class Hit:
    """An old word: its place, its form there, and the new one."""

    path: str
    line: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.old} -> {self.new}"


Found = Iterator[tuple[int, str, str]]


@functools.cache
def word_parts(identifier: str) -> tuple[str, ...]:
    """Returns the lower-case words of a snake_case or CamelCase name."""
    return tuple(part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier))


# Several rules read one file, then the next.
@functools.lru_cache(maxsize=1)
def tokens_of(text: str) -> list[tokenize.TokenInfo]:
    """Returns the tokens that have words."""
    wordless = (tokenize.OP, tokenize.NUMBER, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in wordless]


@functools.lru_cache(maxsize=1)
def nodes_of(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


class Rules:
    """The table, or its `watched` part, ready to be applied to the text of one path."""

    def __init__(self, path: str, watched: bool = False):
        rows = TABLE["watched" if watched else "identifiers"]
        rows = [row for row in rows if any(path.startswith(prefix) for prefix in row.get("only", [""]))]
        self.parts = {old: row["new"] for row in rows for old in row["old"]}
        self.allowed = {name for row in rows for name in row.get("allow", ())}
        self.names = {} if watched else TABLE["names"]
        cased = {rf"\b{re.escape(name)}\b": new for name, new in self.names.items()}
        self.cased = set(cased)
        texts = {} if watched else cased | TABLE["prose"]
        self.texts = [(re.compile(pattern, re.ASCII), new) for pattern, new in texts.items()]
        # Most texts have none of them.
        self.any = re.compile("|".join(texts) or "(?!)", re.ASCII | re.IGNORECASE)

    def in_identifier(self, name: str, line: int) -> Found:
        if name in self.names:
            yield line, name, self.names[name]
        elif name not in self.allowed:
            for part in word_parts(name):
                if part in self.parts:
                    yield line, name, self.parts[part]
                    return

    def in_text(self, text: str, line: int) -> Found:
        if not self.any.search(text):
            return
        for pattern, new in self.texts:
            # A sentence may begin with an old word; names are found as they are written in the table.
            cased = text if pattern.pattern in self.cased else text.lower()
            for match in pattern.finditer(cased):
                yield line + text.count("\n", 0, match.start()), match[0], new


def in_python(text: str, rules: Rules) -> Found:
    for token in tokens_of(text):
        if token.type == tokenize.NAME and token.string.startswith("test_"):
            # The name of a test is a sentence.
            yield from rules.in_text(token.string.replace("_", " "), token.start[0])
        elif token.type == tokenize.NAME:
            yield from rules.in_identifier(token.string, token.start[0])
        else:
            yield from rules.in_text(token.string, token.start[0])
    if sys.version_info < (3, 12) and rules.parts:
        # Before 3.12 an f-string is one token.
        for string in (node for node in nodes_of(text) if isinstance(node, ast.JoinedStr)):
            for node in ast.walk(string):
                name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
                yield from rules.in_identifier(name, string.lineno)


def in_yaml(text: str, rules: Rules) -> Found:
    yield from rules.in_text(text, 1)
    nodes: list[Any] = [document for document in yaml.compose_all(text) if document is not None]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                nodes.append(value)
                yield from rules.in_identifier(str(key.value), key.start_mark.line + 1)
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


@functools.cache
def paths() -> tuple[str, ...]:
    """Returns the repository's text files, tracked or new, as git lists them; without git, all that are there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
    here = (path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.rglob("*"))
    listed = done.stdout.split("\n") if done.returncode == 0 else [path for path in here if not path.startswith(".")]
    found = [path for path in listed if PurePosixPath(path).suffix in SUFFIXES and (REPOSITORY / path).is_file()]
    return tuple(sorted(path for path in found if not any(fnmatch(path, pattern) for pattern in TABLE["exempt"])))


def old_words(path: str, text: str, watched: bool = False) -> list[Hit]:
    """Returns every old word in the text of a file."""
    readers: dict[str, Callable[[str, Rules], Found]] = {".py": in_python, ".yaml": in_yaml, ".yml": in_yaml}
    rules = Rules(path, watched)
    reader = readers.get(PurePosixPath(path).suffix, lambda text, rules: rules.in_text(text, 1))
    return [Hit(path, *found) for found in sorted(reader(text, rules))]


def fragments(path: str, text: str) -> list[Hit]:
    """Returns the docstrings of the package that begin as a fragment."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for node in nodes_of(text):
        words = ast.get_docstring(node) if isinstance(node, kinds) else None
        if words and FRAGMENT.match(words):
            found.append(Hit(path, getattr(node, "lineno", 1), words.split("\n")[0], "one plain sentence"))
    return found


class PlainRules(Rules):
    """The patterns of plain English."""

    def __init__(self) -> None:
        self.parts, self.allowed, self.names, self.cased = {}, set(), {}, set()
        self.texts = [(re.compile(pattern, re.ASCII), new) for pattern, new in TABLE["plain"].items()]
        self.any = re.compile("|".join(TABLE["plain"]), re.ASCII | re.IGNORECASE)

    def in_text(self, text: str, line: int) -> Found:
        lower = text.lower()
        return () if any(fixed in lower for fixed in TABLE["plain_fixed"]) else super().in_text(text, line)


PLAIN = PlainRules()


def plain_english(path: str, text: str) -> list[Hit]:
    """Returns what is no plain English in Python code: words, names of variables, moods of docstrings, help texts."""
    hits = [Hit(path, *hit) for hit in in_python(text, PLAIN)]
    for node in nodes_of(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = ast.get_docstring(node) or ""
            named = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
            if not named and (match := NO_IMPERATIVE.match(words)):
                hits.append(Hit(path, node.lineno, f'"{match[0]} ..."', "an imperative"))
        elif isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            name = node.arg if isinstance(node, ast.arg) else node.id
            if name in TABLE["plain_names"]:
                hits.append(Hit(path, node.lineno, name, TABLE["plain_names"][name]))
        elif isinstance(node, ast.keyword) and node.arg in ("help", "description"):
            words = node.value.value if isinstance(node.value, ast.Constant) else ""
            if match := NOUNLESS.match(str(words)):
                hits.append(Hit(path, node.value.lineno, f'{node.arg}="{match[0]} ..."', "a phrase with its noun"))
    return hits


def is_plain(path: str) -> bool:
    return path.startswith(tuple(TABLE["plain_paths"])) and not any(fnmatch(path, row) for row in TABLE["plain_pending"])


def package() -> list[str]:
    """Returns the package's Python files."""
    return [path for path in paths() if path.startswith("paras2s/") and path.endswith(".py")]


def read(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


@functools.cache
def all_hits() -> tuple[list[Hit], list[Hit], list[Hit]]:
    """Returns the old words, the fragments and what is no plain English, from one reading of each file."""
    old, riddles, odd = [], [], []
    packaged = set(package())
    for path in paths():
        text = read(path)
        old += old_words(path, text)
        if path in packaged:
            riddles += fragments(path, text)
            odd += plain_english(path, text) if is_plain(path) else []
    return old, riddles, odd


def by_count(hits: list[Hit], key: Callable[[Hit], str]) -> str:
    return "\n".join(f"{count:5}  {name}" for name, count in Counter(map(key, hits)).most_common())


def folder(hit: Hit) -> str:
    parts = PurePosixPath(hit.path).parts
    return "/".join(parts[:2]) if len(parts) > 2 else hit.path


def test_no_old_word_is_left() -> None:
    hits, _, _ = all_hits()
    shown = "\n".join(map(str, hits[:20]))
    assert not hits, f"{len(hits)} old words; python tests/test_words.py --list shows all\n{by_count(hits, folder)}\n{shown}"


def test_no_docstring_is_a_fragment() -> None:
    _, hits, _ = all_hits()
    shown = "\n".join(map(str, hits[:20]))
    assert not hits, f"{len(hits)} docstrings begin with What, Who, Of, As, Where or How\n{by_count(hits, folder)}\n{shown}"


def test_clean_folders_stay_in_plain_english() -> None:
    _, _, hits = all_hits()
    shown = "\n".join(map(str, hits[:20]))
    assert not hits, f"{len(hits)} places; python tests/test_words.py --plain paras2s shows counts\n{shown}"


def test_what_is_not_plain_english_is_found() -> None:
    code = '''
def a(one: int) -> None:
    """Returns the file, or None where it is not there."""
    found = [f(one) for one in rows]  # mended anew
def b() -> None:
    """Return a word as it stands, "" stands for none."""
class C:
    """A table of rows."""
    @property
    def rows(self) -> int:
        """The rows."""
option = Option(help="Of a role-play.", description="turns")
note = 'Between <answer> and </answer> stands "Speech A is better"'
'''
    found = [(hit.line, hit.old) for hit in plain_english("a.py", code)]
    assert sorted(found) == [
        (2, '"Returns ..."'), (2, "one"), (3, "none where"), (3, "not there"), (4, "anew"), (4, "found"), (4, "mended"),
        (4, "one"), (12, 'help="Of ..."'),
    ]  # fmt: skip


def test_old_words_are_found_and_plain_english_is_not() -> None:
    code = '''
class AskedQuestion:
    """A judge is asked; years of hearing, and the whole number it tends to keep on the table."""
    n_asked, years, attend, extended, proportion, feared = range(6)
    key = {"learned_queries": 8}  # on a KL leash
    print(f"{wholeness} {self.whole_sum}", safeguard)
def test_the_crew_is_told_apart(): ...
'''
    hits = old_words("paras2s/example.py", code)
    found = [(2, "AskedQuestion"), (5, "learned_queries"), (5, "leash"), (6, "whole_sum"), (7, "crew")]
    assert [(hit.line, hit.old) for hit in hits] == found
    settings = "align:\n  hearing: 1  # Leash.\n  note: a whole number, told in years\n"
    assert [(hit.line, hit.old) for hit in old_words("a.yaml", settings)] == [(2, "hearing"), (2, "leash")]
    assert [hit.old for hit in old_words("docs/a.md", "The crew's `max_drift`.\nIt is worth a look.")] == ["crew", "max_drift"]
    assert old_words("paras2s/bench/charts.py", "panel = 1") == []
    assert len(old_words("paras2s/reward/x.py", "panel = 1")) == 1


def test_fragments_are_found() -> None:
    code = '"""What it is."""\ndef a():\n    """Returns how."""\ndef b():\n    """As they are."""\n'
    assert [hit.line for hit in fragments("a.py", code)] == [1, 4]


def main() -> int:
    parser = argparse.ArgumentParser(description="Counts old words by folder and by word.")
    parser.add_argument("paths", nargs="*", help="only below these paths")
    parser.add_argument("--list", action="store_true", help="print every place")
    parser.add_argument("--watched", action="store_true", help="the words that may be plain English instead")
    parser.add_argument("--plain", action="store_true", help="what is no plain English in the package")
    options = parser.parse_args()
    chosen = [path for path in paths() if not options.paths or path.startswith(tuple(options.paths))]
    if options.plain:
        hits = [hit for path in package() if path in chosen for hit in plain_english(path, read(path))]
        print("\n".join(map(str, hits)) if options.list else by_count(hits, folder))
        print(by_count(hits, lambda hit: f"{hit.old} -> {hit.new}"))
        return 1 if hits else 0
    hits = [hit for path in chosen for hit in old_words(path, read(path), options.watched)]
    riddles = [hit for path in package() if path in chosen for hit in fragments(path, read(path))]
    if options.list:
        print("\n".join(map(str, [*hits, *riddles])))
    print(f"{len(hits)} {'watched' if options.watched else 'old'} words\n\n{by_count(hits, folder)}\n")
    print(by_count(hits, lambda hit: f"{hit.old} -> {hit.new}"))
    print(f"\n{len(riddles)} docstrings that begin with What, Who, Of, As, Where or How\n\n{by_count(riddles, folder)}")
    return 1 if hits or riddles else 0


if __name__ == "__main__":
    sys.exit(main())
