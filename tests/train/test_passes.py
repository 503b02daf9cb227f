"""Passes side by side: their gradients are those of one after the other, to the last bit whichever ends first.

Not covered: how much faster they are (`python benchmarks/grpo_step.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy
from torch import Tensor, nn

from paras2s.train.passes import add_gradients, passes_at_once, side_by_side


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


@pytest.mark.parametrize(("world", "size", "expected"), [(1, None, 2), (2, None, 1), (1, 4, 1)])
def test_a_batch_is_split_on_one_processor_where_no_size_is_given(
    world: int, size: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    policy = small_policy(small_model(small_config()))
    assert passes_at_once(policy, world, size) == expected
    monkeypatch.setattr(type(policy), "passes_in_threads", False)
    assert passes_at_once(policy, world, size) == 1
