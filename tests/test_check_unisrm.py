"""The gate on a small run of UniSRM: it passes one that hears and keeps the format, and names each way in which one is wrong.

Not covered: whether the limits are the right ones; CI meets them with `embedded_ci`.
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
MODELS = ("sft", "grpo_accuracy", "grpo_consistent")

GOOD: dict[str, Any] = {
    "missing": [],
    "seeds": [
        {
            "seed": 0,
            "tower_probe": {"letter_errors": 0.7, "traits": {"noise": 0.9, "tremor": -0.1}},
            "curves": {"sft": [{"loss": 6.0}, {"loss": 0.4}]},
            "models": {name: {"T2": {"parsed": {"value": 0.9}}} for name in MODELS},
        }
    ],
}


@pytest.fixture(scope="module")
def gate() -> Any:
    sys.path.insert(0, str(TOOLS))
    try:
        return importlib.import_module("check_unisrm")
    finally:
        sys.path.remove(str(TOOLS))


def test_a_run_that_hears_and_keeps_the_format_passes(gate: Any) -> None:
    assert gate.failures(GOOD) == []


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("tower_probe", "traits", "noise"), 0.1, "does not hear noise: 0.10 of its variance"),
        (("tower_probe",), {}, "does not hear noise: nothing was measured"),
        (("curves", "sft"), [{"loss": 6.0}, {"loss": 2.0}], "the loss of SFT does not fall: 6.00, 2.00"),
        (("models", "grpo_accuracy", "T2", "parsed", "value"), 0.3, "grpo_accuracy: replies to T2 break the format: 0.30"),
        (("models", "grpo_consistent"), {}, "grpo_consistent: replies to T2 break the format: none was benched"),
    ],
)
def test_each_failure_is_named(gate: Any, place: tuple[str, ...], value: Any, said: str) -> None:
    results = copy.deepcopy(GOOD)
    at = results["seeds"][0]
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    (found,) = gate.failures(results)
    assert said in found


def test_as_a_program_it_ends_with_1_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "unisrm.json").write_text(json.dumps(GOOD | {"missing": [3]}))
    command = [sys.executable, TOOLS / "check_unisrm.py", tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 1
    assert "seed 3 is not finished" in ended.stdout
    (tmp_path / "unisrm.json").write_text(json.dumps(GOOD))
    assert subprocess.run(command, capture_output=True, check=False, timeout=300).returncode == 0
