"""The Omni reward model's part of `paras2s distill`: the same preference set, learned by the thinker with LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from paras2s.audio.clip import read_clip
from paras2s.configs.schema.run import OmniConfig
from paras2s.data_gen.dataset import Dataset, inside
from paras2s.errors import JudgeError
from paras2s.pipeline.people import answer_key
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
from paras2s.reward.reward_model.omni_train import OmniTraining
from paras2s.reward.sources.omni import InProcess
from paras2s.run import Run
from paras2s.train.checkpoint import (
    Position,
    describe_size,
    latest_checkpoint,
    remove_superseded,
    restore_training,
    save_training,
    step_name,
    training_bytes,
)
from paras2s.utils.cache import key_of
from paras2s.utils.io import append_jsonl, drop_steps_from


@dataclass(frozen=True)
class SpokenPairs(Sequence[SpokenPair]):
    """Questions and some of their answers as sound, read on demand."""

    dataset: Dataset
    judged: JudgedAnswers
    places: Sequence[int]

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, row: int) -> SpokenPair: ...

    @overload
    def __getitem__(self, row: slice) -> SpokenPairs: ...

    def __getitem__(self, row: int | slice) -> SpokenPair | SpokenPairs:
        if isinstance(row, slice):
            return SpokenPairs(self.dataset, self.judged, self.places[row])
        index = self.places[row]
        question = self.judged.queries[self.judged.owners[index]].clip
        return SpokenPair(read_clip(inside(self.dataset.folder, question)), self.judged.answers[index].sound())


def distill_omni(run: Run, dataset: Dataset, config: OmniConfig, judged: JudgedAnswers, held: JudgedAnswers) -> dict[str, Any]:
    """Train the adapter into the run's `reward/omni`, and report its agreement. Raises JudgeError: no weights, or no score."""
    model = OmniRewardModel.pretrained(config)
    model.add_lora()
    taught = [(index, score) for index, score in judged.scored() if _audible(judged.durations_s[index], config)]
    if not taught:
        raise JudgeError("the teacher scored none of the sampled answers, so there is nothing to learn from")
    pairs = SpokenPairs(dataset, judged, [index for index, _ in taught])
    _train(run, OmniTraining(model, pairs, [round(score) for _, score in taught], run.config.seed), _data_key(judged, taught))
    model.save_adapter(run.reward_dir / "omni")
    pupil = InProcess(model)
    scored = pupil.score_each(SpokenPairs(dataset, held, [index for index, _ in held.scored()]))
    valid = [score for score in scored if isinstance(score, OmniScore)]
    mass = [score.digit_mass for score in valid]
    # Agreement over the scored answers; `held_out_unscored` counts the others.
    kept = held.only([index for (index, _), score in zip(held.scored(), scored, strict=True) if isinstance(score, OmniScore)])
    return agreement_report([score.expected for score in valid], judged, kept) | {
        "model": config.model,
        "pairs": len(pairs),
        "pairs_left_out": len(judged.scored()) - len(pairs),
        "held_out_unscored": len(scored) - len(valid),
        "digit_mass_mean": float(np.mean(mass)) if mass else None,
        "low_mass_share": float(np.mean([share < LOW_MASS for share in mass])) if mass else None,
        "probes": _probe(pupil, dataset, held),
    }


def _train(run: Run, training: OmniTraining, data: str) -> None:
    """Train all steps, from the newest checkpoint of a training on the same data; the adapter is written at the end."""
    config = training.model.config
    checkpoints = run.folder / "checkpoints" / f"omni-{data}"
    checkpoint = latest_checkpoint(checkpoints)
    first = restore_training(checkpoint, training.model, training.optimiser) if checkpoint else 0
    log = run.folder / "omni.jsonl"
    drop_steps_from(log, first)
    # One checkpoint is kept; a second exists while it is written.
    if most := min(2, (config.steps - 1) // config.checkpoint_every):
        run.say(f"  {describe_size(training_bytes(training.model), most, adapters=True)}")
    with run.bar("Omni steps", config.steps) as bar:
        for step in range(first, config.steps):
            loss = training.step(step)
            append_jsonl(log, {"step": step, "loss": loss})
            bar.at(step + 1, config.steps, f"loss {loss:.2f}")
            if (step + 1) % config.checkpoint_every == 0 and step + 1 < config.steps:
                save_training(checkpoints / step_name(step + 1), training.model, training.optimiser, Position(step + 1))
                remove_superseded(checkpoints, 1, None)
    training.finish()


def _data_key(judged: JudgedAnswers, taught: Sequence[tuple[int, float]]) -> str:
    """Hash the training data: when people score more, training begins again."""
    rows = [[answer_key(judged.queries[judged.owners[index]].id, judged.codes[index]), score] for index, score in taught]
    return key_of(rows)[:12]


def export_omni(run: Run, folder: Path) -> None:
    """Write the run's distilled Omni model, merged, for `vllm serve`. Raises JudgeError: this run has distilled none."""
    adapter = run.reward_dir / "omni"
    if not (adapter / "omni.json").is_file():
        raise JudgeError(f"{adapter}: no Omni model to export; set distill.omni and distil")
    config = OmniConfig.model_validate(read_adapter_config(adapter))
    OmniRewardModel.pretrained(config, adapter).export(folder)
    run.say(f"  serve it: vllm serve {folder} --limit-mm-per-prompt '{{\"audio\": 2}}'")


def _audible(duration_s: float, config: OmniConfig) -> bool:
    """Return whether a clip is long enough for a token and no longer than the limit."""
    return duration_s <= config.max_audio_s and audio_tokens(int(duration_s * RATE_HZ)) > 0


def _probe(pupil: InProcess, dataset: Dataset, held: JudgedAnswers) -> dict[str, Any]:
    """Return the highest score of each kind of degenerate audio, as an answer to held-out questions."""
    table = {}
    for kind, clips in degenerate_answers(dataset, PROBES_OF_EACH, seed=1000).items():
        queries = [held.queries[n % len(held.queries)] for n in range(len(clips))]
        questions = [read_clip(inside(dataset.folder, query.clip)) for query in queries]
        scored = pupil.score_each([SpokenPair(question, clip) for question, clip in zip(questions, clips, strict=True)])
        values = [score.expected for score in scored if isinstance(score, OmniScore)]
        table[kind] = {"model_max": max(values) if values else None, "unscored": len(scored) - len(values), "n": len(clips)}
    return table
