"""A policy of one's own: the module that is written, and the next method to write, named one after another.

Not covered: filling the module in with a real model; here its methods are handed to a tiny one of the package.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny.moshi import tiny_moshi
from typer.testing import CliRunner

import paras2s
from paras2s.cli.app import app
from paras2s.errors import ConfigError, PolicyError
from paras2s.policy.first_steps import LAYOUTS, METHODS, walk_methods, write_policy


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    name = f"own_{abs(hash(request.node.name))}"
    write_policy(name, "frames", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module(name)


def class_of(module: Any) -> type[paras2s.Policy]:
    (found,) = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, paras2s.Policy)]
    return found


def filled(base: type[paras2s.Policy], methods: list[str]) -> type[paras2s.Policy]:
    """The written class with some methods handed to a tiny policy."""

    def construct(self: Any) -> None:
        self.inner = tiny_moshi()
        self.model, self.spec = self.inner.model, self.inner.spec

    def handed(name: str) -> Any:
        return lambda self, *args: getattr(self.inner, name)(*args)

    own = {name: handed(name) for name in methods if name not in ("__init__", "load")}
    own |= {"__init__": construct} if "__init__" in methods else {}
    own |= {"load": classmethod(lambda cls, folder: cls())} if "load" in methods else {}
    return type("Mine", (base,), own)


def test_the_next_method_is_named_one_after_another(module: Any) -> None:
    base, written = class_of(module), []
    for name in METHODS:
        if name in ("spec", "model"):
            continue
        *before, last = walk_methods(filled(base, written))
        assert all(finding.ok for finding in before)
        assert (last.name, last.ok) == (name, False)
        assert last.detail == f"write it next; it returns {METHODS[name]}"
        written.append(name)
    findings = list(walk_methods(filled(base, written)))
    assert [finding.name for finding in findings if finding.ok] == list(METHODS)


def test_what_raises_or_returns_something_else_is_said(module: Any) -> None:
    class Wrong(filled(class_of(module), ["__init__"])):  # type: ignore[misc]
        def encode_prompt(self, turns: Any) -> Any:
            return "a prompt"

    class Raises(filled(class_of(module), ["__init__"])):  # type: ignore[misc]
        def encode_prompt(self, turns: Any) -> Any:
            raise RuntimeError("no tokenizer")

    assert "returned something else; it returns a Prompt" in list(walk_methods(Wrong))[-1].detail
    assert f"raised RuntimeError (no tokenizer) at {__file__}:" in list(walk_methods(Raises))[-1].detail


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_files_import_nothing_but_what_is_public(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_policy(f"like_{layout}", layout, tmp_path)
    for path in paths:
        tree = ast.parse(path.read_text())
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(str(name).startswith("paras2s") for name in modules)
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "paras2s"
        }
        assert used <= set(paras2s.__all__)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = class_of(importlib.import_module(f"like_{layout}")).spec
    assert len(spec.slots) == {"dual_stream": 2, "interleaved": 1, "frames": 9}[layout]
    with pytest.raises(ConfigError, match="exists already"):
        write_policy(f"like_{layout}", layout, tmp_path)


def test_the_commands_say_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = CliRunner().invoke(app, ["new-policy", "hour_model"])
    assert made.exit_code == 0, made.output
    assert "paras2s check-policy hour_model:HourModel" in made.stdout
    done = CliRunner().invoke(app, ["check-policy", "hour_model:HourModel"])
    assert done.exit_code == 1
    assert "next __init__: write it next; it returns self.model" in done.stdout
    assert f"0 of {len(METHODS)} parts are written" in done.stdout
    assert "there are dual_stream" in str(CliRunner().invoke(app, ["new-policy", "x", "--like", "y"]).exception)


@pytest.mark.parametrize(
    ("code", "named", "said"),
    [
        ("import nothing_there", "broken:X", r"\(No module named 'nothing_there'\) at .*broken\.py:1$"),
        ("\n1 / 0", "broken:X", r"\(division by zero\) at .*broken\.py:2$"),
        ("def make():\n    raise OSError('no weights')", "broken:make", r"raised OSError \(no weights\) at .*broken\.py:2$"),
        ("def make(size): pass", "broken:make", "cannot be made without arguments"),
        ("", "broken:X", r"module 'broken' has no attribute 'X'\)$"),
        ("", "lost:X", r"No module named 'lost'\); begin the command with PYTHONPATH=\. if it is in this folder$"),
        ("", "broken.py", r"broken\.py: is a file; name the class in it: PYTHONPATH=\. paras2s check-policy broken:Class$"),
    ],
)
def test_a_module_that_raises_is_named_with_its_line(
    code: str, named: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (tmp_path / "broken.py").write_text(code)
    with pytest.raises(PolicyError, match=said):
        CliRunner().invoke(app, ["check-policy", named], catch_exceptions=False)


@pytest.mark.parametrize("name", ["numpy", "json", "paras2s"])
def test_a_new_policy_hides_no_installed_module(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name}: is the name of an installed module"):
        write_policy(name, "frames", tmp_path)
