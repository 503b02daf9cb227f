"""The vLLM engine behind the rollout interface: its log-probs are the policy's, for prompts of ids and of vectors.

Also through a rollout worker, with adapters, and after it was killed. Not covered: GPUs and released weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from tiny.dual_stream import small_config, small_model, small_policy
from tiny.interleaved import TinyGlm, TinyStep, tiny_glm, tiny_step, tiny_turns

from paras2s.configs.schema.align import SamplingConfig
from paras2s.errors import ConfigError, PolicyError
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.interleaved.base import InterleavedPolicy
from paras2s.policy.types import Prompt, SampleRequest, Sampling
from paras2s.policy.weights import to_arrays
from paras2s.rollout import vllm_engine
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.rollout.local_ray import start_ray
from paras2s.rollout.vllm_engine import VllmEngine, engine_python
from paras2s.types import Rollout

CONFIG = SamplingConfig(engine="vllm")
STEPS, GROUP = 20, 6
SAMPLING = Sampling(0.9, 0.9, STEPS)


def _has_vllm() -> bool:
    try:
        return bool(engine_python(CONFIG))
    except ConfigError:
        return False


pytestmark = pytest.mark.skipif(not _has_vllm(), reason="no .venv-vllm beside the package (make vllm-env)")


def large(policy: Any, seed: int = 0) -> Any:
    """The tiny policy with heads of 32 dimensions, since vLLM's CPU build has nothing smaller."""
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 128, "num_heads": 4, "num_kv_heads": 2}
    features = {"continuous_dim": 128} if policy.config.continuous_dim else {}
    torch.manual_seed(seed)
    model = DualStreamLM(policy.config.model_copy(update=sizes | features))
    for name, parameter in model.named_parameters():
        parameter.data = torch.randn_like(parameter) * (0.3 if "norm" in name else 0.1) + (1 if "norm" in name else 0)
    # Some answers must come to an end.
    model.lm_head.weight.data[list(model.dual_config.text_end_ids)] *= 3 if policy.config.continuous_dim else 1
    made = type(policy)(model, policy.released, policy.tokens, policy.words, policy.folder, policy.decoder)
    made.__dict__["held"] = policy
    return made


def prompts_of(policy: InterleavedPolicy) -> list[Prompt]:
    """Of ids, and for the one that hears vectors, of vectors of the larger size."""
    small = policy.__dict__["held"]
    found = [small.encode_prompt(turns) for turns in tiny_turns()]
    rng = np.random.default_rng(0)
    return [
        one if one.features is None else Prompt(one.audio_ids, one.text_ids,
                                                rng.normal(size=(one.length, 128)).astype(np.float32), one.continuous)
        for one in found
    ]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _little_memory() -> Iterator[None]:
    start_ray(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_engine, "MEMORY_SHARE", {"cpu": 0.06, "cuda": 0.1})
        yield


@pytest.fixture(scope="module", params=["glm", "step"])
def engine(request: pytest.FixtureRequest) -> Iterator[VllmEngine]:
    made = VllmEngine(large(tiny_glm() if request.param == "glm" else tiny_step()), CONFIG, STEPS, 1)
    yield made
    ray.kill(made._worker)


def ask(engine: Any, step: int = 0) -> list[Rollout]:
    prompts = prompts_of(engine.policy)
    names = [f"q{number}" for number in range(len(prompts))]
    return engine.generate(names, SampleRequest(prompts, answer_seeds(0, step, range(len(prompts)), GROUP), SAMPLING))


def assert_on_policy(engine: VllmEngine, rollouts: list[Rollout]) -> None:
    (logp,) = engine.policy.logprobs(prompts_of(engine.policy), [one.blocks for one in rollouts], SAMPLING)
    row = 0
    for one in rollouts:
        (block,) = one.blocks
        answers, steps, _ = block.tokens.shape
        found = logp[row : row + answers, :steps].detach().numpy()
        np.testing.assert_allclose(np.where(block.sampled, block.behaviour_logp, 0), found, atol=2e-4)
        row += answers


def test_its_log_probs_are_the_policys(engine: VllmEngine) -> None:
    rollouts = ask(engine)
    assert_on_policy(engine, rollouts)
    ends = engine.policy.config.text_end_ids
    for one in rollouts:
        (block,) = one.blocks
        for answer, reason in enumerate(one.finish_reason):
            tokens = block.tokens[answer, :, 0][block.sampled[answer, :, 0]]
            assert (tokens[-1] in ends) == (reason == "eos")
            assert reason == "eos" or len(tokens) == STEPS
            assert not np.isin(tokens[:-1], ends).any()
    assert {reason for one in rollouts for reason in one.finish_reason} == {"eos", "length"}
    # The same seeds, the same answers, whatever the engine has kept.
    again = ask(engine)
    for one, other in zip(rollouts, again, strict=True):
        np.testing.assert_array_equal(one.blocks[0].tokens, other.blocks[0].tokens)


def test_answers_are_decoded_as_the_native_engines_are(engine: VllmEngine) -> None:
    native = NativeEngine(engine.policy)
    for one in ask(engine):
        (block,) = one.blocks
        for answer in range(GROUP):
            assert one.texts[answer] == native.policy.decode_text([block], answer)
            np.testing.assert_array_equal(one.codes[answer], native.policy.decode_codes([block], answer))
            assert bool(len(one.waves[answer])) == bool(len(one.codes[answer]))
    assert block.streams.shape == block.tokens.shape


def test_new_weights_and_adapters_are_sampled_with_at_once(engine: VllmEngine) -> None:
    policy = engine.policy
    other = large(policy.__dict__["held"], seed=5)
    engine.set_weights(to_arrays(other.trainable()), 3)
    rollouts = ask(engine, 1)
    assert all(one.policy_version == 3 for one in rollouts)
    assert_on_policy(engine, rollouts)
    policy.add_lora(2, 4)
    try:
        for parameter in policy.trainable().values():
            parameter.data += 0.1 * torch.randn_like(parameter)
        engine.set_weights(to_arrays(policy.trainable()), 4)
        assert_on_policy(engine, ask(engine, 2))
    finally:
        policy.merge_lora()
        engine.set_weights(to_arrays(policy.trainable()), 5)


def test_an_engine_that_died_is_started_again_with_the_present_weights(engine: VllmEngine) -> None:
    before = ask(engine, 3)
    ray.kill(engine._worker)
    after = ask(engine, 3)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one.blocks[0].tokens, other.blocks[0].tokens)


def test_what_vllm_cannot_do_is_refused(engine: VllmEngine, tmp_path: Path) -> None:
    prompts, seeds = prompts_of(engine.policy), answer_seeds(0, 0, range(3), 1)
    for sampling in (Sampling(0.5, 0.9, STEPS), Sampling(max_steps=STEPS, text_top_k=3)):
        with pytest.raises(PolicyError, match="one temperature"):
            engine.generate(["a", "b", "c"], SampleRequest(prompts, seeds, sampling))
    context = engine.policy.spec.context_steps or 0
    with pytest.raises(PolicyError, match="query b"):
        engine.generate(["b"], SampleRequest(prompts[:1], seeds[:1], Sampling(max_steps=context)))
    dual = small_policy(small_model(small_config()))
    with pytest.raises(PolicyError, match="single-stream"):
        VllmEngine(dual, CONFIG, STEPS, 1)
    with pytest.raises(ConfigError, match="make vllm-env"):
        engine_python(SamplingConfig(engine="vllm", engine_python=tmp_path / "python"))


def test_the_families_are_both_here(engine: VllmEngine) -> None:
    assert isinstance(engine.policy, TinyGlm | TinyStep)
