"""Ray actors: they wire engine, reward model and learner, and decide nothing.

Every call carries the weights and their version, so a worker that has just started cannot answer with stale ones, and equal
seeds give equal answers. Who replaces a lost one is `crew.py`'s business.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from paras2s.configs.schema.run import AlignConfig, PolicyConfig
from paras2s.errors import ConfigError
from paras2s.policy.base import Policy
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.registry import load_policy
from paras2s.policy.types import Prompt, Sampling
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import CompositeReward, RewardSetup
from paras2s.rollout.engine import Engine, NativeEngine
from paras2s.rollout.reward_inputs import embedded_codes, sounds
from paras2s.train.fsdp import Sharded
from paras2s.train.learner import Learner
from paras2s.train.single_device import Devices
from paras2s.types import Reward, Rollout, Unscored
from paras2s.utils.process_pool import cores

# The namespace of a Ray that was started here.
LOCAL = "paras2s-local"


def start_ray(address: str | None, cpus: int = 0) -> None:
    """Join a cluster, or start Ray on this machine; quiet, without a dashboard, and only once.

    One that was started here for fewer workers than are wanted now is started again.

    Raises:
        ConfigError: nothing listens at the address.
    """
    if ray.is_initialized():
        has = ray.cluster_resources().get("CPU", 0.0)  # type: ignore[no-untyped-call]
        if address or has >= cpus or ray.get_runtime_context().namespace != LOCAL:
            return
        ray.shutdown()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A lost worker's calls are made again; Ray would print a page for each.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if address:
        _check_reachable(address)
        ray.init(address=address, log_to_driver=False)
    else:
        # Actors take turns on the cores, so more of them than cores is no harm.
        ray.init(
            # Else a cluster that somebody has started here would be joined, which takes no `num_cpus`.
            address="local",
            namespace=LOCAL,
            num_cpus=max(4, cores(), cpus),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
        )


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigError(
            f"ray_address: nothing listens at {address} ({error}); `ray start --head` prints its address"
        ) from error


def threads_for(workers: int) -> int:
    """Cores a worker may use when `workers` of them run at once."""
    return max(1, cores() // workers)


def open_policy(checkpoint: Path, config: PolicyConfig) -> Policy:
    """A run's policy, on the device and in the precision of its config."""
    return load_policy(checkpoint, config.kind, config.device, config.torch_dtype, config.decoder)


def make_engine(policy: Policy, config: AlignConfig, policy_config: PolicyConfig, threads: int) -> Engine:
    """What samples: this process, or a vLLM engine in an interpreter of its own."""
    if config.engine == "native":
        return NativeEngine(policy)
    from paras2s.rollout.vllm_engine import VllmEngine

    engine: Engine = VllmEngine(policy, config, policy_config.max_answer_steps, threads)
    return engine


@ray.remote
class RolloutWorker:
    """Samples answers with the weights it is handed."""

    def __init__(self, checkpoint: Path, policy_config: PolicyConfig, config: AlignConfig, threads: int) -> None:
        torch.set_num_threads(threads)
        self._made_of = checkpoint, policy_config, config, threads
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """Made with the first questions: an error in making it then reaches the driver as itself, not as a dead actor."""
        # No cached_property, whose lock cannot be sent to an actor.
        if self._engine is None:
            self._engine = self._make()
        return self._engine

    def _make(self) -> Engine:
        checkpoint, policy_config, config, threads = self._made_of
        if config.engine == "vllm":
            # The device is the engine's; here prompts are read and answers are decoded.
            policy_config = policy_config.model_copy(update={"device": "cpu"})
        policy = open_policy(checkpoint, policy_config)
        if config.lora is not None:
            # The learner hands on its adapters alone, so they must be here to be filled.
            policy.add_lora(config.lora.rank, config.lora.alpha)
        engine = make_engine(policy, config, policy_config, threads)
        # The embedded reward model reads the embedded codec's codes; everyone else's answers must be heard.
        self.with_waves = policy.spec.code_format != Codec2Pairs.version
        return engine

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
        engine = self.engine
        if version != engine.version:
            engine.set_weights(weights, version)
        return engine.generate(query_ids, prompts, group_size, sampling, seeds, self.with_waves)


@ray.remote
class RewardWorker:
    """Scores answers with the run's reward sources."""

    def __init__(self, setup: RewardSetup, threads: int) -> None:
        torch.set_num_threads(threads)
        self.setup = setup
        self.codec = Codec2Pairs()

        self._panel: CompositeReward | None = None

    @property
    def panel(self) -> CompositeReward:
        """Made with the first answers: an error in making it then reaches the driver as itself, not as a dead actor."""
        if self._panel is None:
            self._panel = CompositeReward(self.setup)
        return self._panel

    def score(
        self, rollouts: Sequence[Rollout], part: slice, questions: Sequence[RewardQuestion]
    ) -> list[list[Reward | Unscored]]:
        """Rewards [B][G] of a part of these rollouts, to whose questions alone they are."""
        groups = [Group(asked, self._answers(one)) for asked, one in zip(questions, rollouts[part], strict=True)]
        return self.panel.score(groups)

    def _answers(self, rollout: Rollout) -> tuple[GivenAnswer, ...]:
        codes = embedded_codes(rollout, self.codec)
        # Most rewards read codes alone.
        clips = sounds(rollout, self.codec) if self.panel.needs_sound else [None] * rollout.size
        return tuple(
            GivenAnswer(one, text, clip if len(one) else None)
            for one, text, clip in zip(codes, rollout.texts, clips, strict=True)
        )


@ray.remote
class LearnerActor:
    """The learner, or one rank of it. Never restarted: what it knows is in its checkpoints."""

    def __init__(self, checkpoint: Path, policy: PolicyConfig, config: AlignConfig, threads: int) -> None:
        torch.set_num_threads(threads)
        self._checkpoint, self._policy, self._config = checkpoint, policy, config

    def meeting(self) -> tuple[str, int]:
        """Where ranks can meet at this one: its machine's address and a free port."""
        with socket.socket() as held:
            held.bind(("", 0))
            return str(ray.util.get_node_ip_address()), int(held.getsockname()[1])  # type: ignore[no-untyped-call]

    def open(self, rank: int, meeting: tuple[str, int], resume_from: Path | None) -> None:
        """Load the policy and meet the other ranks; all of them at once."""
        config = self._config
        devices = Devices()
        if config.learner_workers > 1 or config.mixed_precision:
            device = "cuda" if torch.cuda.is_available() and self._policy.device != "cpu" else "cpu"
            devices = Sharded(rank, config.learner_workers, *meeting, device, config.mixed_precision)

        def reopen() -> Policy:
            return load_policy(self._checkpoint, self._policy.kind, "cpu", self._policy.torch_dtype)

        # Adapters are drawn at random, and every rank must draw the same.
        torch.manual_seed(0)
        policy = open_policy(self._checkpoint, self._policy)
        self.learner = Learner(policy, config, self._policy.max_answer_steps, devices, reopen)
        if resume_from is not None:
            self.learner.restore(resume_from)

    def next_step(self) -> int:
        """The step to do next."""
        return self.learner.next_step

    def step(self, given: tuple[Sequence[Prompt], Sequence[Rollout], Sequence[Sequence[Reward | Unscored]]]) -> dict[str, Any]:
        """One update."""
        return self.learner.step(*given)

    def weights(self) -> dict[str, np.ndarray]:
        """What was trained, for the rollout workers."""
        return self.learner.weights()

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        self.learner.save(folder)

    def export(self, folder: Path) -> None:
        """Write the policy itself."""
        self.learner.export(folder)
