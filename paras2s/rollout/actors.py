"""Ray actors: they wire engine, reward model and learner, and decide nothing.

A worker that dies is started anew by Ray and its task is run again; every call carries the weights and their version,
so a fresh worker cannot answer with stale ones, and equal seeds give equal answers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from paras2s.config import AlignConfig
from paras2s.parallel import cores
from paras2s.policy.codec import Codec2Pairs
from paras2s.policy.dual_policy import DualStreamPolicy
from paras2s.policy.interface import Prompt, Sampling
from paras2s.policy.learner import Learner
from paras2s.records import Reward, Rollout, Unscored
from paras2s.reward.model import HeardQuestion
from paras2s.reward.sources.base import AskedQuestion, GivenAnswer, Group
from paras2s.reward.sources.panel import RewardPanel, RewardSetup
from paras2s.rollout.engine import NativeEngine


def start_ray(address: str | None) -> None:
    """Join a cluster, or start Ray on this machine; quiet, without a dashboard, and only once."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address:
        ray.init(address=address, log_to_driver=False)
    else:
        # Actors take turns on the cores, so more of them than cores is no harm.
        ray.init(
            num_cpus=max(4, cores()),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
        )


def threads_for(workers: int) -> int:
    """Cores a worker may use when `workers` of them run at once."""
    return max(1, cores() // workers)


@ray.remote(max_restarts=3, max_task_retries=3)
class RolloutWorker:
    """Samples answers with the weights it is handed."""

    def __init__(self, checkpoint: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self.engine = NativeEngine(DualStreamPolicy.load(checkpoint, Codec2Pairs()))
        self.engine.version = -1

    def generate(
        self,
        weights: dict[str, np.ndarray],
        version: int,
        query_ids: Sequence[str],
        prompts: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
    ) -> list[Rollout]:
        """Rollouts of these queries under weights `version`."""
        if version != self.engine.version:
            self.engine.policy.model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()})
            self.engine.version = version
        return self.engine.generate(query_ids, prompts, group_size, sampling, seeds, with_waves=False)


@ray.remote(max_restarts=3, max_task_retries=3)
class RewardWorker:
    """Scores answers with the run's reward sources."""

    def __init__(self, setup: RewardSetup, threads: int) -> None:
        torch.set_num_threads(threads)
        self.setup = setup
        self.codec = Codec2Pairs()

        self._panel: RewardPanel | None = None

    @property
    def panel(self) -> RewardPanel:
        """Made with the first answers: an error in making it then reaches the driver as itself, not as a dead actor."""
        if self._panel is None:
            self._panel = RewardPanel(self.setup)
        return self._panel

    def score(self, rollouts: Sequence[Rollout], questions: Sequence[AskedQuestion]) -> list[list[Reward | Unscored]]:
        """Rewards [B][G]."""
        groups = [Group(question, self._answers(rollout)) for question, rollout in zip(questions, rollouts, strict=True)]
        return self.panel.score(groups)

    def _answers(self, rollout: Rollout) -> tuple[GivenAnswer, ...]:
        # Rollout workers leave waveforms out; most rewards read codes alone.
        sound = self.panel.needs_sound
        return tuple(
            GivenAnswer(codes, text, self.codec.decode(codes) if sound and len(codes) else None)
            for codes, text in zip(rollout.codes, rollout.texts, strict=True)
        )


def question_of(prompt: Prompt) -> HeardQuestion:
    """The part of a prompt that the reward model hears: codes from 0, and features."""
    assert prompt.features is not None
    speech = prompt.continuous
    return HeardQuestion(prompt.audio_ids[speech] - prompt.code_offsets, prompt.features[speech], prompt.words_dim)


@ray.remote
class LearnerActor:
    """The one learner."""

    def __init__(self, checkpoint: Path, config: AlignConfig, max_steps: int, resume_from: Path | None) -> None:
        torch.set_num_threads(threads_for(1))
        torch.manual_seed(0)
        self.learner = Learner(DualStreamPolicy.load(checkpoint, Codec2Pairs()), config, max_steps)
        if resume_from is not None:
            self.learner.restore(resume_from)

    def next_step(self) -> int:
        """The step to do next."""
        return self.learner.next_step

    def step(
        self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]
    ) -> dict[str, Any]:
        """One update."""
        return self.learner.step(prompts, rollouts, rewards)

    def weights(self) -> dict[str, np.ndarray]:
        """The present weights."""
        return self.learner.weights()

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        self.learner.save(folder)
