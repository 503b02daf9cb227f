"""A GRPO job in miniature, made without data or warm-up: a tiny random policy, rewarded for the length of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from safetensors.numpy import load_file

from paras2s.align.job import GRPOJob
from paras2s.audio.clip import Clip
from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.audio.text_embedding import WordPieces
from paras2s.configs.schema.align import WorkersConfig
from paras2s.configs.schema.run import PolicyConfig, RewardConfig, RewardSourceConfig, RunConfig
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.features import FeatureNormalizer
from paras2s.policy.embedded.policy import EmbeddedPolicy, special_ids
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.types import Prompt, Turn
from paras2s.reward.reward_model.model import EncodedQuestion
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout.prompts import PromptFiles, write_prompt
from paras2s.run import Run
from tiny.dual_stream import small_prompt
from tiny.kimi import write_kimi
from tiny.settings import align_config

LETTERS = "abcdefgh"
ANSWER_STEPS, TARGET_STEPS, QUERIES, HELD = 8, 3, 7, 2
SIZES = DualStreamConfig(
    hidden_size=32, intermediate_size=48, num_layers=3, tap_layer=0, num_heads=4, num_kv_heads=2,
    text_vocab=len(LETTERS) + 9, codebook_sizes=Codec2Pairs.cardinality, audio_delay_steps=1, continuous_dim=3,
    mask_invalid_ids=True, **special_ids(len(LETTERS)),
)  # fmt: skip


def counts(**roles: int) -> dict[str, Any]:
    """So many workers of each role, of one thread each: other threads round sums otherwise, which may flip a draw."""
    return {role: {"threads": 1, "count": count} for role, count in roles.items()}


def save_tiny_policy(folder: Path) -> None:
    """Random, and the same every time."""
    model = DualStreamLM(SIZES)
    model.initialise(0)
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    listener = FeatureNormalizer(np.zeros(UTTERANCE_DIM), np.ones(UTTERANCE_DIM))
    EmbeddedPolicy(model, WordPieces(LETTERS), Codec2Pairs(), listener).save(folder)


def augment(prompt: Prompt, rng: np.random.Generator) -> Prompt:
    return replace(prompt, features=prompt.features + 0.1 * rng.normal(size=prompt.features.shape) * prompt.continuous[:, None])


def tiny_job(folder: Path, workers: dict[str, Any] | None = None, **align: Any) -> GRPOJob:
    """A run in this folder; `align` is laid over settings of four steps with a checkpoint after every second."""
    settings: dict[str, Any] = {
        "steps": 4, "queries_per_step": 4, "groups_per_update": 3, "group_size": 3, "lr": 0.01, "warmup_steps": 1,
        "evaluate_every": 2, "checkpoint_every": 2,
    }  # fmt: skip
    roles = counts(rollout=1, reward=1, learner=1) | dict(workers or {})
    source = RewardSourceConfig(kind="length", options={"target_steps": TARGET_STEPS})
    config = RunConfig(
        run_dir=folder / "run",
        cache_dir=folder / "cache",
        policy=PolicyConfig(device="cpu", max_answer_steps=ANSWER_STEPS),
        reward=RewardConfig(sources=(source,)),
        align=align_config(**(settings | align), workers=WorkersConfig.model_validate(roles)),
    )
    run = Run(config, Console(quiet=True), quiet=True)
    if not (run.sft_dir / "policy.json").is_file():
        save_tiny_policy(run.sft_dir)
    prompts = [
        replace(small_prompt(SIZES, 1, 3 + number % 3, seed=number), code_offsets=SIZES.codebook_offsets)
        for number in range(QUERIES + HELD)
    ]
    questions = [RewardQuestion(f"q{number}", _encoded(prompt), "hello") for number, prompt in enumerate(prompts)]
    files = stored(folder / "prompts", prompts[:QUERIES]), stored(folder / "held", prompts[QUERIES:])
    return GRPOJob(run, files[0], questions[:QUERIES], files[1], questions[QUERIES:], augment)


def tiny_kimi_run(folder: Path, workers: dict[str, Any] | None = None, longest: int = 60, **align: Any) -> Run:
    """A run of a tiny Kimi-Audio, rewarded for length; `align` is laid over settings of two steps."""
    settings: dict[str, Any] = {
        "steps": 2, "queries_per_step": 3, "groups_per_update": 2, "group_size": 12, "lr": 0.01, "warmup_steps": 1,
        "evaluate_every": 2, "checkpoint_every": 1, "lora": {"rank": 2, "alpha": 4}, "micro_batch_size": 12,
    }  # fmt: skip
    roles = counts(rollout=1, reward=1, learner=1) | dict(workers or {})
    config = RunConfig(
        run_dir=folder / "run",
        cache_dir=folder / "cache",
        policy=PolicyConfig(device="cpu", kind="kimi", max_answer_steps=longest),
        reward=RewardConfig(sources=(RewardSourceConfig(kind="length", options={"target_steps": longest // 2}),)),
        align=align_config(**(settings | align), workers=WorkersConfig.model_validate(roles)),
    )
    run = Run(config, Console(quiet=True), quiet=True)
    if not (run.sft_dir / "config.json").is_file():
        write_kimi(run.sft_dir, dtype=torch.float32)
    return run


def tiny_kimi_job(folder: Path, workers: dict[str, Any] | None = None) -> GRPOJob:
    """Such a run on six clips of noise as questions; the last two are for validation."""
    run, clips = tiny_kimi_run(folder, workers), 6
    # Ray's workers do not know this module, and so no clips of it.
    policy = KimiPolicy.load(run.sft_dir)
    prompts = [policy.encode_prompt([Turn("user", "", Noise().clip(str(number)))]) for number in range(clips)]
    questions = [RewardQuestion(f"q{number}", None, "hello") for number in range(clips)]
    files = stored(folder / "prompts", prompts[:-2]), stored(folder / "held", prompts[-2:])
    return GRPOJob(run, files[0], questions[:-2], files[1], questions[-2:], lambda prompt, _: prompt)


@dataclass(frozen=True)
class Noise:
    """Clips of noise, each by its number."""

    def clip(self, name: str) -> Clip:
        rng = np.random.default_rng(int(name))
        return Clip(0.1 * rng.normal(size=16_000 * (3 + int(name) % 3) // 10).astype(np.float32), 16_000)

    def cached_features(self, name: str) -> bytes | None:
        return None


def stored(folder: Path, prompts: Sequence[Prompt]) -> PromptFiles:
    """Made prompts as the files that workers would have written."""
    names = [f"{number}.npz" for number in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        write_prompt(folder / name, prompt, half=False)
    return PromptFiles(folder, names=names)


def _encoded(prompt: Prompt) -> EncodedQuestion:
    speech = prompt.continuous
    return EncodedQuestion(prompt.audio_ids[speech] - prompt.code_offsets, prompt.features[speech], prompt.words_dim)


def policy_of(job: GRPOJob) -> dict[str, np.ndarray]:
    """The aligned weights."""
    return dict(load_file(job.output / "model.safetensors"))


def logged(job: GRPOJob) -> list[dict[str, Any]]:
    """Its steps, without how long they took."""
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in job.run.metrics()]


def assert_same_policy(found: GRPOJob, expected: GRPOJob, atol: float = 0.0) -> None:
    """`atol` above 0 where questions were sampled in other company: sums of other shapes round otherwise."""
    one, other = policy_of(found), policy_of(expected)
    assert one.keys() == other.keys()
    apart = {name: float(np.abs(one[name] - other[name]).max()) for name in one}
    if atol:
        # A key's bias adds the same to all scores of a query, which the softmax does not see: its gradient is rounding alone,
        # and Adam makes full steps of it.
        apart = {name: value for name, value in apart.items() if not name.endswith("k_proj.bias")}
    assert {name: value for name, value in apart.items() if value > atol} == {}
