"""Fails where a run of UniSRM's embedded edition does not hear or keeps no format. CI runs it on the smallest one.

python tools/check_unisrm.py RESULTS      # reads RESULTS/unisrm.json, which `paras2s unisrm run` writes

The limits are loose: the smallest run has memorised a few dozen items. They catch a tower that is deaf, a loss that does not
fall, and replies to new clips that break the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gate import run_gate

# Of the variance of the noise that was laid on clips of other speakers and texts.
LEAST_EXPLAINED = 0.5
LEAST_PARSED = 0.5
# SFT's loss at the end, as a share of that at the beginning.
MOST_LEFT = 0.2
MODELS = ("sft", "grpo_accuracy", "grpo_consistent")


def failures(results: Mapping[str, Any]) -> list[str]:
    """Says what the results of a run show to be wrong; empty where they pass."""
    found = [f"seed {seed} is not finished" for seed in results["missing"]]
    for seed in results["seeds"]:
        name = f"seed {seed['seed']}"
        noise = seed.get("tower_probe", {}).get("traits", {}).get("noise")
        if noise is None or noise < LEAST_EXPLAINED:
            said = "nothing was measured" if noise is None else f"{noise:.2f} of its variance, less than {LEAST_EXPLAINED}"
            found.append(f"{name}: the tower does not hear noise: {said}")
        losses = [part["loss"] for part in seed["curves"].get("sft", ())]
        if not losses or losses[-1] > MOST_LEFT * losses[0]:
            found.append(f"{name}: the loss of SFT does not fall: {', '.join(f'{loss:.2f}' for loss in losses)}")
        for model in MODELS:
            parsed = seed["models"].get(model, {}).get("T2", {}).get("parsed", {}).get("value")
            if parsed is None or parsed < LEAST_PARSED:
                said = "none was benched" if parsed is None else f"{parsed:.2f} of them, less than {LEAST_PARSED}"
                found.append(f"{name}, {model}: replies to T2 break the format: {said}")
    return found


if __name__ == "__main__":
    run_gate(__doc__, "results", "unisrm.json", failures)
