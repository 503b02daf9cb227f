"""Real Ray on this machine: workers give what the engine gives, and the learner resumes.

Not covered here: workers and machines that are lost (test_drivers.py, test_cluster.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import torch
from tiny.dual_stream import small_prompt
from tiny.reward_model import random_reward_model
from tiny.settings import align_config

from paras2s.audio.clip import Clip
from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.audio.text_embedding import WordPieces
from paras2s.configs.schema.run import PolicyConfig, RewardConfig, RewardSourceConfig
from paras2s.errors import PolicyError
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.features import FeatureNormalizer
from paras2s.policy.embedded.policy import EmbeddedPolicy, special_ids
from paras2s.policy.types import Prompt, SampleRequest, Sampling
from paras2s.reward.reward_model.model import EncodedQuestion, RewardModel, RewardModelConfig
from paras2s.reward.sources.base import RewardQuestion
from paras2s.reward.sources.composite import RewardSetup
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.rollout.local_ray import start_ray
from paras2s.rollout.workers import LearnerActor, RewardWorker, RolloutWorker
from paras2s.types import Reward, Rollout, Unscored

STEPS, GROUP = 6, 3
SAMPLING = Sampling(1.0, 1.0, STEPS)
LETTERS = "abcdefgh"
CONFIG = DualStreamConfig(
    hidden_size=32, intermediate_size=48, num_layers=3, tap_layer=0, num_heads=4, num_kv_heads=2,
    text_vocab=len(LETTERS) + 9, codebook_sizes=Codec2Pairs.cardinality, audio_delay_steps=1, continuous_dim=3,
    mask_invalid_ids=True, **special_ids(len(LETTERS)),
)  # fmt: skip
PROMPTS = [
    replace(small_prompt(CONFIG, 1, 3 + number, seed=number), code_offsets=CONFIG.codebook_offsets) for number in range(3)
]
IDS = ["q0", "q1", "q2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved policy and a saved reward model, both tiny and random."""
    root = tmp_path_factory.mktemp("actors")
    model = DualStreamLM(CONFIG)
    model.initialise(0)
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    listener = FeatureNormalizer(np.zeros(UTTERANCE_DIM), np.ones(UTTERANCE_DIM))
    EmbeddedPolicy(model, WordPieces(LETTERS), Codec2Pairs(), listener).save(root / "sft")
    sizes = RewardModelConfig(
        codebook_sizes=CONFIG.codebook_sizes, code_dim=4, feature_dim=3, styles=("happy", "sad"), hidden_size=16, layers=1
    )
    vectors = np.random.default_rng(0).normal(size=(sum(CONFIG.codebook_sizes), 4))
    random_reward_model(sizes, vectors).save(root / "reward")
    return root


def listening() -> set[tuple[str, int]]:
    """Addresses and ports on which this process and its children listen."""
    here = psutil.Process()
    sockets = [socket for process in (here, *here.children(recursive=True)) for socket in process.net_connections("inet")]
    return {(socket.laddr.ip, socket.laddr.port) for socket in sockets if socket.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="module", autouse=True)
def others() -> Iterator[set[tuple[str, int]]]:
    """What earlier tests left open, as a process group of torch does."""
    # An earlier test's own Ray would be joined.
    ray.shutdown()
    before = listening()
    start_ray(None)
    # A second call joins what is there.
    start_ray(None)
    yield before
    ray.shutdown()


def test_nothing_of_ray_listens_but_on_the_loopback_address(others: set[tuple[str, int]]) -> None:
    addresses = {address for address, _ in listening() - others}
    assert addresses
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """As the worker has: sums of other threads round otherwise, and a draw may fall on the other side of an edge."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def worker(folder: Path) -> Any:
    return RolloutWorker.remote(folder / "sft", PolicyConfig(device="cpu"), align_config(), 1)


def load(folder: Path) -> EmbeddedPolicy:
    return EmbeddedPolicy.load(folder / "sft", codec=Codec2Pairs())


def weights_of(policy: EmbeddedPolicy) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in policy.model.state_dict().items()}


def shaken(policy: EmbeddedPolicy) -> EmbeddedPolicy:
    """The same policy after some training, so to speak."""
    torch.manual_seed(7)
    for parameter in policy.model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return policy


def in_process(policy: EmbeddedPolicy, version: int, prompts: list[Prompt] = PROMPTS) -> list[Rollout]:
    engine = NativeEngine(policy)
    engine.version = version
    seeds = answer_seeds(0, version, range(len(prompts)), GROUP)
    return engine.generate(IDS[: len(prompts)], SampleRequest(prompts, seeds, SAMPLING), with_waves=False)


def ask(worker: Any, policy: EmbeddedPolicy, version: int) -> Any:
    seeds = answer_seeds(0, version, range(len(PROMPTS)), GROUP)
    return worker.generate.remote(weights_of(policy), version, IDS, SampleRequest(PROMPTS, seeds, SAMPLING))


def assert_equal_rollouts(found: list[Rollout], expected: list[Rollout]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in ("query_id", "policy_version", "finish_reason", "seeds", "texts", "sample_rate_hz"):
            assert getattr(one, name) == getattr(other, name), name
        for left, right in zip(one.codes, other.codes, strict=True):
            np.testing.assert_array_equal(left, right)
        for left, right in zip(one.blocks, other.blocks, strict=True):
            np.testing.assert_array_equal(left.tokens, right.tokens)
            np.testing.assert_array_equal(left.sampled, right.sampled)
            np.testing.assert_allclose(left.behaviour_logp, right.behaviour_logp, atol=1e-5)


def test_a_worker_gives_what_the_engine_gives(worker: Any, folder: Path) -> None:
    found, waves, _ = ray.get(ask(worker, load(folder), 0), timeout=300)
    assert_equal_rollouts(found, in_process(load(folder), 0))
    assert [one.waves for one in found] == [()] * len(PROMPTS)
    # The embedded policy's rewards read codes.
    assert [[len(wave) for wave in row] for row in waves] == [[0] * GROUP] * len(PROMPTS)


def test_a_worker_samples_with_the_weights_it_is_handed(worker: Any, folder: Path) -> None:
    policy = shaken(load(folder))
    found, _, spans = ray.get(ask(worker, policy, 1), timeout=300)
    assert [one.work for one in spans] == ["load weights", "decode", "prefill", "decode"]
    assert_equal_rollouts(found, in_process(policy, 1))
    stale = in_process(load(folder), 1)
    assert any(not np.array_equal(a.blocks[0].behaviour_logp, b.blocks[0].behaviour_logp)
               for a, b in zip(found, stale, strict=True))  # fmt: skip


def question_of(prompt: Prompt) -> EncodedQuestion:
    """What the embedded reward model hears of a tiny prompt."""
    speech = prompt.continuous
    return EncodedQuestion(prompt.audio_ids[speech] - prompt.code_offsets, prompt.features[speech], prompt.words_dim)


def questions_of(prompts: list[Prompt]) -> list[RewardQuestion]:
    return [RewardQuestion(name, question_of(prompt), "hello") for name, prompt in zip(IDS, prompts, strict=False)]


def setup_of(folder: Path, *sources: RewardSourceConfig) -> RewardSetup:
    config = RewardConfig(sources=sources) if sources else RewardConfig()
    return RewardSetup(config, folder / "reward", folder / "tone_agent.json")


def test_the_reward_worker_scores_as_the_model_does(folder: Path) -> None:
    rollouts = in_process(load(folder), 0)
    given = rollouts, [one.waves for one in rollouts], slice(None), questions_of(PROMPTS)
    rewards, spans = ray.get(RewardWorker.remote(setup_of(folder), 1).score.remote(*given), timeout=300)
    assert [(one.work, one.worker.split()[0]) for one in spans] == [("score", "reward")]
    model = RewardModel.load(folder / "reward")
    assert [len(row) for row in rewards] == [GROUP] * len(PROMPTS)
    for prompt, rollout, row in zip(PROMPTS, rollouts, rewards, strict=True):
        expected = model.score([question_of(prompt)] * GROUP, rollout.codes)
        np.testing.assert_allclose([reward.value for reward in row], expected, atol=1e-5)
        assert [reward.parts for reward in row] == [{"reward_model": pytest.approx(reward.value)} for reward in row]


def test_the_reward_worker_decodes_answers_for_sources_that_listen(folder: Path) -> None:
    """Random codes are no speech: word errors have nothing to compare with, or are many; length is exact."""
    rollouts = in_process(load(folder), 0)
    sources = [
        RewardSourceConfig(kind="length", options={"target_steps": STEPS}),
        RewardSourceConfig(kind="word_errors", required=False),
    ]
    worker = RewardWorker.remote(setup_of(folder, *sources), 1)
    given = rollouts, [one.waves for one in rollouts], slice(None), questions_of(PROMPTS)
    for rollout, row in zip(rollouts, ray.get(worker.score.remote(*given), timeout=300)[0], strict=True):
        for codes, reward in zip(rollout.codes, row, strict=True):
            assert reward.parts["length"] == pytest.approx(1 + 4 * len(codes) / STEPS)
            assert set(reward.parts) <= {"length", "word_errors"}


def test_codes_are_made_of_another_policys_sound_for_sources_that_read_them_alone(folder: Path) -> None:
    """31 s of sound cost half a second of a processor: a judge that listens need not wait for that."""

    def never(self: Any, clip: Clip) -> np.ndarray:
        raise AssertionError("no source reads codes")

    ours = in_process(load(folder), 0)
    # Three steps and a bit of silence for each answer.
    waves = [tuple(np.zeros(3 * 1920 + 9, dtype=np.float32) for _ in range(GROUP)) for _ in ours]
    rollouts = [replace(one, code_format="another", sample_rate_hz=24_000) for one in ours]
    given = rollouts, waves, slice(None), questions_of(PROMPTS)
    length = RewardWorker.remote(setup_of(folder, RewardSourceConfig(kind="length", options={"target_steps": 8})), 1)
    ray.get(length.__ray_call__.remote(lambda actor: setattr(type(actor.codec), "encode", never)), timeout=300)
    assert ray.get(length.score.remote(*given), timeout=300)[0] == [[Reward(3.0, {"length": 3.0})] * GROUP] * len(ours)
    rewards = ray.get(RewardWorker.remote(setup_of(folder), 1).score.remote(*given), timeout=300)[0]
    codes = Codec2Pairs().encode(Clip(waves[0][0], 24_000))
    model = RewardModel.load(folder / "reward")
    expected = [model.score([question_of(prompt)], [codes])[0] for prompt in PROMPTS]
    np.testing.assert_allclose(
        [[reward.value for reward in row] for row in rewards], np.repeat(expected, GROUP).reshape(3, 3), atol=1e-5
    )


def test_a_learner_that_is_started_again_continues_to_the_same_weights(folder: Path, tmp_path: Path) -> None:
    # The answers are all of the first policy.
    config = align_config(lr=0.01, max_logprob_gap=9.0)
    rollouts = [in_process(load(folder), step) for step in range(3)]
    rewards = [[[Reward(float((7 * g + 3 * b + step) % 5), {}) for g in range(GROUP)] for b in range(3)] for step in range(3)]

    def started(resume_from: Path | None) -> Any:
        learner = LearnerActor.remote(folder / "sft", PolicyConfig(device="cpu", max_answer_steps=STEPS), config, 1)
        ray.get(learner.open.remote(0, ("127.0.0.1", 0), resume_from), timeout=300)
        return learner

    first = started(None)
    for step in range(2):
        ray.get(first.step.remote((PROMPTS, rollouts[step], rewards[step])), timeout=300)
    ray.get(first.save.remote(tmp_path / "step_000002"), timeout=300)
    metrics, advantages, spans = ray.get(first.step.remote((PROMPTS, rollouts[2], rewards[2])), timeout=300)
    assert [len(row) for row in advantages] == [GROUP] * 3
    assert [one.work for one in spans] == ["checkpoint", "update"]
    expected = ray.get(first.weights.remote(), timeout=300)
    ray.kill(first)
    second = started(tmp_path / "step_000002")
    assert ray.get(second.next_step.remote(), timeout=300) == 2
    assert ray.get(second.step.remote((PROMPTS, rollouts[2], rewards[2])), timeout=300)[0] == metrics
    found = ray.get(second.weights.remote(), timeout=300)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not np.array_equal(found[name], expected[name])] == []
    # What the learner refuses reaches the driver as the learner's own error.
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        ray.get(second.step.remote((PROMPTS, rollouts[2], [[Unscored("rubric", "no words")] * GROUP] * 3)), timeout=300)
    assert isinstance(caught.value.cause, PolicyError)
    assert "step 3: 9 of 9 answers are unscored (no words)" in str(caught.value.cause)
    ray.kill(second)


def test_workers_have_this_programs_priority() -> None:
    """Ray's own default is 15 below it, and any busy program then takes the core."""

    @ray.remote(num_cpus=0)
    def priority() -> int:
        return os.nice(0)

    assert ray.get(priority.remote(), timeout=300) == os.nice(0)
