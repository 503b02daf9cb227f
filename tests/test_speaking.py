"""The plan's rates of Kimi-Audio's detokenizer are what its networks hold and do at released sizes.

Not covered: how long they take on a device.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def test_the_rates_are_counted_from_the_released_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    speaking = importlib.import_module("speaking")
    rates = yaml.safe_load((ROOT / "paras2s/planning/rates.yaml").read_text())["policies"]["kimi-audio-7b"]
    assert rates["answer_s"]["value"] == speaking.ANSWER_S
    # A shorter answer, which is quicker to count; its second of sound takes one part in a hundred less.
    found = speaking.count_speaking(10.0)
    flow, vocoder = found.parameters
    assert (2 * flow + 4 * vocoder) / 2**30 == pytest.approx(float(rates["speaking"]["held_gib"]["value"]), rel=0.01)
    assert rates["speaking"]["state_gib"]["value"] == pytest.approx(speaking.prefix_gib(), rel=0.01)
    assert sum(found.gflop_per_s) == pytest.approx(float(rates["speaking"]["gflop_per_s"]["value"]), rel=0.02)
