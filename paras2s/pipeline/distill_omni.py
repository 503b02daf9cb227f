"""The Omni reward model's part of `paras2s distill`: the same preference set, learned by the thinker with LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip, read_clip
from paras2s.configs.schema.run import OmniConfig
from paras2s.data_gen.dataset import Dataset, inside
from paras2s.errors import JudgeError
from paras2s.pipeline.preference_set import JudgedAnswers, degenerate_answers
from paras2s.pipeline.reward_agreement import PROBES_OF_EACH, agreement_report
from paras2s.reward.reward_model.omni import (
    LOW_MASS,
    RATE_HZ,
    OmniRewardModel,
    OmniScore,
    SpokenPair,
    audio_tokens,
    read_adapter_config,
)
from paras2s.reward.sources.omni import InProcess
from paras2s.run import Run


def spoken_pairs(dataset: Dataset, judged: JudgedAnswers, places: Sequence[int]) -> list[SpokenPair]:
    """Question and answer as sound."""
    clips: dict[int, Clip] = {}
    for place in places:
        owner = judged.owners[place]
        if owner not in clips:
            clips[owner] = read_clip(inside(dataset.folder, judged.queries[owner].clip))
    return [SpokenPair(clips[judged.owners[place]], judged.clips[place]) for place in places]


def distill_omni(run: Run, dataset: Dataset, config: OmniConfig, judged: JudgedAnswers, held: JudgedAnswers) -> dict[str, Any]:
    """Train the adapter into the run's `reward/omni`, and report its agreement on held-out queries.

    Raises:
        JudgeError: the weights are not here, or nothing was scored.
    """
    model = OmniRewardModel.pretrained(config)
    model.add_lora()
    taught = [(place, score) for place, score in judged.scored() if _audible(judged.clips[place], config)]
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
    pupil = InProcess(model)
    scored = pupil.score_each(spoken_pairs(dataset, held, [place for place, _ in held.scored()]))
    found = [one for one in scored if isinstance(one, OmniScore)]
    mass = [one.digit_mass for one in found]
    # Agreement over what it could score; how many it could not stands beside.
    kept = held.only([place for (place, _), one in zip(held.scored(), scored, strict=True) if isinstance(one, OmniScore)])
    return agreement_report([one.expected for one in found], judged, kept) | {
        "model": config.model,
        "pairs": len(pairs),
        "pairs_left_out": len(judged.scored()) - len(pairs),
        "held_out_unscored": len(scored) - len(found),
        "digit_mass_mean": float(np.mean(mass)) if mass else None,
        "low_mass_share": float(np.mean([one < LOW_MASS for one in mass])) if mass else None,
        "probes": _probe(pupil, dataset, held),
    }


def export_omni(run: Run, folder: Path) -> None:
    """Write the run's distilled Omni model, merged, where `vllm serve` can read it.

    Raises:
        JudgeError: this run has distilled none.
    """
    adapter = run.reward_dir / "omni"
    if not (adapter / "omni.json").is_file():
        raise JudgeError(f"{adapter}: no Omni model to export; set distill.omni and distil")
    config = OmniConfig.model_validate(read_adapter_config(adapter))
    OmniRewardModel.pretrained(config, adapter).export(folder)
    run.say(f"  serve it: vllm serve {folder} --limit-mm-per-prompt '{{\"audio\": 2}}'")


def _audible(clip: Clip, config: OmniConfig) -> bool:
    """Whether a clip is neither too short to have a token nor longer than is read."""
    if not len(clip.samples) or clip.duration_s > config.max_audio_s:
        return False
    return audio_tokens(len(clip.at(RATE_HZ).samples)) > 0


def _probe(pupil: InProcess, dataset: Dataset, held: JudgedAnswers) -> dict[str, Any]:
    """The highest score of each kind of degenerate audio, as an answer to held-out questions."""
    table = {}
    for kind, clips in degenerate_answers(dataset, PROBES_OF_EACH, seed=1000).items():
        queries = [held.queries[n % len(held.queries)] for n in range(len(clips))]
        questions = [read_clip(inside(dataset.folder, query.clip)) for query in queries]
        scored = pupil.score_each([SpokenPair(question, clip) for question, clip in zip(questions, clips, strict=True)])
        values = [one.expected for one in scored if isinstance(one, OmniScore)]
        table[kind] = {"model_max": max(values) if values else None, "unscored": len(scored) - len(values), "n": len(clips)}
    return table
