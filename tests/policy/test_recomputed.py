"""The operations that recompute give the values and gradients of the plain formulas, and keep no more than their inputs.

Not covered: how much time and memory that saves a learner (`benchmarks/grpo_step.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy
from torch import Tensor

from paras2s.policy.dual_stream.recomputed import picked_logprobs, rms_norm, swiglu

EPS = 1e-6
WANTED = torch.tensor([3, 0, 6, 6])


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (scale * drawn).to(dtype).requires_grad_()


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def plain_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return gate * torch.sigmoid(gate) * up


def plain_logprobs(logits: Tensor) -> Tensor:
    return torch.stack([(logits[row] / 0.7).log_softmax(-1)[one] for row, one in enumerate(WANTED)])


CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "norm": (lambda x, weight: rms_norm(x, weight, EPS), plain_norm, [(2, 3, 5), (5,)]),
    "swiglu": (swiglu, plain_swiglu, [(2, 3, 5), (2, 3, 5)]),
    "log-probs": (lambda logits: picked_logprobs(logits, WANTED, 0.7), plain_logprobs, [(4, 7)]),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_plain_formula(case: str) -> None:
    ours, plain, shapes = CASES[case]
    inputs = [normal(*shape, seed=number) for number, shape in enumerate(shapes)]
    value, expected = ours(*inputs), plain(*inputs)
    torch.testing.assert_close(value, expected)
    along = normal(*value.shape, seed=9).detach()
    torch.testing.assert_close(torch.autograd.grad(value, inputs, along), torch.autograd.grad(expected, inputs, along))


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_finite_differences(case: str) -> None:
    ours, _, shapes = CASES[case]
    assert torch.autograd.gradcheck(ours, [normal(*shape, seed=number) for number, shape in enumerate(shapes)])


@pytest.mark.parametrize("case", CASES)
def test_nothing_but_the_inputs_is_kept(case: str) -> None:
    ours, _, shapes = CASES[case]
    inputs, kept = [normal(*shape, seed=number) for number, shape in enumerate(shapes)], list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        ours(*inputs)
    assert [one.data_ptr() for one in kept if one is not WANTED] == [one.data_ptr() for one in inputs]


@pytest.mark.parametrize("case", CASES)
def test_in_half_precision_gradients_come_in_the_inputs_precision(case: str) -> None:
    ours, _, shapes = CASES[case]
    inputs = [normal(*shape, seed=number, dtype=torch.bfloat16) for number, shape in enumerate(shapes)]
    value = ours(*inputs)
    wide = [one.detach().double().requires_grad_() for one in inputs]
    expected = ours(*wide)
    torch.testing.assert_close(value.double(), expected, rtol=0.02, atol=0.02)
    gradients = torch.autograd.grad(value.sum(), inputs)
    assert {one.dtype for one in gradients} == {torch.bfloat16}
    for one, exact in zip(gradients, torch.autograd.grad(expected.sum(), wide), strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=0.05, atol=0.05)


def test_log_probs_of_half_precision_are_not_rounded_to_it() -> None:
    logits = normal(4, 7, seed=0, dtype=torch.bfloat16, scale=5.0)
    logp = picked_logprobs(logits, WANTED, 1.0)
    assert logp.dtype == torch.float32
    torch.testing.assert_close(logp, logits.float().log_softmax(-1).gather(1, WANTED[:, None])[:, 0])


def test_a_frozen_norm_gets_no_gradient_and_its_input_does() -> None:
    x, weight = normal(3, 5, seed=0), torch.ones(5, dtype=torch.float64)
    rms_norm(x, weight, EPS).sum().backward()
    assert weight.grad is None
    assert x.grad is not None
    expected = torch.autograd.grad(plain_norm(x, weight).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


def test_an_impossible_token_has_no_probability_and_the_others_a_finite_gradient() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 1.0]], requires_grad=True)
    picked_logprobs(logits, torch.tensor([2]), 1.0).sum().backward()
    assert logits.grad is not None
    # softmax of (0, 1) is (0.26894, 0.73106).
    assert logits.grad[0].tolist() == pytest.approx([-0.26894, 0.0, 0.26894], abs=1e-5)


def test_an_adapter_learns_in_float32_from_products_in_its_inputs_precision() -> None:
    """The gradient of each of its matrices against the same in float64; what the policy's layer gives stays half precision."""
    policy = small_policy(small_model(small_config()).to(torch.bfloat16))
    policy.add_lora(4, 8)
    layer = policy.adapters[0]
    exact = copy.deepcopy(layer).double()
    with torch.no_grad():
        for one, other in zip(layer.lora_B.parameters(), exact.lora_B.parameters(), strict=True):
            other.copy_(one.normal_(0, 0.1))
    x = torch.randn(50, layer.in_features, dtype=torch.bfloat16)
    found, expected = layer(x), exact(x.double())
    assert found.dtype == torch.bfloat16
    weights = torch.randn(found.shape)
    (found.float() * weights).sum().backward()
    (expected * weights).sum().backward()
    for one, other in zip(layer.parameters(), exact.parameters(), strict=True):
        if one.requires_grad:
            assert one.dtype == one.grad.dtype == torch.float32
            assert (one.grad - other.grad).norm() < 0.01 * other.grad.norm()


def test_an_adapter_on_a_convolution_is_left_to_peft() -> None:
    policy = small_policy(small_model(small_config()).to(torch.bfloat16))
    policy.model.extra = torch.nn.Conv1d(3, 5, 3, dtype=torch.bfloat16)
    policy.spec = replace(policy.spec, lora_targets="extra")
    policy.add_lora(2, 4)
    assert policy.model.extra(torch.randn(1, 3, 7, dtype=torch.bfloat16)).shape == (1, 5, 5)
