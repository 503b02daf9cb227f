"""The work of a sampling step and of a learner step does not grow unseen: counted, so that no load on the machine matters.

`python benchmarks/operations.py --write` makes today's counts the ones to compare with. Not covered: how long the work takes.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return importlib.import_module("operations")


def test_no_step_does_a_quarter_more_than_the_stored_counts(operations: ModuleType) -> None:
    stored, counts = json.loads(operations.COUNTS.read_text()), operations.count_all()
    assert counts.keys() == stored.keys()
    risen = {
        name: f"{stored[name]} to {value}" for name, value in counts.items() if value > operations.MOST_RISE * stored[name]
    }
    assert risen == {}, (
        f"more work than {operations.COUNTS.name} allows; make it cheaper, or run operations.py --write and say why"
    )


def test_what_is_counted(operations: ModuleType) -> None:
    left, right = torch.ones(3, 4), torch.ones(4, 5)
    # A product and a sum; the transposition moves nothing.
    counts = operations.count(lambda: (left @ right).t().sum())
    assert counts == {"operations": 2, "flops": 2 * 3 * 4 * 5}
