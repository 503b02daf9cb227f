"""`paras2s doctor` on versions: those that cannot run this package are named.

Not covered: an environment of the oldest versions. They were read from the libraries' sources: `FSDPModule` has
`set_reduce_scatter_unused_params` since torch 2.13, Qwen-Omni's thinker has its towers in `thinker.model` since transformers
5.21, and peft 0.17 imports what transformers 5 no longer has.
"""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from torch.distributed.fsdp import FSDPModule

from paras2s.pipeline.doctor import examine

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
# Package, the newest version that cannot run ours, and the oldest that can.
BOUNDS = {"torch": ("2.12.1", "2.13.0"), "transformers": ("5.20.2", "5.21.0"), "peft": ("0.17.1", "0.18.0")}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_project_asks_for_versions_that_can_run_it(name: str) -> None:
    assert hasattr(FSDPModule, "set_reduce_scatter_unused_params")
    lists = (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    required = [each for lines in lists for each in map(Requirement, lines) if each.name == name]
    assert required
    assert [[each.specifier.contains(version) for version in BOUNDS[name]] for each in required] == [[False, True]] * len(
        required
    )


def test_a_version_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["torch>=2.13", 'peft>=0.18; extra == "offline"'])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"torch": "2.12.0+cpu", "peft": "0.18.0"}.get(name, "1"))
    parts = {part["part"]: (part["ok"], part["is"]) for part in examine()["parts"]}
    assert parts["torch"] == (False, "2.12.0+cpu; needs >=2.13")
    assert (parts["peft"], parts["ray"]) == ((True, "0.18.0"), (True, "1"))
