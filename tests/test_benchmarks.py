"""Every name that a benchmark imports from the package exists. Not covered: that benchmarks run, which takes minutes each."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


def test_there_are_benchmarks() -> None:
    assert len(BENCHMARKS) > 5


def submodule(package: ModuleType, name: str) -> bool:
    return importlib.util.find_spec(f"{package.__name__}.{name}") is not None


def test_a_name_that_is_not_there_is_missed() -> None:
    package = importlib.import_module("paras2s.rollout")
    assert submodule(package, "workers")
    assert not submodule(package, "actors")


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paras2s"):
            module = importlib.import_module(str(node.module))
            missing += [name.name for name in node.names if not hasattr(module, name.name) and not submodule(module, name.name)]
    assert missing == []
