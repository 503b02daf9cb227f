"""Documents keep their word: Python blocks run, commands parse, YAML is valid, links and anchors resolve.

Not covered: commands are parsed and not executed, and links to other sites are not followed. `make docs` checks the references
that mkdocstrings makes.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shlex
import shutil
import sys
import types
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from pydantic import BaseModel
from tiny import world
from typer.testing import CliRunner

from paras2s.cli.app import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md")))
}
MARKER = re.compile(r"^<!-- not run: (\S.*) -->$")
FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*([\w-]*)")
# First line of a YAML block -> what it is a config of.
YAML_KINDS = {
    "run": "RunConfig",
    "judge": "JudgingConfig",
    "audio judge": "AudioJudgeConfig",
    "contrast judge": "ContrastConfig",
    "curation": "CurationConfig",
    "endpoint": "AudioChatConfig",
    "ablation": "AblationConfig",
    "unisrm": "UniSRMConfig",
    "own judge": "OwnJudgeConfig",
    "unisrm judge": "UniSRMJudgeConfig",
    "unisrm data": "UniSRMDataConfig",
}


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block of a page; `line` is the first of its code, `not_run` the reason in the comment before it."""

    page: str
    line: int
    language: str
    code: str
    not_run: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(name: str) -> list[CodeBlock]:
    found, before, opened = [], "", None
    for number, line in enumerate(PAGES[name].read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            marker = MARKER.match(before.strip())
            opened = (fence[2], fence[3], number + 1, len(fence[1]), marker and marker[1], [])
        elif opened is not None and line.strip().startswith(opened[0]) and not line.strip().strip(opened[0][0]):
            _, language, start, _, reason, lines = opened
            found.append(CodeBlock(name, start, language, "\n".join(lines) + "\n", reason))
            opened = None
        elif opened is not None:
            opened[5].append(line[opened[3] :])
        before = line if line.strip() else before
    assert opened is None, f"{name}: a code block is never closed"
    return found


BLOCKS = [block for name in PAGES for block in blocks_of(name)]


# -- Python -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a reader's after `make demo`: a run that has hardly learned, and four clips. Two contrasts do."""
    folder = tmp_path_factory.mktemp("reader")
    config = world.write_run(folder, name="demo", run_dir=str(folder / "runs/demo"), cache_dir=str(folder / "runs/cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "ROLES", ("demonstration", "test"))
        patch.setattr(world, "CATEGORIES", world.CATEGORIES[:1])
        world.make_data(config)
    world.invoke("warmup", config)
    run = folder / "runs/demo"
    shutil.copytree(run / "sft", run / "aligned")
    questions, answers = (sorted((run / "data" / kind).glob("*.wav")) for kind in ("queries", "answers"))
    for name, clip in zip(("question", "answer", "A", "B"), (questions[0], answers[0], answers[0], answers[1]), strict=True):
        shutil.copy(clip, folder / f"{name}.wav")
    return folder


def python_blocks(name: str) -> list[CodeBlock]:
    return [block for block in BLOCKS if block.page == name and block.language in ("python", "py")]


def write_named(block: CodeBlock, folder: Path) -> None:
    """Write a block whose first line is the name of a file, as its reader does: other blocks and commands import it."""
    if named := re.match(r"# (\w+\.py)\n", block.code):
        (folder / named[1]).write_text(block.code)


def test_the_tutorials_judge_is_found_by_its_name(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "docs/tutorials/write-a-judge.md"
    shutil.copytree(tiny_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in python_blocks(page):
        write_named(block, tmp_path)
    lines = [line for block in BLOCKS if block.page == page and block.language == "bash" for line in block.code.splitlines()]
    commands = [line.removeprefix("PYTHONPATH=. paras2s ") for line in lines if "brevity:Brevity" in line]
    run = [shlex.split(command) for command in commands if command.startswith("judge ")]
    assert (len(commands), len(run)) == (5, 2)
    for command in run:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output + repr(result.exception)
        assert "brevity" in result.output
    sys.modules.pop("brevity", None)


def test_the_bench_tutorial_scores_a_folder(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "docs/tutorials/bench-a-system.md"
    shutil.copytree(tiny_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for block in python_blocks(page):
        exec(compile(block.code, block.place, "exec"), {"__name__": "page"})
    lines = [line for block in BLOCKS if block.page == page and block.language == "bash" for line in block.code.splitlines()]
    commands = [line for line in lines if " bench template " in line or line.endswith("--system mine=answers/")]
    template, scored = [CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False).output for line in commands]
    assert "questions and a README" in template
    assert "mine scores 1.00 of 5 over 2 answers." in scored
    assert "Look and listen: runs/paras2s/report.html" in scored


@pytest.mark.parametrize("name", [name for name in PAGES if python_blocks(name)])
def test_python_blocks_run_in_order(name: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tiny_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    # Dataclasses look their module up.
    page = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    ran = 0
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in python_blocks(name):
        if block.not_run is None:
            write_named(block, tmp_path)
            exec(compile(block.code, block.place, "exec"), page.__dict__)
            ran += 1
    lines = PAGES[name].read_text().splitlines()
    opened = [number for number, line in enumerate(lines) if re.match(r"^ *(```+|~~~+) *(python|py)\b", line)]
    marked = [number for number in opened if any("<!-- not run:" in one for one in lines[max(0, number - 2) : number])]
    assert ran == len(opened) - len(marked)


@pytest.mark.parametrize("path", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell in one namespace, as a kernel does, without a kernel; only `%%writefile` and `display` are of IPython."""
    pytest.importorskip("pandas")
    shutil.copytree(tiny_run / "runs", tmp_path / "runs")
    shutil.copytree(DOCS / "audio", tmp_path / "docs/audio")
    (tmp_path / "docs/notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "docs/notebooks")
    monkeypatch.syspath_prepend(str(tmp_path / "docs/notebooks"))
    cells = json.loads(path.read_text())["cells"]
    assert [cell["outputs"] for cell in cells if cell.get("outputs")] == []
    shown: list[Any] = []
    names = {"display": shown.append, "__name__": "__main__"}
    for number, cell in enumerate(cells):
        code = "".join(cell["source"])
        if cell["cell_type"] == "code" and (file := re.match(r"%%writefile (\S+)\n", code)):
            Path(file[1]).write_text(code[file.end() :])
        elif cell["cell_type"] == "code":
            exec(compile(code, f"{path.name}, cell {number}", "exec"), names)
    assert sum("<audio controls" in one._repr_html_() for one in shown) >= 2
    linked = re.findall(r"\]\(([^)#]+)\)", "".join(line for cell in cells for line in cell["source"]))
    assert [link for link in linked if not (path.parent / link).exists()] == []


# -- commands ---------------------------------------------------------------------------------------------------------


@cache
def command_tree() -> Any:
    return typer.main.get_command(app)


@cache
def schemas() -> dict[str, type[BaseModel]]:
    """Every section of every config, by its name."""
    package = importlib.import_module("paras2s.configs.schema")
    modules = [importlib.import_module(f"{package.__name__}.{one.name}") for one in pkgutil.iter_modules(package.__path__)]
    members = [member for module in modules for member in vars(module).values()]
    return {one.__name__: one for one in members if isinstance(one, type) and issubclass(one, BaseModel)}


def has_key(schema: Any, dotted: str) -> bool:
    """Whether a config of this schema has this key; below a mapping anything goes."""
    name, _, rest = dotted.partition(".")
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return any(has_key(one, dotted) for one in get_args(schema)) or getattr(schema, "__origin__", None) is dict
    if name not in schema.model_fields:
        return False
    return not rest or has_key(schema.model_fields[name].annotation, rest)


def known_key(item: str) -> bool:
    return any(has_key(schemas()[kind], item.partition("=")[0]) for kind in YAML_KINDS.values())


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """The verb that these words name, and the words behind it; a group where no verb is named."""
    command, rest = command_tree(), list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"there is no {' '.join(words)!r}; there are {', '.join(command.commands)}"
        command = command.commands[rest.pop(0)]
    return command, rest


def check_options(command: Any, words: list[str]) -> None:
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for number, word in enumerate(words):
        if re.match(r"--?[a-z]", word):
            assert word.partition("=")[0] in options, f"no option {word}; there are {', '.join(sorted(options))}"
        if word in ("-s", "--set"):
            assert known_key(words[number + 1]), f"no config has the key {words[number + 1]}"


def simple_commands(code: str) -> Iterator[list[str]]:
    """Words of every simple command of a shell block, without prompt, environment and redirections."""
    for line in re.sub(r"\\\n\s*", " ", code).splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in (*lexer, ";"):
            if set(word) <= set("();<>|&"):
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def is_shell(block: CodeBlock) -> bool:
    starts = re.search(r"^(\$ )?(\S+=\S+ )?paras2s ", block.code, re.MULTILINE)
    return block.language in ("bash", "console", "sh", "shell") or (not block.language and bool(starts))


SHELL = [block for block in BLOCKS if is_shell(block)]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.place)
def test_commands_parse(block: CodeBlock) -> None:
    for words in simple_commands(block.code):
        program, rest = Path(words[0]).name, words[1:]
        if program == "paras2s":
            command, given = find_command(rest)
            check_options(command, given)
            if not hasattr(command, "commands"):
                # The real parser: values of a choice, required arguments, numbers.
                command.make_context(command.name, list(given))
        elif program == "make":
            assert set(rest) <= TARGETS, f"{block.place}: the Makefile has no target {rest}"
        elif program.startswith("python") and rest and rest[0].endswith(".py"):
            assert (ROOT / rest[0]).is_file(), f"{block.place}: there is no {rest[0]}"


INLINE = [
    (name, number, found)
    for name, path in PAGES.items()
    if name != "CHANGELOG.md"
    for number, line in enumerate(path.read_text().splitlines(), 1)
    for found in re.findall(r"(?<!`)`(paras2s [^`]+)`(?!`)", line)
]


@pytest.mark.parametrize("name", sorted({name for name, *_ in INLINE}))
def test_commands_within_a_line_exist(name: str) -> None:
    for page, number, text in INLINE:
        if page != name:
            continue
        words = [word.strip("[]") for word in shlex.split(text)[1:] if word.strip("[].")]
        # Capitals stand for something: `paras2s bench SUITE`.
        stop = next((place for place, word in enumerate(words) if word.isupper()), len(words))
        try:
            command, rest = find_command(words[:stop])
            check_options(command, [*rest, *words[stop:]])
        except AssertionError as error:
            raise AssertionError(f"{page}:{number}: `{text}`: {error}") from error


# -- YAML -------------------------------------------------------------------------------------------------------------

CONFIGS = [
    (block, first[1])
    for block in BLOCKS
    if block.language in ("yaml", "yml") and (first := re.match(r"# \S+\.ya?ml: ([a-z ]+)\n", block.code))
]


@pytest.mark.parametrize(("block", "kind"), CONFIGS, ids=lambda value: getattr(value, "place", value))
def test_configs_are_valid(block: CodeBlock, kind: str) -> None:
    values = yaml.safe_load(block.code)
    schemas()[YAML_KINDS[kind]].model_validate(values)
    for row in (values, *values.get("rows", ())) if kind == "ablation" else ():
        assert [key for key in row.get("set", {}) if not has_key(schemas()["RunConfig"], key)] == []


# -- links ------------------------------------------------------------------------------------------------------------


def prose(name: str) -> str:
    """A page without its code."""
    text = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2[ `~]*$", "", PAGES[name].read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def slugs(path: Path) -> set[str]:
    """Anchors of a page's headings that the site and a repository's web page both have."""
    found: set[str] = set()
    text = re.sub(r"^ *(`{3,}|~{3,}).*?^ *\1[ `~]*$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading)
        site = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        site = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", site).strip().lower())
        if site == re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"):
            found.add(site)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_links_and_anchors_resolve(name: str) -> None:
    text, here = prose(name), PAGES[name].parent
    defined = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    used = re.findall(r"\[[^\[\]]*\]\[([^\[\]]+)\]", text)
    assert [key for key in used if key not in defined and not key.startswith("paras2s.")] == []
    targets = (
        re.findall(r"\]\(([^()\s]+)\)", text) + re.findall(r'(?:src|href|srcset)="([^"]+)"', text) + list(defined.values())
    )
    broken = []
    for target in targets:
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or anchor.startswith("paras2s."):
            continue
        to = (here / path).resolve() if path else PAGES[name]
        # A page of the site cannot lead out of it.
        outside = DOCS in PAGES[name].parents and DOCS not in (to, *to.parents)
        if not to.exists() or outside or (anchor and anchor not in slugs(to)):
            broken.append(target)
    assert broken == []


def test_the_site_has_every_page() -> None:
    def leaves(nav: Any) -> Iterator[str]:
        for item in nav if isinstance(nav, list) else nav.values():
            if isinstance(item, str):
                yield item
            else:
                yield from leaves(item)

    in_nav = sorted(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert in_nav == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_files_named_beside_a_paper_exist() -> None:
    missing, folder = [], ROOT
    for name in re.findall(r"`([\w./]+(?:/|\.py|\.yaml))`", (DOCS / "papers.md").read_text()):
        # A bare name stands behind one of the same folder.
        found = [place / name for place in (ROOT / "paras2s", folder) if (place / name).exists()]
        missing += [] if found else [name]
        folder = found[0].parent if found and found[0].is_file() else folder
    assert missing == []


# -- words ------------------------------------------------------------------------------------------------------------


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("name", PAGES)
def test_no_page_names_a_machine(name: str) -> None:
    text = PAGES[name].read_text()
    # Written apart, so that the repository does not hold what it looks for.
    assert "scratch " + "script" not in text.lower()
    assert re.findall(r"(?<![\w.])/(?:work|tmp|root|home|opt|mnt|Users)/\S*", text) == []
    # A picture or script from elsewhere would be loaded from the network, and Mermaid's code comes from a CDN.
    assert re.findall(r'!\[[^\]]*\]\(https?:|src="https?:', text) == []
    assert not [block for block in BLOCKS if block.page == name and block.language == "mermaid"]
