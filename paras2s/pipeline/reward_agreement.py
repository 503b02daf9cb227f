"""Agreement of a reward model with its teacher on held-out queries, beside baselines that hear nothing of importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paras2s.pipeline.preference_set import JudgedAnswers
from paras2s.reward.reward_model.train import agreement, fit_baseline

PROBES_OF_EACH = 8


# What a reward model would have learned if it had listened to nothing that matters.
BASELINES: dict[str, Callable[[JudgedAnswers, int], float]] = {
    "majority": lambda judged, place: 0.0,
    "length": lambda judged, place: float(len(judged.answers[place].codes)),
    "loudness": lambda judged, place: judged.loudness_db[place],
}


def agreement_report(predicted: Sequence[float], judged: JudgedAnswers, held: JudgedAnswers) -> dict[str, Any]:
    """Measure agreement of predictions with `held.scored()`, in its order; baselines are fitted on the training answers."""
    scored = held.scored()
    wanted = [score for _, score in scored]
    categories = [held.queries[held.owners[place]].category or "" for place, _ in scored]
    taught = judged.scored()
    table = {
        name: fit_baseline(
            [measure(judged, p) for p, _ in taught], [s for _, s in taught], [measure(held, p) for p, _ in scored]
        )
        for name, measure in BASELINES.items()
    }
    return {
        "held_out": agreement(predicted, wanted),
        "held_out_by_category": {
            one: agreement(*([row[n] for n, c in enumerate(categories) if c == one] for row in (predicted, wanted)))
            for one in sorted(set(categories))
        },
        "baselines": {name: agreement(guessed, wanted) for name, guessed in table.items()},
    }
