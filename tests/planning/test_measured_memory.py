"""`align --meta` against measured memory: the bytes of all tensors that a tiny learner or sampler really holds, within 15 %.

Measured as a device's allocator would (`tiny/live_bytes.py`). Not covered: a GPU's own kernels, several ranks, fragments, and
passes side by side on a processor, each with gradients of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.kimi import CODES, write_kimi
from tiny.live_bytes import LiveBytes
from tiny.plans import RATES

from paras2s.configs.schema.run import RunConfig
from paras2s.pipeline.dry_run import dry_run
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.types import Generation, Prompt, SampleRequest, Sampling
from paras2s.policy.weights import to_arrays
from paras2s.rollout.engine import NativeEngine, answer_seeds, decoded
from paras2s.train.learner import Learner
from paras2s.types import Block, Reward, Rollout

TEXT, STEPS, GROUP, QUERIES = 1500, 24, 4, 3
WIDER = {"hidden_size": 96, "intermediate_size": 256}
LORA = {"rank": 4, "alpha": 8}
# The plan's prompt: 5 s of speech and 6 steps besides.
PROMPT = 68


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    return write_kimi(folder / "kimi", dtype=request.param, text=TEXT, wider=WIDER)


def run_of(folder: Path, lora: bool, checkpointing: bool, rows: int | None) -> RunConfig:
    """A run whose every answer is as long as it may be."""
    optimizer = {"micro_batch_size": rows, "gradient_checkpointing": checkpointing}
    align = {
        "lora": LORA if lora else None, "optimizer": optimizer,
        "sampling": {"queries_per_step": QUERIES, "group_size": GROUP},
        "objective": {"groups_per_update": QUERIES, "max_logprob_gap": 100.0},
    }  # fmt: skip
    policy = {"weights": folder, "kind": "kimi", "device": "cpu", "max_answer_steps": STEPS}
    rates = {"lr": 1e-4, "adaptor_lr": 1e-4}
    align["optimizer"] = optimizer | rates
    return RunConfig.model_validate({"policy": policy, "align": align, "warmup": {"steps": 0}})


def prompts_of(policy: KimiPolicy) -> list[Prompt]:
    rng, dim = np.random.default_rng(0), policy.config.continuous_dim
    speech = np.arange(PROMPT) >= 6
    features = rng.normal(size=(PROMPT, dim)).astype(np.float32)
    audio = rng.integers(TEXT, TEXT + CODES, (PROMPT, 1))
    return [Prompt(audio, rng.integers(0, 256, PROMPT), features, speech) for _ in range(QUERIES)]


def answers_of(policy: KimiPolicy) -> list[Rollout]:
    """Answers of `STEPS` steps, every token of both streams drawn."""
    rng, shape = np.random.default_rng(1), (GROUP, STEPS, 2)
    found = []
    for query in range(QUERIES):
        tokens = rng.integers(TEXT, TEXT + CODES, shape)
        tokens[..., 0] = rng.integers(0, 256, shape[:2])
        block = Block(("text", "audio0"), tokens, np.ones(shape, bool), np.full(shape, -5.0))
        found.append(decoded(policy, str(query), 0, Generation((block,), ("length",) * GROUP, tuple(range(GROUP)))))
    return found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def held(*modules: Any) -> list[torch.Tensor]:
    return [value for one in modules if one is not None for value in (*one.parameters(), *one.buffers())]


def measured_learner(config: RunConfig) -> float:
    """Most bytes held in the second update, on one thread; the first makes the optimiser's states."""
    assert config.policy.weights is not None
    policy = KimiPolicy.load(config.policy.weights)
    learner, prompts, rollouts = Learner(policy, config.align, STEPS), prompts_of(policy), answers_of(policy)
    rewards: list[Sequence[Any]] = [[Reward(float(number), {}) for number in range(GROUP)] for _ in range(QUERIES)]
    learner.step(prompts, rollouts, rewards)
    learner.optimiser.zero_grad()
    states = [
        value for state in learner.optimiser.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    with LiveBytes([*held(policy.model, policy.frozen), *states]) as live:
        learner.step(prompts, [replace(one, policy_version=1) for one in rollouts], rewards)
    return float(live.peak)


@pytest.mark.parametrize(
    ("lora", "checkpointing", "rows"),
    [(False, False, None), (False, True, GROUP), (True, False, GROUP), (True, True, None), (True, True, GROUP)],
    ids=["all weights", "all weights, least memory", "adapters", "adapters, checkpointed", "adapters, least memory"],
)
def test_a_learners_memory_is_as_the_dry_run_says(released: Path, lora: bool, checkpointing: bool, rows: int | None) -> None:
    config = run_of(released, lora, checkpointing, rows)
    said = dry_run(config, RATES).roles["learner"].device
    assert sum(said.values()) == pytest.approx(measured_learner(config), rel=0.15)


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapters"])
def test_a_samplers_memory_is_as_the_dry_run_says(released: Path, lora: bool) -> None:
    config = run_of(released, lora, False, None)
    said = dry_run(config, RATES).roles["rollout"].device
    policy = KimiPolicy.load(released)
    if lora:
        policy.add_lora(**LORA)
    encoders, vocoder = (
        (policy.whisper.encoder, policy.tokenizer.encoder),
        (policy.detokenizer.flow, policy.detokenizer.vocoder),
    )
    engine, prompts = NativeEngine(policy), prompts_of(policy)
    if lora:
        # As a worker does: the adapters lie beside the weights that they are folded into.
        engine.set_weights(to_arrays(policy.trainable()), 0)
        said |= {"beneath": dry_run(config, RATES).roles["rollout"].host["weights beneath the adapters"]}
    names, seeds = [str(number) for number in range(QUERIES)], answer_seeds(0, 0, range(QUERIES), GROUP)
    merged = engine._adapters
    adapters = [] if merged is None else [*merged.tensors.values(), *merged._beneath.values()]
    with LiveBytes([*held(policy.model, *encoders, *vocoder), *adapters]) as live:
        engine.generate(names, SampleRequest(prompts, seeds, Sampling(1.0, 1.0, STEPS)), with_waves=False)
    speaking = said.pop("vocoder's keys and values")
    assert speaking > 0  # Nothing is spoken here.
    # Flow matching in half precision is a GPU's alone: on a processor it is loaded in float32.
    said["vocoder"] = sum(value.numel() * value.element_size() for value in held(*vocoder))
    assert sum(said.values()) == pytest.approx(live.peak, rel=0.15)


def test_the_count_sees_what_only_the_way_back_holds() -> None:
    """Five tensors of 4 MB that a chain of exponentials keeps, and two more while it runs."""
    weight = torch.ones(1000, 1000, requires_grad=True)
    with LiveBytes() as live:
        value = weight
        for _ in range(5):
            value = value.exp() * 0.1
        total = value.sum()
        del value
        assert live.now == 5 * 4_000_000 + 4
        torch.autograd.backward(total)
    assert live.now == 4_000_000 + 4
    assert live.peak >= 7 * 4_000_000
