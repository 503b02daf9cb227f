"""Metrics of TRL's trainers under the names of this project, one row of metrics.jsonl for each update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from paras2s.errors import JudgeError
from paras2s.unisrm.reward.reply import ParseFailure
from paras2s.utils.io import append_jsonl

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
