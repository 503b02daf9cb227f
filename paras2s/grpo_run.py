"""What both drivers do alike: which questions a step asks, what is kept of it, and a look at the validation queries."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paras2s.configs.schema.run import AlignConfig, RunConfig
from paras2s.policy.types import Prompt, Sampling
from paras2s.reward.sources.base import RewardQuestion
from paras2s.reward.sources.composite import RewardSetup
from paras2s.rollout.orchestrator import Orchestrator, PromptBatch, asked_of
from paras2s.run import Run
from paras2s.train.checkpoint import latest_checkpoint
from paras2s.types import Reward

if TYPE_CHECKING:
    from paras2s.utils.progress import Bar

Blur = Callable[[Prompt, np.random.Generator], Prompt]


def pick_queries(step: int, per_step: int, available: int, seed: int) -> list[int]:
    """Which RL prompts a step asks: every prompt once an epoch, in an order that the seed alone decides."""
    epochs = range(step * per_step // available, ((step + 1) * per_step - 1) // available + 1)
    order = np.concatenate([np.random.default_rng([seed, 3, epoch]).permutation(available) for epoch in epochs])
    start = step * per_step - epochs[0] * available
    return [int(row) for row in order[start : start + per_step]]


@dataclass(frozen=True)
class Alignment:
    """One alignment: `prompts` are what the policy reads of the RL queries, `questions` what rewards know of them.

    `held_prompts` and `held_questions` are the validation queries. `blur` is what happens to a question on its way to the
    policy's ears; the reward is for the question as it was.
    """

    run: Run
    prompts: Sequence[Prompt]
    questions: Sequence[RewardQuestion]
    held_prompts: Sequence[Prompt]
    held_questions: Sequence[RewardQuestion]
    blur: Blur

    @property
    def config(self) -> AlignConfig:
        """Of the run."""
        return self.run.config.align

    @property
    def sampling(self) -> Sampling:
        """How answers are drawn, in training and at a look."""
        return Sampling(self.config.temperature, self.config.temperature, self.run.config.policy.max_answer_steps)

    @property
    def folder(self) -> Path:
        """Where the aligned policy goes; absolute, since actors have other working directories."""
        return self.run.aligned_dir.resolve()

    @property
    def checkpoints(self) -> Path:
        """Where learners keep what they need to go on."""
        return (self.run.folder / "checkpoints" / "align").resolve()

    @contextmanager
    def stage(self) -> Iterator[Bar]:
        """The stage and its bar."""
        with self.run.stage("align"), self.run.bar("GRPO steps", self.config.steps) as bar:
            yield bar

    def fleet(self, resume: bool) -> tuple[RunConfig, Path, RewardSetup, Path | None]:
        """What a fleet is made of."""
        found = latest_checkpoint(self.checkpoints) if resume else None
        return self.run.config, self.run.sft_dir.resolve(), self.run.reward_setup(), found

    def begin_at(self, step: int) -> None:
        """Forget what is about to be done again."""
        self.run.drop_steps_from(step)
        if step == 0:
            # Checkpoints of an earlier try would be taken for this one's by a later --resume.
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def ask(self, step: int) -> PromptBatch:
        """A step's questions."""
        config, seed = self.config, self.run.config.seed
        rows = pick_queries(step, config.queries_per_step, len(self.prompts), seed)
        rng = np.random.default_rng([seed, 5, step])
        heard = [self.blur(self.prompts[row], rng) for row in rows]
        return asked_of(step, rows, heard, [self.questions[row] for row in rows], seed, config.group_size)

    def looks_at(self, step: int) -> bool:
        """Whether the validation queries are asked after this step."""
        return step % self.config.evaluate_every == 0 or step + 1 == self.config.steps

    def keep(self, fleet: Orchestrator, step: int, metrics: dict[str, Any], bar: Bar) -> None:
        """Log a step, move the bar, and write a checkpoint where one is due."""
        self.run.log_step(metrics)
        bar.at(step + 1, self.config.steps, f"reward {metrics['reward_mean']:.2f} KL {metrics.get('kl', 0):.3f}")
        if (step + 1) % self.config.checkpoint_every == 0:
            fleet.save(self.checkpoints / f"step_{step + 1:06d}")


def evaluate(fleet: Orchestrator, alignment: Alignment) -> dict[str, Any]:
    """Mean reward of one answer to each validation query, None if none was scored, and how many were not.

    For the curve, not for the table. A pairwise source has nobody to compare a lone answer with and scores none.
    """
    seed, count = alignment.run.config.seed, len(alignment.held_prompts)
    asked = asked_of(3_000_000, range(count), alignment.held_prompts, alignment.held_questions, seed, 1)
    _, rewards = fleet.collect(fleet.begin(asked, 1, alignment.sampling))
    scored = [reward.value for row in rewards for reward in row if isinstance(reward, Reward)]
    mean = float(np.mean(scored)) if scored else None
    return {"validation_reward": mean, "validation_unscored": sum(map(len, rewards)) - len(scored)}
