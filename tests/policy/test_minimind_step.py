"""MiniMind-O learns: GRPO steps with adapters and with all weights, then a checkpoint that is exported and opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny.minimind import TinyEncoder, write_minimind
from tiny.moshi import tone

from paras2s.configs.schema.align import AlignConfig
from paras2s.policy.minimind_o import MiniMindPolicy
from paras2s.policy.types import SampleRequest, Turn
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.train.learner import Learner
from paras2s.types import Reward


@pytest.mark.parametrize("lora", [{"rank": 4, "alpha": 8}, None], ids=["adapters", "all weights"])
def test_a_grpo_step_moves_it_and_sampler_and_learner_agree(tmp_path: Path, lora: dict[str, int] | None) -> None:
    steps, queries, group = 16, 2, 4
    values: dict[str, Any] = {
        "lora": lora, "sampling": {"queries_per_step": queries, "group_size": group},
        "objective": {"groups_per_update": queries}, "optimizer": {"lr": 1e-3, "adaptor_lr": 1e-3, "warmup_steps": 1},
    }  # fmt: skip
    folder = write_minimind(tmp_path / "tiny")
    trained, sampler = MiniMindPolicy.load(folder), MiniMindPolicy.load(folder)
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    sampler.audio_encoder = TinyEncoder()  # type: ignore[assignment]
    learner, engine = Learner(trained, AlignConfig.model_validate(values), steps), NativeEngine(sampler)
    if lora is not None:
        sampler.add_lora(lora["rank"], lora["alpha"])
    prompts = [sampler.encode_prompt([Turn("user", clip=tone(0.3, 16_000, pitch))]) for pitch in (200, 300)]
    for step in range(2):
        engine.set_weights(learner.weights(), step)
        seeds = answer_seeds(0, step, range(queries), group)
        rollouts = engine.generate(["a", "b"], SampleRequest(prompts, seeds, learner.sampling))
        rewards = [[Reward(5 - 4 * len(codes) / steps, {}) for codes in rollout.codes] for rollout in rollouts]
        metrics = learner.step(prompts, rollouts, rewards)
        assert metrics["parity_text_max"] < 1e-3
        assert metrics["parity_audio_max"] < 1e-3
    if lora is not None:
        trained.merge_lora()
    trained.save(tmp_path / "aligned")
    opened = MiniMindPolicy.load(tmp_path / "aligned").model.state_dict()
    moved = {name for name, value in opened.items() if not torch.equal(value, before[name])}
    parts = ("model.layers.0", "model.layers.3", "talker.layers.1")
    assert all(any(name.startswith(part) for name in moved) for part in parts)
    assert ("audio_proj.mlp.3.weight" in moved) == (lora is None)
