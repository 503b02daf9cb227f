"""The layout of the package: imports run one way and in no circle, files and functions stay short.

Offenders of today stand in the lists below, and an entry that is no longer needed fails as well: the lists only shrink.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
PACKAGE = "paras2s"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

# From the top down. A room (a folder or module directly in the package) imports from its own layer and those below.
LAYERS = (
    ("__main__",),
    # `api` is what the package exports beside its classes; only its `__init__` imports it.
    ("cli", "api"),
    ("studio",),
    # They renew this project's own pages.
    ("experiments",),
    ("pipeline", "grpo", "align"),
    ("integrations",),
    ("bench", "data_gen"),
    # A run opens the policy and the reward of its config; the rooms above take it from there.
    ("run",),
    ("rollout",),
    ("reward", "train"),
    ("policy", "planning"),
    ("audio", "clients", "statistics", "studies"),
    ("configs", "types", "errors", "utils"),
)
GUEST = "unisrm"
DEPTH = {room: depth for depth, layer in enumerate(LAYERS) for room in layer}
# Neither imports the other, not even downwards: a policy does not know its judge.
APART = (("reward", "policy"),)

# Offenders of today, "importer -> imported". Take an entry out with the import.
UPWARD = set()
CIRCLES: set[str] = set()
LONG_FILES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()


@dataclass(frozen=True, order=True)
class Import:
    """One import of a module of the package and its line."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported}"


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_modules() -> dict[str, ast.Module]:
    paths = sorted((REPOSITORY / PACKAGE).rglob("*.py"))
    return {module_name(path): ast.parse(path.read_text(), str(path)) for path in paths}


def room(module: str) -> str:
    """Return the folder or module directly in the package that holds the module; the package's own name for its `__init__`.

    UniSRM has the rooms of the package again, in the same order: `unisrm.bench` counts as `bench`.
    """
    parts = [part for part in module.split(".") if part != GUEST] or [module]
    return parts[1] if len(parts) > 1 else parts[0]


def imports_of(module: str, tree: ast.Module, modules: Mapping[str, object]) -> Iterator[Import]:
    """Yields every import of the package's modules: at the top, inside functions, for type checking, and by name."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports relatively"
            # `from a.b import c` imports a.b.c where that is a module, else a.b. The version is no module.
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else str(node.module) for name in full if name != f"{PACKAGE}.__version__"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{PACKAGE}."):
            # A table of names that are imported late: "paras2s.a.b" or "paras2s.a.b:Class".
            names = [node.value.partition(":")[0]]
        for name in names:
            if name in modules and name != module:
                yield Import(module, name, node.lineno)


def read_imports() -> list[Import]:
    modules = read_modules()
    return sorted({found for name, tree in modules.items() for found in imports_of(name, tree, modules)})


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one node, each sorted (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(edges.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = [stack.pop()]
            while component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def check(found: Mapping[str, str], allowed: set[str], rule: str) -> None:
    """Fails with every offender that is not allowed, and with every allowed one that is no offender any more."""
    new = [f"{name}  ({found[name]})" if found[name] else name for name in sorted(set(found) - allowed)]
    old = sorted(allowed - set(found))
    report = [f"{rule}:", *(f"  {line}" for line in new)] if new else []
    report += ["no longer needed in the list of today's offenders:", *(f"  {name}" for name in old)] if old else []
    assert not report, "\n".join(report)


def test_every_room_has_a_layer() -> None:
    rooms = {room(name) for name in read_modules()} - {PACKAGE}
    assert rooms <= set(DEPTH), f"give these a layer, or move them into a room that has one: {sorted(rooms - set(DEPTH))}"
    assert rooms >= set(DEPTH), f"layers name rooms that are not there: {sorted(set(DEPTH) - rooms)}"


def test_imports_run_one_way() -> None:
    found = {}
    for edge in read_imports():
        above, below = room(edge.importer), room(edge.imported)
        if above == PACKAGE or above not in DEPTH or (below not in DEPTH and below != PACKAGE):
            continue
        # The package's own module is the public API: it imports every room, and no room imports it.
        if below == PACKAGE or DEPTH[below] < DEPTH[above]:
            found[str(edge)] = f"line {edge.line}: {above} lies below {below}"
        elif {above, below} in map(set, APART):
            found[str(edge)] = f"line {edge.line}: {above} and {below} do not know each other"
    check(found, UPWARD, "imports that run upwards")


def test_no_circle_between_modules_or_rooms() -> None:
    modules, rooms = defaultdict(set), defaultdict(set)
    for edge in read_imports():
        if PACKAGE in {edge.importer, edge.imported}:
            continue
        modules[edge.importer].add(edge.imported)
        if room(edge.importer) != room(edge.imported):
            rooms[room(edge.importer)].add(room(edge.imported))
    found = {}
    for graph in (modules, rooms):
        for circle in circles(graph):
            inside = [f"{one} -> {other}" for one in circle for other in sorted(graph[one]) if other in circle]
            found[", ".join(circle)] = "; ".join(inside)
    check(found, CIRCLES, "import circles")


def test_no_file_is_long() -> None:
    paths = [*(REPOSITORY / PACKAGE).rglob("*.py"), *TESTS.rglob("*.py")]
    lines = {path.relative_to(REPOSITORY).as_posix(): len(path.read_text().splitlines()) for path in paths}
    found = {name: f"{count} lines" for name, count in lines.items() if count > MAX_FILE_LINES}
    check(found, LONG_FILES, f"files of more than {MAX_FILE_LINES} lines")


def test_no_function_is_long() -> None:
    found = {}
    for module, tree in read_modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or 0) - node.lineno + 1
                if count > MAX_FUNCTION_LINES:
                    found[f"{module}.{node.name}"] = f"{count} lines"
    check(found, LONG_FUNCTIONS, f"functions of more than {MAX_FUNCTION_LINES} lines")


def test_no_name_of_a_class_is_used_three_times() -> None:
    """A reader who meets `Comparison` must not ask which."""
    homes = defaultdict[str, list[str]](list)
    for module, tree in read_modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 2} == {}


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}}) == []


def test_imports_are_found_wherever_they_stand() -> None:
    modules = {name: None for name in ("paras2s", "paras2s.a", "paras2s.a.b", "paras2s.c")}
    code = """
from typing import TYPE_CHECKING
from importlib import import_module
from paras2s import __version__
from paras2s.a import b, other
if TYPE_CHECKING:
    import paras2s.c
def late():
    from paras2s.c import thing
    import_module("paras2s.a")
    return {"kind": "paras2s.c:Thing"}
"""
    found = sorted((edge.imported, edge.line) for edge in imports_of("paras2s.here", ast.parse(code), modules))
    assert found == [
        ("paras2s.a", 5),
        ("paras2s.a", 10),
        ("paras2s.a.b", 5),
        ("paras2s.c", 7),
        ("paras2s.c", 9),
        ("paras2s.c", 11),
    ]


def waits_for_ever(call: ast.Call) -> bool:
    """Whether a call waits for another process without an end."""
    if any(keyword.arg in ("timeout", None) for keyword in call.keywords) or not isinstance(call.func, ast.Attribute):
        return False
    name = ast.unparse(call.func)
    return name in ("subprocess.run", "subprocess.check_output", "ray.get") or name.endswith(".communicate")


def test_no_test_waits_for_a_process_without_end() -> None:
    texts = {path: path.read_text() for path in sorted(TESTS.rglob("*.py"))}
    calls = [
        (path.relative_to(TESTS), node)
        for path, text in texts.items()
        if any(words in text for words in ("subprocess", "ray.get", ".communicate"))
        for node in ast.walk(ast.parse(text, str(path)))
        if isinstance(node, ast.Call)
    ]
    assert [f"{path}:{call.lineno}: give it a timeout" for path, call in calls if waits_for_ever(call)] == []


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports them by name: of two in one process, the second is not collected."""
    named = defaultdict(list)
    for path in TESTS.rglob("test_*.py"):
        named[path.name].append(path.relative_to(TESTS).as_posix())
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}
