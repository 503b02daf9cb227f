"""Seeds of answers, and whether codes, texts and waves of native rollouts agree with their blocks.

Not covered: the sampler's distribution (tests/policy/test_conformance.py), and rollouts in other processes
(tests/integration/test_ray_actors.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt, small_rollouts

from paras2s.errors import PolicyError
from paras2s.planning.cost import PolicySizes, beneath_bytes
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import SampleRequest, Sampling
from paras2s.policy.weights import fill, to_arrays
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.types import Rollout

STEPS, GROUP = 9, 5


def test_seeds_are_the_same_every_time_and_have_the_shape_requested() -> None:
    seeds = answer_seeds(3, 7, [40, 2, 9], 4)
    assert seeds == answer_seeds(3, 7, [40, 2, 9], 4)
    assert [len(row) for row in seeds] == [4, 4, 4]
    assert all(type(value) is int for row in seeds for value in row)


def test_no_seed_comes_twice_in_a_run() -> None:
    seeds = [seed for step in range(60) for row in answer_seeds(0, step, range(12), 8) for seed in row]
    assert len(set(seeds)) == 60 * 12 * 8


def test_another_run_has_other_seeds() -> None:
    one, other = ({s for row in answer_seeds(run, 1 - run, range(6), 8) for s in row} for run in (0, 1))
    assert not one & other


@pytest.fixture(scope="module")
def rollouts() -> list[Rollout]:
    config = small_config()
    policy = small_policy(small_model(config))
    return small_rollouts(policy, [small_prompt(config, 1, 4, seed) for seed in range(4)], GROUP, STEPS, 0)


def test_fields_belong_together(rollouts: list[Rollout]) -> None:
    config = small_config()
    assert [rollout.query_id for rollout in rollouts] == ["q0", "q1", "q2", "q3"]
    assert [list(rollout.seeds) for rollout in rollouts] == answer_seeds(5, 0, range(4), GROUP)
    for rollout in rollouts:
        block = rollout.blocks[0]
        assert rollout.size == GROUP
        assert {len(part) for part in (rollout.codes, rollout.texts, rollout.waves, rollout.finish_reason)} == {GROUP}
        assert block.tokens.shape == block.sampled.shape == block.behaviour_logp.shape == (GROUP, *block.tokens.shape[1:])
        assert (block.behaviour_logp[~block.sampled] == 0).all()
        assert (block.behaviour_logp[block.sampled] < 0).all()
        for codes, wave, text, reason, sampled in zip(
            rollout.codes, rollout.waves, rollout.texts, rollout.finish_reason, block.sampled, strict=True
        ):
            ended = reason == "eos"
            # The end of an answer is sampled in the first audio slot and is no code.
            assert len(codes) == sampled[:, 1].sum() - ended
            assert len(codes) == sampled[:, 2].sum()
            assert codes.shape[1] == config.num_codebooks
            assert (codes >= 0).all()
            assert (codes < np.array(config.codebook_sizes)).all()
            assert len(wave) == 640 * len(codes)
            assert wave.dtype == np.float32
            assert len(text.split()) in (sampled[:, 0].sum(), sampled[:, 0].sum() - 1)


def test_both_ends_are_seen(rollouts: list[Rollout]) -> None:
    """The fixture would test less if every answer ended alike."""
    assert {reason for rollout in rollouts for reason in rollout.finish_reason} == {"eos", "length"}


def test_waves_can_be_left_out_and_the_version_is_written() -> None:
    config = small_config()
    engine = NativeEngine(small_policy(small_model(config)))
    engine.version = 17
    rollout = engine.generate(["q"], SampleRequest([small_prompt(config, 1, 4, 0)], [[1, 2]], Sampling(max_steps=5)), False)[0]
    assert [len(wave) for wave in rollout.waves] == [0, 0]
    assert rollout.policy_version == 17
    assert rollout.sample_rate_hz == 8_000


def test_a_prompt_that_does_not_fit_the_context_is_refused_by_its_query() -> None:
    """Never cut: a question without its end is another question."""
    config = small_config()
    policy = small_policy(small_model(config))
    policy.spec = replace(policy.spec, context_steps=12)
    prompts = [small_prompt(config, 1, 2, 0), small_prompt(config, 1, 5, 1)]
    fits = NativeEngine(policy).generate(["short", "long"], SampleRequest(prompts, [[1], [2]], Sampling(max_steps=3)))
    assert len(fits) == 2
    with pytest.raises(
        PolicyError, match="query long: a prompt of 9 steps and an answer of up to 4 do not fit the policy's 12"
    ):
        NativeEngine(policy).generate(["short", "long"], SampleRequest(prompts, [[1], [2]], Sampling(max_steps=4)))


def test_new_weights_must_be_the_policys_own() -> None:
    config = small_config()
    engine = NativeEngine(small_policy(small_model(config)))
    assert engine.version == -1
    weights = to_arrays(small_policy(small_model(config, seed=3)).trainable())
    engine.set_weights(weights, 5)
    assert engine.version == 5
    np.testing.assert_array_equal(engine.policy.trainable()["lm_head.weight"].detach().numpy(), weights["lm_head.weight"])
    with pytest.raises(PolicyError, match=r"lm_head.weight \[24, 16\] is missing"):
        engine.set_weights({name: value for name, value in weights.items() if name != "lm_head.weight"}, 6)


def test_bfloat16_weights_travel_as_their_bits() -> None:
    model = small_model(small_config()).to(torch.bfloat16)
    arrays = to_arrays(dict(model.named_parameters()))
    assert {value.dtype for value in arrays.values()} == {np.dtype(np.int16)}
    other = small_model(small_config(), seed=4).to(torch.bfloat16)
    fill(dict(other.named_parameters()), arrays, "here")
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


def test_an_answer_depends_on_its_own_seed_alone() -> None:
    config = small_config()
    policy, prompt = small_policy(small_model(config)), small_prompt(config, 1, 4, 0)
    many = NativeEngine(policy).generate(["q"], SampleRequest([prompt], [[5, 6, 7]], Sampling(max_steps=6)))[0]
    alone = NativeEngine(policy).generate(["q"], SampleRequest([prompt], [[6]], Sampling(max_steps=6)))[0]
    np.testing.assert_array_equal(many.codes[1], alone.codes[0])
    assert many.texts[1] == alone.texts[0]


# -- adapters -----------------------------------------------------------------------------------------------------------


def with_adapters(dtype: torch.dtype = torch.float64) -> EmbeddedPolicy:
    policy = small_policy(small_model(small_config()).to(dtype))
    torch.manual_seed(0)
    policy.add_lora(2, 4)
    return policy


def other_adapters(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: 0.1 * rng.normal(size=tuple(value.shape)) for name, value in with_adapters().trainable().items()}


def test_a_sampler_folds_adapters_into_its_weights_each_time_anew() -> None:
    prompts = [small_prompt(small_config(), 1, 4, seed) for seed in range(2)]
    sampling, seeds = Sampling(1.0, 1.0, STEPS), answer_seeds(5, 0, range(2), GROUP)
    engine = NativeEngine(with_adapters())
    for version, seed in enumerate((1, 2, 1)):
        engine.set_weights(other_adapters(seed), version)
        assert not engine.policy.adapters
        found = engine.generate(["a", "b"], SampleRequest(prompts, seeds, sampling))
        # Unmerged, as the learner computes them.
        apart = with_adapters()
        fill(apart.trainable(), other_adapters(seed), "test")
        logp = apart.logprobs(prompts, [one.blocks for one in found], sampling)[0].detach().numpy()
        for row, rollout in enumerate(found):
            block = rollout.blocks[0]
            there = logp[row * GROUP : (row + 1) * GROUP, : block.tokens.shape[1]]
            np.testing.assert_allclose(np.where(block.sampled, there, 0), block.behaviour_logp, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_moves_the_adapters_and_the_weights_beneath_them(dtype: torch.dtype) -> None:
    """As the plan counts them: adapters in float32, and the seven products of every layer, from the host."""
    engine = NativeEngine(with_adapters(dtype))
    adapters = {name: value.astype(np.float32) for name, value in other_adapters(0).items()}
    engine.set_weights(adapters, 0)
    products = [
        layer.get_base_layer().weight
        for layer in engine._adapters._layers.values()  # type: ignore[union-attr]
    ]
    sizes = PolicySizes(
        hidden=16, intermediate=24, layers=3, tap=0, heads=4, kv_heads=2, vocab=0, text_rows=0, audio_rows=0, codebooks=2,
        continuous=3,
    )  # fmt: skip
    beneath = beneath_bytes(sizes, dtype.itemsize)
    assert beneath == sum(weight.nbytes for weight in products)
    assert engine.moved_bytes == beneath + sum(value.nbytes for value in adapters.values())


def test_half_precision_weights_are_not_worn_by_folding() -> None:
    """After adapters of 0 the weights are those of the start, to the bit, however often others came before."""
    start = {name: value.clone() for name, value in with_adapters(torch.bfloat16).model.state_dict().items()}
    engine = NativeEngine(with_adapters(torch.bfloat16))
    for version in range(3):
        engine.set_weights({name: value.astype(np.float32) for name, value in other_adapters(version).items()}, version)
    folded = engine.policy.model.state_dict()
    assert not torch.equal(folded["model.layers.0.mlp.up_proj.weight"], start["model.layers.0.mlp.up_proj.base_layer.weight"])
    engine.set_weights({name: np.zeros(value.shape, np.float32) for name, value in other_adapters(0).items()}, 3)
    for name, value in engine.policy.model.state_dict().items():
        layer, _, kind = name.rpartition(".")
        assert torch.equal(value, start[name] if name in start else start[f"{layer}.base_layer.{kind}"])
