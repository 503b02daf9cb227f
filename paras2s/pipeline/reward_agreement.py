"""Agreement of a reward model with its teacher on held-out queries, beside baselines that hear nothing of importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paras2s.pipeline.preference_set import JudgedAnswers
from paras2s.reward.reward_model.train import agreement, fit_baseline

PROBES_OF_EACH = 8


# What a reward model would have learned if it had listened to nothing that matters.
BASELINES: dict[str, Callable[[JudgedAnswers, int], float]] = {
    "majority": lambda judged, index: 0.0,
    "length": lambda judged, index: float(len(judged.answers[index].codes)),
    "loudness": lambda judged, index: judged.loudness_db[index],
}


def agreement_report(predicted: Sequence[float], judged: JudgedAnswers, held: JudgedAnswers) -> dict[str, Any]:
    """Measure agreement of predictions with `held.scored()`, in its order; baselines are fitted on the training answers."""
    scored = held.scored()
    targets = [score for _, score in scored]
    categories = [held.queries[held.owners[index]].category or "" for index, _ in scored]
    taught = judged.scored()
    table = {
        name: fit_baseline(
            [measure(judged, p) for p, _ in taught], [s for _, s in taught], [measure(held, p) for p, _ in scored]
        )
        for name, measure in BASELINES.items()
    }
    return {
        "held_out": agreement(predicted, targets),
        "held_out_by_category": {
            category: agreement(*([row[n] for n, c in enumerate(categories) if c == category] for row in (predicted, targets)))
            for category in sorted(set(categories))
        },
        "baselines": {name: agreement(guessed, targets) for name, guessed in table.items()},
    }
