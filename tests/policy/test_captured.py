"""Steps of fixed sizes against the model's own, plainly and recorded: the same tokens, masks and log-probs.

Not covered: a GPU. `FakeRecorder` stands for CUDA's: it knows operations and memory alone, as a graph does, but runs them on
the processor and has no streams and no pool.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from test_conformance import WARM, case, seeds
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from paras2s.policy.dual_stream import captured
from paras2s.policy.dual_stream.captured import CapturedDecoder, States, graph_recorder, size_of
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.sampler import ModelDecoder, sample
from paras2s.policy.types import Generation, Prompt, SampleRequest, Sampling

GROUP = 3


class Tape(TorchDispatchMode):
    """Writes down operations, what they read, and where they put it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        made = func(*args, **(kwargs or {}))
        # The memory of now, whatever a parameter may be given later.
        args, kwargs = tree_map(lambda one: one.detach() if isinstance(one, Tensor) else one, (args, kwargs or {}))
        self.operations.append((func, args, kwargs, made))
        return made

    def run(self) -> None:
        """The same operations on the same memory."""
        for func, args, kwargs, made in self.operations:
            again = func(*args, **kwargs)
            for one, other in zip(*((x,) if isinstance(x, Tensor) else x for x in (made, again)), strict=True):
                if one.data_ptr() != other.data_ptr():
                    one.copy_(other)


class FakeRecorder:
    """Stands for CUDA's: what was recorded is operations on memory, and no Python in between."""

    def __init__(self) -> None:
        self.recorded, self.replayed = 0, 0

    def __call__(self, work: Callable[[], States]) -> Callable[[], States]:
        with Tape() as tape:
            states = work()
        self.recorded += 1

        def replay() -> States:
            self.replayed += 1
            tape.run()
            return states

        return replay


@pytest.fixture(autouse=True)
def _short_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tiny answers go through several."""
    monkeypatch.setattr(captured, "POSITIONS", 4)


def answers(
    model: DualStreamLM, prompts: list[Prompt], decoder: ModelDecoder, sampling: Sampling = WARM, rows: int = 256
) -> list[Generation]:
    return sample(model, SampleRequest(prompts, seeds(len(prompts), GROUP), sampling), rows, decoder)


def assert_same(found: list[Generation], expected: list[Generation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.finish_reason == other.finish_reason
        np.testing.assert_array_equal(one.blocks[0].tokens, other.blocks[0].tokens)
        np.testing.assert_array_equal(one.blocks[0].sampled, other.blocks[0].sampled)
        np.testing.assert_allclose(one.blocks[0].behaviour_logp, other.blocks[0].behaviour_logp, atol=1e-10, rtol=0)


def test_sizes_are_few_and_at_most_half_too_large() -> None:
    assert [size_of(rows) for rows in (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25, 33, 200, 256)] == [
        1, 2, 3, 4, 6, 6, 8, 12, 16, 24, 32, 48, 256, 256,
    ]  # fmt: skip
    assert all(rows <= size_of(rows) <= 1.5 * rows for rows in range(1, 300))
    assert len({size_of(rows) for rows in range(1, 257)}) == 16


@pytest.mark.parametrize("rows", [256, 4])
@pytest.mark.parametrize("name", ["two codebooks", "delay 3", "no delay", "text only"])
def test_fixed_sizes_change_nothing(name: str, rows: int) -> None:
    """All answers at once, and one group after another, as they leave."""
    model, prompts = case(name)
    plain = answers(model, prompts, ModelDecoder(model), rows=rows)
    recorder = FakeRecorder()
    for decoder in (CapturedDecoder(model, None), CapturedDecoder(model, recorder)):
        # The second call finds what the first has left behind.
        for _ in range(2):
            assert_same(answers(model, prompts, decoder, rows=rows), plain)
    assert recorder.replayed > recorder.recorded > 0


def test_records_follow_weights_that_are_filled_and_not_those_that_are_replaced() -> None:
    model, prompts = case("two codebooks")
    recorder = FakeRecorder()
    decoder = CapturedDecoder(model, recorder)
    before = [answers(model, prompts, decoder) for _ in range(2)][-1]
    recorded, replayed = recorder.recorded, recorder.replayed
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    after = answers(model, prompts, decoder)
    # The second time that a size is met it is recorded, and replayed at once.
    assert recorder.replayed - replayed > recorder.recorded - recorded
    assert_same(after, answers(model, prompts, ModelDecoder(model)))
    assert not np.array_equal(after[0].blocks[0].behaviour_logp, before[0].blocks[0].behaviour_logp)
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data * 1.5
    for _ in range(2):
        assert_same(answers(model, prompts, decoder), answers(model, prompts, ModelDecoder(model)))


def test_the_host_reads_nothing_in_a_step_but_what_it_must_know() -> None:
    """Twice the steps, and no more numbers read one by one; the one copy a step is `_known_to_host`."""

    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func._schema.name in ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero")
            return func(*args, **(kwargs or {}))

    config = small_config((400, 300))
    model, prompts = small_model(config), [small_prompt(config, 1, 4, seed=0)]
    counts = []
    for steps in (10, 20):
        with Reads() as reads:
            (answer,) = answers(model, prompts, CapturedDecoder(model, None), Sampling(max_steps=steps))
        assert answer.finish_reason == ("length",) * GROUP
        counts.append(reads.count)
    assert counts[0] == counts[1] > 0


def test_longer_answers_and_more_prompts_get_memory_of_their_own() -> None:
    model, prompts = case("two codebooks")
    decoder = CapturedDecoder(model, FakeRecorder())
    for chosen, sampling in ((prompts[:1], WARM), (prompts, Sampling(0.7, 1.4, 14)), (prompts[:1], WARM)):
        assert_same(answers(model, chosen, decoder, sampling), answers(model, chosen, ModelDecoder(model), sampling))


def test_what_cannot_be_recorded_runs_plainly() -> None:
    def refuse(_: Callable[[], States]) -> Callable[[], States]:
        raise RuntimeError("operation not permitted when stream is capturing")

    model, prompts = case("two codebooks")
    decoder = CapturedDecoder(model, refuse)
    with pytest.warns(UserWarning, match="not permitted when stream"):
        assert_same(answers(model, prompts, decoder), answers(model, prompts, ModelDecoder(model)))
    assert not decoder.records


def test_a_policy_records_by_itself_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert graph_recorder(torch.device("cpu")) is None
    recorder = FakeRecorder()
    from paras2s.policy.dual_stream import policy as module

    monkeypatch.setattr(module, "graph_recorder", lambda _: recorder)
    _, prompts = case("two codebooks")
    policy = small_policy(small_model(small_config()))

    def ask() -> list[Generation]:
        return policy.generate(SampleRequest(prompts, seeds(len(prompts), GROUP), WARM))

    plain = answers(policy.model, prompts, ModelDecoder(policy.model))
    for _ in range(2):
        assert_same(ask(), plain)
    assert (count := recorder.replayed) > 0
    # Neither another model nor adapters are what was recorded.
    policy.freeze_reference()
    with policy.reference():
        assert_same(ask(), plain)
    policy.add_lora(2, 4)
    assert_same(ask(), plain)
    assert recorder.replayed == count


class FakePools:
    """Stands for torch's pools of graphs: a pool ends with its last graph, and is then refused."""

    def __init__(self) -> None:
        self.made, self.used, self.held = 0, 0, weakref.WeakSet[Any]()

    def handle(self) -> int:
        self.made += 1
        self.held.clear()
        return self.made

    @contextmanager
    def graph(self, graph: Any, pool: int) -> Iterator[None]:
        if pool == self.used and not self.held:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self.used = pool
        self.held.add(graph)
        yield


class FakeGraph:
    def replay(self) -> None:
        """Repeat nothing."""


def test_a_pool_that_ended_with_its_last_graph_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an H200, where the sampler ran plainly from the second size of its cache on."""
    pools = FakePools()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", pools.handle)
    monkeypatch.setattr(torch.cuda, "graph", pools.graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    record = graph_recorder(torch.device("cuda"))
    assert record is not None
    states = (torch.zeros(1), None)
    kept = [record(lambda: states), record(lambda: states)]
    assert pools.made == 1
    kept.clear()
    assert record(lambda: states)() is states
    assert pools.made == 2
