"""The Ray actors: rollout worker, speak worker, reward worker, learner rank. They wire engine, detokenizer, rewards and
learner, and decide nothing.

Every call carries the weights and their version, so a worker that has just started cannot sample with stale ones, and equal
seeds give equal answers. `worker_group.py` replaces lost workers.
Alphabet: B queries, G answers a query.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
import torch

from paras2s.configs.schema.align import AlignConfig
from paras2s.configs.schema.run import PolicyConfig
from paras2s.policy.base import Policy
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.registry import load_policy, load_speaker
from paras2s.policy.speaking import report_every
from paras2s.policy.types import ClipStore, Prompt, SampleRequest, Speaker, result_of
from paras2s.policy.weights import fingerprint
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import CompositeReward, RewardSetup
from paras2s.rollout.answer_files import AnswerShard, sample_into
from paras2s.rollout.demonstrations import encode_targets_into
from paras2s.rollout.ended_answers import EndedAnswers, EndedBatches, SampledShare, waves_of
from paras2s.rollout.engine import Engine, NativeEngine, spoken
from paras2s.rollout.prompts import encode_into, encoder_version
from paras2s.rollout.reward_inputs import Waves, embedded_codes, embedded_steps, sounds, with_waves
from paras2s.rollout.timeline import Span, SpanRecorder
from paras2s.train.advantages import Values
from paras2s.train.fsdp import Sharded
from paras2s.train.learner import Learner
from paras2s.train.preference import PreferenceBatch, PreferenceLearner
from paras2s.train.sft import Example
from paras2s.train.single_device import Devices
from paras2s.types import Demonstration, Query, Reward, Rollout, Unscored
from paras2s.utils.device import found_device, give_back, use_threads
from paras2s.utils.process_pool import cores


def threads_for(workers: int) -> int:
    """Return the number of cores for a worker when `workers` of them run at once."""
    return max(1, cores() // workers)


def open_policy(checkpoint: Path, config: PolicyConfig, speaks: bool = True) -> Policy:
    """Load a run's policy, on the device and in the precision of its config."""
    return load_policy(checkpoint, config.kind, config.device, config.torch_dtype, config.decoder, speaks)


def make_engine(policy: Policy, config: AlignConfig, policy_config: PolicyConfig, threads: int) -> Engine:
    """Return the sampling engine: this process, or vLLM in an interpreter of its own."""
    if config.sampling.engine == "native":
        return NativeEngine(policy)
    from paras2s.rollout.vllm_engine import VllmEngine

    engine: Engine = VllmEngine(policy, config.sampling, policy_config.max_answer_steps, threads)
    return engine


def open_devices(
    rank: int,
    ranks: int,
    meet_at: tuple[str, int],
    policy: PolicyConfig,
    mixed_precision: bool,
    gather: Literal["step", "layer"] = "step",
) -> Devices:
    """Return the devices of a rank, which waits for the others; those of a lone rank are its own."""
    if ranks == 1 and not mixed_precision:
        return Devices()
    device = found_device("cpu" if policy.device == "cpu" else "auto")
    return Sharded(rank, ranks, *meet_at, device, mixed_precision, gather)


def meeting_point() -> tuple[str, int]:
    """Return an address at which other ranks can meet the caller: its machine and a free port."""
    with socket.socket() as held:
        held.bind(("", 0))
        return str(ray.util.get_node_ip_address()), int(held.getsockname()[1])  # type: ignore[no-untyped-call]


@ray.remote
class RolloutWorker:
    """Samples answers with the weights that come with each call."""

    def __init__(self, checkpoint: Path, policy_config: PolicyConfig, config: AlignConfig, threads: int) -> None:
        use_threads(threads)
        self._arguments = checkpoint, policy_config, config, threads
        self._engine: Engine | None = None
        self._recorder = SpanRecorder("rollout")

    @property
    def engine(self) -> Engine:
        """The engine, made at the first call: an error in making it then reaches the driver as itself, not as a dead actor."""
        # No cached_property, whose lock cannot be sent to an actor.
        if self._engine is None:
            self._engine = self._make()
        return self._engine

    def _make(self) -> Engine:
        checkpoint, policy_config, config, threads = self._arguments
        if config.sampling.engine == "vllm":
            # vLLM has the device; here prompts are embedded and answers are decoded.
            policy_config = policy_config.model_copy(update={"device": "cpu"})
        policy = open_policy(checkpoint, policy_config, speaks=config.workers.speak is None)
        if config.lora is not None:
            # The learner sends its adapters alone, so they must be here to be filled.
            policy.add_lora(config.lora.rank, config.lora.alpha)
        self._encoder = encoder_version(policy, checkpoint)
        engine = make_engine(policy, config, policy_config, threads)
        # The embedded reward model reads the embedded codec's codes; other policies' answers must be decoded to sound.
        self.with_waves = policy.spec.code_format != Codec2Pairs.version
        return engine

    def encode(self, folder: Path, clips: ClipStore, queries: Sequence[Query]) -> tuple[list[str], int, list[Span]]:
        """Encode these queries' prompts that the folder lacks; return file names, the number encoded, and spans."""
        policy = self.engine.policy
        with self._recorder.span("encode"):
            names, encoded = encode_into(folder, policy, self._encoder, clips, queries)
        give_back()
        return names, encoded, self._recorder.take()

    def encode_targets(
        self, folder: Path, clips: ClipStore, demonstrations: Sequence[Demonstration]
    ) -> tuple[list[str], int, list[Span]]:
        """Encode these demonstrations as `encode` does queries."""
        policy = self.engine.policy
        with self._recorder.span("encode"):
            names, encoded = encode_targets_into(folder, policy, self._encoder, clips, demonstrations)
        give_back()
        return names, encoded, self._recorder.take()

    def answer_rate_hz(self) -> int:
        """Return the lowest sample rate of a recorded answer that holds all that this policy can say."""
        spec = self.engine.policy.spec
        return min(spec.input_rate_hz, spec.output_rate_hz)

    def sample_into(self, clips: ClipStore, shard: AnswerShard) -> None:
        """Sample a shard of the preference set with the checkpoint's own weights, and write it."""
        sample_into(self.engine, clips, shard)

    def generate(
        self, weights: dict[str, np.ndarray], version: int, query_ids: Sequence[str], request: SampleRequest
    ) -> tuple[list[Rollout], Waves, list[Span]]:
        """Return rollouts of these queries under weights `version`, their sound, which goes to judges alone, and spans."""
        self._load(weights, version)
        engine = self.engine
        rollouts = result_of(self._recorder.sampling(engine.generate_in_parts(query_ids, request, None)))
        if self.with_waves:
            with self._recorder.span("speak"):
                rollouts = spoken(engine.policy, rollouts)
        waves = [rollout.waves for rollout in rollouts]
        give_back()
        return [replace(rollout, waves=()) for rollout in rollouts], waves, self._recorder.take()

    def generate_in_parts(
        self, weights: dict[str, np.ndarray], version: int, query_ids: Sequence[str], request: SampleRequest
    ) -> Iterator[EndedAnswers | SampledShare]:
        """Yield batches of answers as they end, for speak workers, and at the end the rollouts without sound."""
        self._load(weights, version)
        engine = self.engine
        flat = [seed for row in request.seeds for seed in row]
        batches = EndedBatches(engine.policy, flat)
        often = report_every(len(flat), engine.policy.spoken_at_once)
        events = engine.generate_in_parts(query_ids, request, often)
        rollouts = yield from batches.as_they_end(self._recorder.sampling(events))
        give_back()
        yield SampledShare([replace(rollout, waves=()) for rollout in rollouts], self._recorder.take())

    def _load(self, weights: dict[str, np.ndarray], version: int) -> None:
        if version != self.engine.version:
            with self._recorder.span("load weights"):
                self.engine.set_weights(weights, version)


@ray.remote
class SpeakWorker:
    """Makes the sound of answers that rollout workers sampled. It holds the detokenizer, and not the policy."""

    def __init__(self, checkpoint: Path, config: PolicyConfig, threads: int) -> None:
        use_threads(threads)
        self._checkpoint, self._config = checkpoint, config
        self._speaker: Speaker | None = None
        self._recorder = SpanRecorder("speak")

    @property
    def speaker(self) -> Speaker:
        """The speaker, made at the first call: an error then reaches the driver as itself, not as a dead actor."""
        if self._speaker is None:
            self._speaker = load_speaker(self._checkpoint, self._config.kind, self._config.device, self._config.decoder)
        return self._speaker

    def speak(self, answers: EndedAnswers) -> tuple[list[np.ndarray], list[Span]]:
        """Return the waveforms of a batch of answers, in its order, and spans."""
        speaker = self.speaker
        with self._recorder.span("speak"):
            waves = [clip.samples for clip in speaker.speak(answers.codes, answers.seeds)]
        give_back()
        return waves, self._recorder.take()


@ray.remote
class RewardWorker:
    """Scores answers with the run's reward sources."""

    def __init__(self, setup: RewardSetup, threads: int) -> None:
        use_threads(threads)
        self.setup = setup
        self.codec = Codec2Pairs()
        self._rewards: CompositeReward | None = None
        self._recorder = SpanRecorder("reward")

    @property
    def rewards(self) -> CompositeReward:
        """The reward sources, made at the first call: an error then reaches the driver as itself, not as a dead actor."""
        if self._rewards is None:
            self._rewards = CompositeReward(self.setup)
        return self._rewards

    def score(
        self, rollouts: Sequence[Rollout], waves: Waves, part: slice, questions: Sequence[RewardQuestion]
    ) -> tuple[list[list[Reward | Unscored]], list[Span]]:
        """Return rewards [B, G] of a part of these rollouts, whose sound is in `waves`, and spans."""
        with self._recorder.span("score"):
            pairs = zip(questions, with_waves(rollouts[part], waves[part]), strict=True)
            rewards = self.rewards.score([Group(question, self._answers(rollout)) for question, rollout in pairs])
        give_back()
        return rewards, self._recorder.take()

    def score_spoken(
        self,
        rollouts: Sequence[Rollout],
        part: slice,
        questions: Sequence[RewardQuestion],
        numbers: Sequence[tuple[int, ...]],
        *spoken: Sequence[np.ndarray],
    ) -> tuple[list[list[Reward | Unscored]], list[Span]]:
        """Score a part as `score` does, with batches of sound from speak workers; `numbers` say whose answers they are."""
        return self.score(rollouts, waves_of(rollouts, numbers, spoken), part, questions)

    def _answers(self, rollout: Rollout) -> tuple[GivenAnswer, ...]:
        steps = embedded_steps(rollout, self.codec)
        # Either is made only for a source that reads it.
        codes = embedded_codes(rollout, self.codec) if self.rewards.needs_codes else [None] * rollout.size
        clips = sounds(rollout, self.codec) if self.rewards.needs_sound else [None] * rollout.size
        return tuple(
            GivenAnswer(length, text, clip if length else None, codes=own)
            for length, text, clip, own in zip(steps, rollout.texts, clips, codes, strict=True)
        )


@ray.remote
class LearnerActor:
    """The learner, or one rank of it. Never restarted: its state is in its checkpoints."""

    def __init__(
        self,
        checkpoint: Path,
        policy: PolicyConfig,
        config: AlignConfig,
        threads: int,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        use_threads(threads)
        self._checkpoint, self._policy, self._config, self._source_weights = checkpoint, policy, config, weights
        self._recorder = SpanRecorder("learner")

    def rendezvous(self) -> tuple[str, int]:
        """Return an address at which the other ranks can meet this rank."""
        return meeting_point()

    def open(self, rank: int, rendezvous: tuple[str, int], resume_from: Path | None) -> None:
        """Load the policy and meet the other ranks; all ranks are called at once."""
        config = self._config
        ranks, mixed_precision = config.workers.learner.count, config.optimizer.mixed_precision
        devices = open_devices(rank, ranks, rendezvous, self._policy, mixed_precision, config.workers.learner.gather)

        def reopen() -> Policy:
            return load_policy(self._checkpoint, self._policy.kind, "cpu", self._policy.torch_dtype)

        # Adapters are drawn at random, and every rank must draw the same.
        torch.manual_seed(0)
        policy = open_policy(self._checkpoint, self._policy)
        base = fingerprint(self._checkpoint)
        most, weights = self._policy.max_answer_steps, self._source_weights
        kind = Learner if config.preferences is None else PreferenceLearner
        self.learner = kind(policy, config, most, devices, reopen, base, weights)
        if resume_from is not None:
            self.learner.restore(resume_from)

    def next_step(self) -> int:
        """Return the number of updates made."""
        return self.learner.next_step

    def checkpoint_bytes(self) -> int:
        """Return the size of a checkpoint in bytes."""
        return self.learner.checkpoint_bytes

    def step(
        self,
        inputs: tuple[
            Sequence[Prompt], Sequence[Rollout], Sequence[Sequence[Reward | Unscored]], Sequence[Example], Sequence[str]
        ],
    ) -> tuple[dict[str, Any], Values, list[Span]]:
        """Make one update; return its metrics, the advantages [B, G] it learned from, and the spans since the last update."""
        with self._recorder.span("update"):
            metrics = self.learner.step(*inputs)
        give_back()
        return metrics, self.learner.advantages, self._recorder.take()

    def learn(self, inputs: tuple[PreferenceBatch, Sequence[Example]]) -> tuple[dict[str, Any], list[Span]]:
        """Make one update on recorded answers; return its metrics, and the spans since the last update."""
        assert isinstance(self.learner, PreferenceLearner)
        with self._recorder.span("update"):
            metrics = self.learner.learn(*inputs)
        give_back()
        return metrics, self._recorder.take()

    def weights(self) -> dict[str, np.ndarray]:
        """Return the trained weights, for the rollout workers."""
        with self._recorder.span("gather weights"):
            return self.learner.weights()

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        with self._recorder.span("checkpoint"):
            self.learner.save(folder)

    def export(self, folder: Path) -> None:
        """Write the aligned policy."""
        self.learner.export(folder)
