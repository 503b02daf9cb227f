"""The Omni reward model's part of `paras2s distill`: the same preference set, learned by the thinker with LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paras2s.audio import Clip, read_clip
from paras2s.config import OmniConfig
from paras2s.data_gen.manifest import Dataset, inside
from paras2s.errors import JudgeError
from paras2s.reward.omni import LOW_MASS, OmniRewardModel, SpokenPair
from paras2s.stages.distill import Judged, agreement_report
from paras2s.stages.run import Run


def spoken_pairs(dataset: Dataset, judged: Judged, places: Sequence[int]) -> list[SpokenPair]:
    """Question and answer as sound."""
    clips: dict[int, Clip] = {}
    for place in places:
        owner = judged.owners[place]
        if owner not in clips:
            clips[owner] = read_clip(inside(dataset.folder, judged.queries[owner].clip))
    return [SpokenPair(clips[judged.owners[place]], judged.clips[place]) for place in places]


def distill_omni(run: Run, dataset: Dataset, config: OmniConfig, judged: Judged, held: Judged) -> dict[str, Any]:
    """Train the adapter into the run's `reward/omni`, and report its agreement on held-out queries.

    Raises:
        JudgeError: the weights are not here, or nothing was scored.
    """
    model = OmniRewardModel.pretrained(config)
    model.add_lora()
    taught = [(place, score) for place, score in judged.scored() if len(judged.clips[place].samples)]
    if not taught:
        raise JudgeError("the teacher scored none of the sampled answers, so there is nothing to learn from")
    pairs = spoken_pairs(dataset, judged, [place for place, _ in taught])
    with run.bar("Omni steps", config.steps) as bar:
        model.train(
            pairs,
            [round(score) for _, score in taught],
            run.config.seed,
            lambda step, loss: bar.at(step + 1, config.steps, f"loss {loss:.2f}"),
        )
    model.save_adapter(run.reward_dir / "omni")
    found = model.score(spoken_pairs(dataset, held, [place for place, _ in held.scored()]))
    mass = [one.digit_mass for one in found]
    return agreement_report([one.expected for one in found], judged, held) | {
        "model": config.model,
        "pairs": len(pairs),
        "digit_mass_mean": float(np.mean(mass)) if mass else None,
        "low_mass_share": float(np.mean([one < LOW_MASS for one in mass])) if mass else None,
    }
