"""Both stages of UniSRM with TRL: supervised fine-tuning on full replies, then GRPO (sections 4.1 and 4.2).

On several devices the same call under `accelerate launch`, the batch sizes unchanged.
Left to TRL's defaults, where the paper gives nothing: AdamW, a learning rate that falls linearly to 0.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback

from paras2s.configs.schema.unisrm import SftConfig, UniSRMGrpoConfig
from paras2s.errors import ConfigError, JudgeError
from paras2s.unisrm.reward.descriptions import read_descriptions, requested
from paras2s.unisrm.reward.labels_alone import labels_alone
from paras2s.unisrm.reward.reply import ParseFailure, write_reply
from paras2s.unisrm.reward.resume import ResumingTrainer, last_checkpoint
from paras2s.unisrm.reward.tasks import Item, PairRecord, Record
from paras2s.unisrm.reward.thinker import Encoded, ItemEncoder, UniSRM
from paras2s.utils.io import append_jsonl

log = logging.getLogger(__name__)
# Is given the number of updates that are made, and of all.
OnProgress = Callable[[int, int], None]


class Kind(IntEnum):
    """Kinds of SFT examples: the reply to an item, the reply with silence as clips, or a description of its clips."""

    REPLY = 0
    SILENT = 1
    DESCRIPTION = 2


class SftCollator:
    """Collator of examples: prompt, clips or silence, target text (`descriptions` by item), and labels on that alone."""

    def __init__(self, model: UniSRM, data: Path, items: Sequence[Item], descriptions: Mapping[str, str] | None = None) -> None:
        self.model, self.items, self.descriptions = model, items, descriptions or {}
        self.encoder = ItemEncoder(model, data, items)

    def __call__(self, examples: Sequence[Mapping[str, int]]) -> dict[str, Tensor]:
        """Make model inputs and labels of N examples."""
        rows, texts = zip(*(self._example(example["number"], Kind(example["kind"])) for example in examples), strict=True)
        batch = self.model.batch(rows, [self.model.reply_ids(text) for text in texts])
        # The trainer moves batches to their device itself.
        return {name: value.cpu() for name, value in batch.items()}

    def _example(self, number: int, kind: Kind) -> tuple[Encoded, str]:
        item = self.items[number]
        if kind is Kind.DESCRIPTION:
            return self.encoder.encoded(number, requested(self.model, item.task)), self.descriptions[item.id]
        reply = write_reply(item.task, item.record, self.model.config.reasoning)
        return self.encoder.silenced(number) if kind is Kind.SILENT else self.encoder.encoded(number), reply


def sft_examples(
    count: int, silent_share: float, seed: int, described: Sequence[int] = (), described_share: float = 0.0
) -> dict[str, list[int]]:
    """Choose `count` items by number, then a share of them with silence as clips, and a share to be described."""
    silent = np.random.default_rng([seed, 20]).permutation(count)[: round(silent_share * count)].tolist()
    chosen = np.random.default_rng([seed, 21]).permutation(described)[: round(described_share * count)].tolist()
    kinds = [Kind.REPLY] * count + [Kind.SILENT] * len(silent) + [Kind.DESCRIPTION] * len(chosen)
    return {"number": [*range(count), *silent, *map(int, chosen)], "kind": list(map(int, kinds))}


def trainable(items: Sequence[Item], reasoning: bool) -> list[Item]:
    """Return the items for which a target can be written: with reasoning those whose label has scores, or descriptions (T2)."""

    def reasoned(record: Record) -> bool:
        return record.sides is not None if isinstance(record, PairRecord) else bool(record.descriptions)

    return [item for item in items if not reasoning or reasoned(item.record)]


def train_sft(
    model: UniSRM, data: Path, items: Sequence[Item], config: SftConfig, folder: Path, seed: int = 0,
    on_progress: OnProgress | None = None,
) -> UniSRM:  # fmt: skip
    """Train on the items' labels and save the model to `folder`; the loss of every update is logged in its metrics.jsonl.

    Raises:
        JudgeError: no item has a label to write a reply of, or the loss is not finite. ConfigError: sizes that do not divide,
            or clips are to be described and the data does not say how they sound.
    """
    chosen = trainable(items, model.config.reasoning)
    if not chosen:
        raise JudgeError("no item has scores to write a reply of; give items with scores, or turn reasoning off")
    if len(chosen) < len(items):
        log.warning("%d of %d items have no scores and are left out", len(items) - len(chosen), len(items))
    descriptions = read_descriptions(data, chosen) if config.described_share else {}
    described = [number for number, item in enumerate(chosen) if item.id in descriptions]
    examples = sft_examples(len(chosen), config.silent_share, seed, described, config.described_share)
    _fit(model, SftCollator(model, data, chosen, descriptions), examples, config, folder, seed, on_progress)
    return model


def train_descriptions(
    model: UniSRM, data: Path, items: Sequence[Item], updates: int, config: SftConfig, folder: Path, seed: int = 0,
    on_progress: OnProgress | None = None,
) -> UniSRM:  # fmt: skip
    """Train `updates` times to describe how an item's clips sound, with SFT's settings. Raises ConfigError. JudgeError."""
    descriptions = read_descriptions(data, items)
    numbers = [number for number, item in enumerate(items) if item.id in descriptions]
    examples = {"number": numbers, "kind": [int(Kind.DESCRIPTION)] * len(numbers)}
    _fit(model, SftCollator(model, data, items, descriptions), examples, config, folder, seed, on_progress, updates)
    return model


def _fit(
    model: UniSRM, collate: SftCollator, examples: dict[str, list[int]], config: SftConfig, folder: Path, seed: int,
    on_progress: OnProgress | None, updates: int | None = None,
) -> None:  # fmt: skip
    """Train on replies and save to `folder`: `config.epochs` times over the examples, or for n updates."""
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig as TrlSftConfig
    from trl.trainer.sft_trainer import SFTTrainer

    model.prepare_training()
    settings = TrlSftConfig(
        per_device_train_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=_accumulation(config.batch_size, config.micro_batch_size),
        num_train_epochs=config.epochs,
        max_steps=updates or -1,
        dataset_kwargs={"skip_prepare_dataset": True},
        loss_type="nll",
        **_shared(folder, config, seed),
    )

    class Trainer(ResumingTrainer, SFTTrainer):
        """TRL's, which is imported when it is needed."""

        def compute_loss(self, *inputs: Any, **options: Any) -> Any:
            with labels_alone():
                return super().compute_loss(*inputs, **options)  # type: ignore[no-untyped-call]

    trainer = Trainer(
        model=model.thinker,
        args=settings,
        train_dataset=Dataset.from_dict(examples),
        data_collator=collate,
        processing_class=model.tokenizer,
    )
    MetricsWriter(folder, "sft", on_progress).attach(trainer)
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    _finish(model, trainer, folder)


def make_grpo_trainer(
    model: UniSRM, data: Path, items: Sequence[Item], config: UniSRMGrpoConfig, folder: Path, seed: int = 0
) -> Any:
    """Make the GRPO trainer of a model after SFT, ready to train.

    Without adapters the KL reference is read from `config._name_or_path`, so the model must have been saved.

    Raises:
        JudgeError: no items, or the model was never saved. ConfigError: sizes that do not divide, or `trains` beside adapters.
    """
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig

    from paras2s.unisrm.reward.grpo_trainer import UniSRMGrpoTrainer

    if not items:
        raise JudgeError("no items to train on with GRPO")
    if config.trains:
        if model.config.trains == "adapters":
            raise ConfigError("grpo.trains: the model has adapters, which are trained on; leave it out")
        model.config = model.config.model_copy(update={"trains": config.trains})
    model.prepare_training()
    weights_path = getattr(model.thinker.config, "_name_or_path", "")
    if config.kl_weight and model.config.trains != "adapters" and not weights_path:
        raise JudgeError("the KL reference is the model on disk: save the model after SFT, and load it from there")
    weights = config.weights
    settings = GRPOConfig(
        per_device_train_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=_accumulation(config.batch_size, config.micro_batch_size),
        num_generations=config.group_size,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        beta=config.kl_weight,
        # Equation 14 has the plain divergence; TRL weighs it by the ratio unless told not to.
        use_bias_correction_kl=False,
        epsilon=config.clip,
        loss_type="grpo",
        importance_sampling_level=config.ratio_level,
        scale_rewards="group",
        reward_weights=[weights.format, weights.accuracy, weights.consistency],
        temperature=config.temperature,
        max_completion_length=config.max_completion_tokens,
        generation_kwargs=model.generation_options,
        **_shared(folder, config, seed),
    )
    return UniSRMGrpoTrainer(
        ItemEncoder(model, data, items),
        model=model.thinker,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(len(items))]}),
        processing_class=model.tokenizer,
    )


def train_grpo(
    model: UniSRM, data: Path, items: Sequence[Item], config: UniSRMGrpoConfig, folder: Path, seed: int = 0,
    on_progress: OnProgress | None = None,
) -> UniSRM:  # fmt: skip
    """Train on the rewards and save the model to `folder`; metrics.jsonl gets terms, flat groups and parsing failures.

    Before the first update it is checked that clips reach generation, policy and reference.

    Raises:
        JudgeError: as `make_grpo_trainer` and `check_audio`.
    """
    from paras2s.unisrm.reward.audio_check import check_audio

    trainer = make_grpo_trainer(model, data, items, config, folder, seed)
    if len(items) > 1:
        log.info("other clips change log-probs by up to %s", check_audio(trainer, [0, 1]))
    MetricsWriter(folder, "grpo", on_progress).attach(trainer)
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    _finish(model, trainer, folder)
    return model


def _shared(folder: Path, config: SftConfig | UniSRMGrpoConfig, seed: int) -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    if torch.cuda.device_count() > 1 and "LOCAL_RANK" not in os.environ:
        raise ConfigError(
            f"{torch.cuda.device_count()} GPUs are visible to one process; start one process on each by `accelerate launch -m "
            "paras2s ...`, or set CUDA_VISIBLE_DEVICES to one of them"
        )
    return {
        "output_dir": str(folder),
        "learning_rate": config.lr,
        "warmup_steps": config.warmup,
        "max_grad_norm": config.max_grad_norm,
        "seed": seed,
        "bf16": cuda,
        "use_cpu": not cuda,
        "gradient_checkpointing": cuda,
        "logging_steps": 1,
        "save_strategy": "steps" if config.checkpoint_every else "no",
        "save_steps": config.checkpoint_every or 1,
        "save_total_limit": 1,
        "report_to": [],
        "remove_unused_columns": False,
        "disable_tqdm": True,
    }


def _accumulation(batch_size: int, micro_batch_size: int) -> int:
    """Return the micro-batches an update on each device. Raises ConfigError: they do not divide the batch."""
    from accelerate import PartialState

    devices = PartialState().num_processes
    if batch_size % (micro_batch_size * devices):
        raise ConfigError(
            f"batch_size: {batch_size} is no multiple of micro_batch_size {micro_batch_size} on {devices} devices"
        )
    return batch_size // (micro_batch_size * devices)


def _finish(model: UniSRM, trainer: Any, folder: Path) -> None:
    """Save the model, from one process, and record its folder, from which the next stage reads its KL reference."""
    model.thinker = trainer.accelerator.unwrap_model(trainer.model)
    if "ref" in getattr(model.thinker, "peft_config", ()):
        # TRL's copy of the adapters for the KL reference.
        model.thinker.delete_adapter("ref")
    if trainer.accelerator.is_main_process:
        model.save(folder)
        for checkpoint in folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    trainer.accelerator.wait_for_everyone()
    model.thinker.config._name_or_path = str(folder)


# TRL's name -> ours.
NAMES = {
    "loss": "loss",
    "reward": "reward",
    "rewards/format/mean": "reward_format",
    "rewards/accuracy/mean": "reward_accuracy",
    "rewards/consistency/mean": "reward_consistency",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "flat_group_share",
    "kl": "kl",
    "entropy": "entropy",
    "completions/mean_length": "completion_tokens",
    "completions/clipped_ratio": "cut_off_share",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    **{f"parse_failure/{reason}": f"parse_failure_{reason}" for reason in ParseFailure},
}


class MetricsWriter(TrainerCallback):
    """Writer of a trainer's logs; a loss that is not finite ends the run. `on_progress` gets updates done, and of all."""

    def __init__(self, folder: Path, stage: str, on_progress: Callable[[int, int], None] | None = None) -> None:
        self.path, self.stage, self.on_progress = folder / "metrics.jsonl", stage, on_progress

    def attach(self, trainer: Any) -> None:
        """Take the place of the callback that prints every row."""
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Write a row. Raises JudgeError: the loss is not finite."""
        metrics = {ours: float(logs[theirs]) for theirs, ours in NAMES.items() if logs and logs.get(theirs) is not None}
        if not metrics or not state.is_world_process_zero:
            return
        if not all(torch.isfinite(torch.tensor(list(metrics.values())))):
            raise JudgeError(f"{self.stage}, step {state.global_step}: not finite: {metrics}; lower {self.stage}.lr")
        append_jsonl(self.path, {"stage": self.stage, "step": state.global_step, **metrics})
        if self.on_progress:
            self.on_progress(state.global_step, state.max_steps)
