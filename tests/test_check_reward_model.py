"""The gate on a run's reward model: it passes a model that knows order, and names each way in which one is wrong.

Not covered: whether the limits are the right ones; CI meets them with a quick run.
"""

from __future__ import annotations

import copy
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"

GOOD: dict[str, Any] = {
    "disorder": {
        "original": {"model_mean": 4.6, "known": 0.98},
        "shuffled": {"model_mean": 1.2, "known": 1.0},
        "twice": {"model_mean": 1.1, "known": 1.0},
        "reversed": {"model_mean": 1.0, "known": 0.2},
        "question": {"model_mean": 1.0, "known": 0.1},
    },
    "probes": {"silence": {"model_max": 1.1}, "noise": {"model_max": 1.3}},
}


@pytest.fixture(scope="module")
def gate() -> Any:
    sys.path.insert(0, str(TOOLS))
    try:
        return importlib.import_module("check_reward_model")
    finally:
        sys.path.remove(str(TOOLS))


def test_a_model_that_knows_order_passes(gate: Any) -> None:
    assert gate.failures(GOOD) == []


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        # As of a model that reads a mean over codes, which is the same in any order.
        (("disorder", "shuffled", "model_mean"), 4.33, "shuffled: 4.33, less than 1.5 below the answer's own 4.60"),
        (("disorder", "question", "model_mean"), 3.2, "question: 3.20"),
        (("probes", "noise", "model_max"), 2.6, "noise: up to 2.60 for audio that is no answer"),
        (("disorder",), {}, "no held-out answer was good enough"),
    ],
)
def test_each_failure_is_named(gate: Any, place: tuple[str, ...], value: Any, said: str) -> None:
    report = copy.deepcopy(GOOD)
    at = report
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    (found,) = gate.failures(report)
    assert said in found


def test_a_model_that_takes_everything_for_known_is_told_from_one_that_does_so_with_one_kind(gate: Any) -> None:
    report = copy.deepcopy(GOOD)
    report["disorder"]["reversed"]["known"] = 1.0
    assert gate.failures(report) == []
    report["disorder"]["question"]["known"] = 0.95
    (found,) = gate.failures(report)
    assert "takes everything for known: at least 95% of every kind" in found


def test_as_a_program_it_ends_with_1_and_says_why(tmp_path: Path) -> None:
    bad = copy.deepcopy(GOOD)
    bad["disorder"]["reversed"]["model_mean"] = 4.0
    (tmp_path / "reward").mkdir()
    (tmp_path / "reward" / "agreement.json").write_text(json.dumps(bad))
    command = [sys.executable, TOOLS / "check_reward_model.py", tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 1
    assert "reversed: 4.00" in ended.stdout
    (tmp_path / "reward" / "agreement.json").write_text(json.dumps(GOOD))
    assert subprocess.run(command, capture_output=True, check=False, timeout=300).returncode == 0
