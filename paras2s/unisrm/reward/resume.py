"""Going on with a stage of training that was stopped: TRL's trainers, and the weights of the last checkpoint in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paras2s.utils.io import drop_steps_from


class ResumingTrainer:
    """Mix-in of a trainer that reads a checkpoint's weights as transformers reads a model's.

    A thinker is saved under the names of the released weights. transformers' trainer looks for the names in memory, finds none,
    and continues with the stage's initial weights, after no more than a warning. Adapters keep their names.
    """

    model: Any

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        into = self.model if model is None else model
        if hasattr(into, "peft_config"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
            return
        into.load_state_dict(type(into).from_pretrained(resume_from_checkpoint).state_dict())


def last_checkpoint(folder: Path) -> str | None:
    """Return the last complete checkpoint of a stopped stage, its metrics cut to the same update; None: begin the stage."""
    # The file that is written last.
    complete = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    step, checkpoint = max(((int(path.name.partition("-")[2]), str(path)) for path in complete), default=(0, None))
    drop_steps_from(folder / "metrics.jsonl", step + 1)
    return checkpoint
