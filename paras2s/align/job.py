"""The inputs of one GRPO run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from paras2s.align.recorded import RecordedPreferences
from paras2s.configs.schema.align import AlignConfig
from paras2s.policy.types import Prompt, Sampling
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout.demonstrations import DemonstrationFiles
from paras2s.rollout.prompts import PromptFiles
from paras2s.run import Run
from paras2s.train.anchor import batch_of_step
from paras2s.train.sft import Example
from paras2s.types import Reward, Rollout, Unscored

Item = TypeVar("Item", covariant=True)
Augment = Callable[[Prompt, np.random.Generator], Prompt]


class Rows(Protocol[Item]):
    """Items that may be made or read only when they are needed."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Item: ...


class Refresher(Protocol):
    """Trains the reward model again on the policy's newest answers (`pipeline/refresh.py`)."""

    def refresh(self, updates: int) -> None:
        """Make the reward model to use after `updates` updates, unless it exists already."""

    def keep_evaluation(self, step: int, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]) -> None:
        """Keep the answers [B] of an evaluation, one each, which later reward models score as well."""

    def validation_rewards(self, updates: int) -> Mapping[int, float | None]:
        """Return the rewards of all earlier evaluations by the model made after `updates` updates, by step."""

    def discard_from(self, step: int) -> None:
        """Remove the models and evaluations of steps that are about to be done again."""


@dataclass(frozen=True)
class GRPOJob:
    """The inputs of one GRPO run. It holds no policy, and of prompts only the files' names.

    `prompts` are the RL queries as the policy reads them, `questions` the same queries as rewards read them. `augment` changes
    a prompt before the policy reads it; the reward is computed on the original question. `refresher` trains the reward model
    again where `distill.refresh_every` asks for it. `demonstrations` are those of `align.objective.anchor`. With `preferences`
    the policy learns from recorded answers, and none are sampled but for evaluation.
    """

    run: Run
    prompts: PromptFiles
    questions: Rows[RewardQuestion]
    validation_prompts: PromptFiles
    validation_questions: Rows[RewardQuestion]
    augment: Augment
    refresher: Refresher | None = None
    demonstrations: DemonstrationFiles | None = None
    preferences: RecordedPreferences | None = None

    @property
    def config(self) -> AlignConfig:
        """The run's settings of GRPO."""
        return self.run.config.align

    @property
    def sampling(self) -> Sampling:
        """Sampling settings, in training and in evaluation."""
        return Sampling(*self.config.sampling.temperatures, self.run.config.policy.max_answer_steps)

    @property
    def refreshes(self) -> range:
        """The numbers of updates after which the reward model is trained again."""
        return self.run.config.refreshes if self.refresher is not None else range(0)

    @property
    def steps_name(self) -> str:
        """The name of the updates, for people."""
        return "GRPO steps" if self.preferences is None else f"{self.preferences.method} steps"

    @property
    def output(self) -> Path:
        """Folder of the aligned policy; absolute, since Ray workers have other working directories."""
        return self.run.aligned_dir.resolve()

    @property
    def checkpoints(self) -> Path:
        """Folder of the learners' checkpoints."""
        return (self.run.folder / "checkpoints" / "align").resolve()

    def evaluates_after(self, step: int) -> bool:
        """Return whether validation queries are sampled after this step."""
        return len(self.validation_prompts) > 0 and self.config.evaluates_after(step)

    def anchor_batch(self, step: int) -> tuple[Example, ...]:
        """Return the demonstrations of an update's anchor; () for an update without it."""
        if self.demonstrations is None:
            return ()
        return batch_of_step(self.config.objective.anchor, self.demonstrations, self.run.config.seed, step)
