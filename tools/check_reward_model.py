"""Fails where a run's reward model pays for what is no answer: disorder, noise, the question itself. CI runs it on a quick run.

python tools/check_reward_model.py RUN      # reads RUN/reward/agreement.json, which `paras2s distill` writes

The limits are loose: a quick run's model learns from a few hundred answers. They catch a model that does not
hear the order of an answer, that pays for noise, or that takes everything for known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gate import run_gate

# How much less than the answer itself its disorder has to score, of 1 to 5.
LEAST_DROP = 1.5
DISORDERS = ("shuffled", "reversed", "twice", "question")
MOST_FOR_DEGENERATE = 2.5
# Of one kind at least. Which one is chance: of 15 to 31 answers played backwards, all of which they score near 1, the models of
# `paras2s ablate staleness` (seeds 0 to 2) know 24 to 100 %.
MOST_KNOWN = 0.9


def failures(report: Mapping[str, Any]) -> list[str]:
    """Says what a reward model's report (`agreement.json`) shows it to be wrong about; empty where it passes."""
    rows = report["disorder"]
    if not rows:
        return ["the report has no answers out of order: no held-out answer was good enough to disorder"]
    score = rows["original"]["model_mean"]
    found = [
        f"{kind}: {rows[kind]['model_mean']:.2f}, less than {LEAST_DROP} below the answer's own {score:.2f}"
        for kind in DISORDERS
        if rows[kind]["model_mean"] > score - LEAST_DROP
    ]
    worst = {kind: row["model_max"] for kind, row in report["probes"].items() if row["model_max"] > MOST_FOR_DEGENERATE}
    found += [
        f"{kind}: up to {value:.2f} for audio that is no answer, above {MOST_FOR_DEGENERATE}" for kind, value in worst.items()
    ]
    least = min(row["known"] for kind, row in rows.items() if kind != "original")
    if least > MOST_KNOWN:
        found.append(
            f"it takes everything for known: at least {least:.0%} of every kind of disorder, and of questions as answers"
        )
    return found


if __name__ == "__main__":
    run_gate(__doc__, "run", "reward/agreement.json", failures)
