"""Passes side by side: their gradients are those of one after the other, to the last bit whichever ends first.

Not covered: how much faster they are (`python benchmarks/grpo_step.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt, small_rollouts
from tiny.settings import align_config
from torch import Tensor, nn

from paras2s.audio import text_embedding
from paras2s.train import passes
from paras2s.train.learner import Learner
from paras2s.train.passes import add_gradients, passes_at_once, side_by_side
from paras2s.types import Reward
from paras2s.utils.process_pool import TORCH_THREADS


class Order:
    """Lets passes end in a given order."""

    def __init__(self, order: list[int]) -> None:
        self.events = {number: threading.Event() for number in order}
        self.before = dict(zip(order[1:], order, strict=False))

    def wait(self, number: int) -> None:
        if number in self.before:
            assert self.events[self.before[number]].wait(30)

    def end(self, number: int) -> None:
        self.events[number].set()


def losses_of(model: nn.Module, inputs: Tensor, order: Order | None = None) -> list[Callable[[], tuple[Tensor, int]]]:
    def one(number: int) -> tuple[Tensor, int]:
        if order:
            order.wait(number)
        loss = (torch.tanh(model(inputs[number])) * 10.0 ** (8 * (number % 2))).sum()
        if order:
            order.end(number)
        return loss, number

    return [partial(one, number) for number in range(len(inputs))]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_gradients_are_added_in_the_order_of_the_passes(order: list[int]) -> None:
    """Of sizes so unlike that another order would round to another sum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    unused = nn.Parameter(torch.ones(2))
    parameters = [*model.parameters(), frozen, unused]
    inputs = torch.randn(3, 2, 5)
    found = []
    for at_once, held in ((1, None), (3, Order(order))):
        model.zero_grad()
        assert add_gradients(losses_of(model, inputs, held), parameters, at_once) == [0, 1, 2]
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert frozen.grad is None
    assert unused.grad is None


def test_passes_have_one_thread_each_and_leave_the_number_as_it_was() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        meet = threading.Barrier(2, timeout=30)

        def count() -> int:
            meet.wait()
            return torch.get_num_threads()

        assert side_by_side([count, count], 2) == [1, 1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_an_error_in_a_pass_is_the_callers() -> None:
    def wrong() -> tuple[Tensor, None]:
        raise ValueError("a pass")

    with pytest.raises(ValueError, match="a pass"):
        add_gradients([wrong, wrong], [nn.Parameter(torch.ones(1))], 2)


@pytest.mark.parametrize(("sharded", "size", "expected"), [(False, None, 2), (True, None, 1), (False, 4, 1)])
def test_a_batch_is_split_on_one_processor_where_no_size_is_given(
    sharded: bool, size: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    policy = small_policy(small_model(small_config()))
    assert passes_at_once(policy, sharded, size) == expected
    monkeypatch.setattr(type(policy), "passes_in_threads", False)
    assert passes_at_once(policy, sharded, size) == 1


def test_each_pass_has_one_thread_also_one_that_computes_late() -> None:
    """Threads that did nothing with torch in a first call, after which the process has its own number of threads again."""
    threads, met = torch.get_num_threads(), threading.Barrier(2)
    passes._pool.cache_clear()
    try:
        torch.set_num_threads(2)
        side_by_side([partial(met.wait, 30)] * 2, 2)

        def count() -> int:
            met.wait(30)
            return torch.get_num_threads()

        assert side_by_side([count] * 2, 2) == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_the_number_of_threads_is_changed_by_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `distill` trains while another thread embeds sentences, whose number would be a new pass's."""
    held: list[bool] = []
    change = torch.set_num_threads

    def watched(number: int) -> None:
        held.append(TORCH_THREADS.locked())
        change(number)

    monkeypatch.setattr(torch, "set_num_threads", watched)
    passes._pool.__wrapped__(2).shutdown()
    with monkeypatch.context() as patch:
        patch.setattr(text_embedding, "_vectors", {})
        text_embedding.embed_sentences(["hello"])
    assert held == [True] * 5


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_step_on_two_threads_is_the_step_on_one(checkpointing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64; and the same bits every time, whichever thread is first."""

    def stepped(threads: int) -> tuple[dict[str, Tensor], list[float]]:
        monkeypatch.setattr("paras2s.train.learner.passes_at_once", lambda *_: threads)
        model = small_model(small_config())
        policy = small_policy(model)
        config = align_config(lr=0.01, warmup_steps=1, gradient_checkpointing=checkpointing, groups_per_update=3, steps=9)
        learner = Learner(policy, config, 6)
        prompts = [small_prompt(model.dual_config, 1, 2 + number, seed=number) for number in range(3)]
        losses = []
        for step in range(2):
            rollouts = small_rollouts(policy, prompts, 4, 6, step)
            rewards = [[Reward(float((row + number) % 3), {}) for row in range(4)] for number in range(3)]
            losses.append(float(learner.step(prompts, rollouts, rewards)["loss"] or 0.0))
        return {name: value.detach().clone() for name, value in policy.trainable().items()}, losses

    alone, two, again = stepped(1), stepped(2), stepped(2)
    assert two[1] == again[1]
    for name, value in alone[0].items():
        torch.testing.assert_close(two[0][name], value, rtol=1e-10, atol=1e-12)
        assert torch.equal(two[0][name], again[0][name])
    assert alone[1] == pytest.approx(two[1], abs=1e-12)
