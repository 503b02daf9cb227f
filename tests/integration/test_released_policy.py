"""Released layouts in place of the embedded policy, by command line: Kimi-Audio's warm-up, GRPO rewarded for length, its resume
and check-policy; Moshi's GRPO by the asynchronous driver.

The networks are tiny and random, of the true architectures; what they say is noise. Distillation, bench and export, of other
families: test_released_families.py. Not covered: those of these two, and what they would learn.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny.kimi import write_kimi
from tiny.moshi import tiny_moshi
from tiny.settings import grouped
from tiny.world import invoke, write_run

from paras2s.audio.clip import read_clip
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.dataset import TableWriter, load_dataset
from paras2s.policy.base import Policy
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.moshi import MoshiPolicy
from paras2s.policy.registry import load_policy
from paras2s.policy.types import Prompt, Sampling
from paras2s.policy.weights import shard_files
from paras2s.rollout.orchestrator import Orchestrator, StepAnswers
from paras2s.rollout.prompts import read_prompt
from paras2s.types import Query, Rollout
from paras2s.utils.io import read_jsonl

LORA = {"rank": 2, "alpha": 4}
ALIGN = {
    "steps": 2, "queries_per_step": 2, "groups_per_update": 2, "group_size": 3, "warmup_steps": 1, "checkpoint_every": 1,
    "lr": 0.01, "lora": LORA, "micro_batch_size": 4, "max_logprob_gap": 0.01,
}  # fmt: skip


def config_of(folder: Path, data: Path, weights: Path, **changes: Any) -> Path:
    """A run on the tiny data with released weights, rewarded for length."""
    policy = {"weights": str(weights), "device": "cpu", "max_answer_steps": 6}
    reward = {"sources": [{"kind": "length", "options": {"target_steps": 3}}]}
    sections = {"policy": policy, "reward": reward, "align": ALIGN, **changes}
    config = write_run(folder, **{**sections, "align": grouped(sections["align"])})
    shutil.copytree(data, folder / "run" / "data")
    queries = load_dataset(data).queries
    # The tiny data has no RL prompts: those of the preference set are asked, without their labels, the first for validation.
    first = next(query for query in queries if query.role == "preference")
    queries = tuple(replace(first, role="validation") if query == first else query for query in queries)
    requests = [replace(q, role="rl", text=None, style=None) if q.role == "preference" else q for q in queries]
    with TableWriter(folder / "run/data/queries.parquet", Query) as table:
        table.write(requests)
    return config


@contextmanager
def without_weights(policy: type[Policy]) -> Iterator[None]:
    """Inside, this process may not make the policy or read its checkpoint; Ray's workers are processes of their own."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the driver is to hold no policy")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "load", refuse)
        patch.setattr(policy, "__init__", refuse)
        yield


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for path in shard_files(folder) for name, value in load_file(path).items()}


@pytest.fixture(scope="module")
def sent() -> list[list[Rollout]]:
    """The rollouts that went to the learner, a list a step; `kimi` fills it."""
    return []


@pytest.fixture(scope="module")
def kimi(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory, sent: list[list[Rollout]]) -> Path:
    """A run of a tiny Kimi-Audio, warmed up and aligned."""
    update = Orchestrator.update

    def recorded(workers: Orchestrator, answers: StepAnswers, *more: Any) -> Any:
        sent.append(answers.rollouts)
        return update(workers, answers, *more)

    folder = tmp_path_factory.mktemp("kimi_run")
    texts = [one.text for one in load_dataset(tiny_run / "run/data").demonstrations]
    weights = write_kimi(folder / "released", dtype=torch.float32, text=700, texts=texts)
    warmup = {"steps": 2, "batch_size": 2, "demonstration_contrasts": 1, "lora": LORA, "lr": 0.01}
    config = config_of(folder, tiny_run / "run/data", weights, warmup=warmup)
    invoke("warmup", config)
    with without_weights(KimiPolicy), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Orchestrator, "update", recorded)
        invoke("align", config)
    return folder


def test_no_sound_goes_to_the_learner_and_an_answer_is_a_few_bytes_a_token(kimi: Path, sent: list[list[Rollout]]) -> None:
    """Judges get it: answers to validation queries are kept as clips."""
    assert [len(rollouts) for rollouts in sent] == [ALIGN["queries_per_step"]] * ALIGN["steps"]
    for rollout in (one for rollouts in sent for one in rollouts):
        assert rollout.waves == ()
        tokens = sum(block.tokens.size for block in rollout.blocks)
        codes = sum(part.nbytes for part in rollout.codes)
        # An id, a log-prob and a flag a token; beside them names, texts, seeds and shapes.
        assert len(pickle.dumps(rollout)) < 17 * tokens + codes + 4000
    kept = sorted((kimi / "run/validation").iterdir())
    assert len(kept) == 2
    for folder in kept:
        [answer] = read_jsonl(folder / "answers.jsonl")
        assert answer["empty"] or read_clip(folder / f"{answer['query_id']}.wav").sample_rate_hz == 24_000


def test_each_stage_leaves_a_checkpoint_in_the_released_layout(kimi: Path) -> None:
    released, sft, aligned = (weights_in(kimi / name) for name in ("released", "run/sft", "run/aligned"))
    released.pop("model.layers.0.self_attn.rotary_emb.inv_freq")
    assert released.keys() == sft.keys() == aligned.keys()
    moved = {name for name in sft if not torch.equal(sft[name], released[name])}
    # Adapters were folded into every projection of both branches, and into nothing else.
    assert moved == {name for name in sft if "_proj.weight" in name and "layers" in name}
    assert {name for name in sft if not torch.equal(sft[name], aligned[name])} <= moved
    assert any(not torch.equal(sft[name], aligned[name]) for name in moved)
    assert isinstance(load_policy(kimi / "run/aligned", device="cpu"), KimiPolicy)


def test_sampler_and_learner_agree_and_the_log_is_complete(kimi: Path) -> None:
    rows = list(read_jsonl(kimi / "run/metrics.jsonl"))
    assert [row["step"] for row in rows] == [0, 1]
    for row in rows:
        assert row["parity_text_max"] < 1e-4
        assert row["parity_audio_max"] < 1e-4
        assert row["staleness"] == 0
        assert np.isfinite(row["loss"])
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-9)
    assert rows[1]["kl"] > 0
    losses = list(read_jsonl(kimi / "run/warmup.jsonl"))
    assert losses[1]["loss_text"] + losses[1]["loss_audio"] < losses[0]["loss_text"] + losses[0]["loss_audio"]


def test_a_killed_alignment_goes_on_to_the_same_policy(kimi: Path, tmp_path: Path) -> None:
    config = load_config(kimi / "run.yaml")
    expected = weights_in(kimi / "run/aligned")
    shutil.copytree(config.run_dir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/aligned")
    shutil.rmtree(tmp_path / "run/checkpoints/align/step_000002")
    (tmp_path / "run/config.resolved.yaml").unlink()
    encoded = written_in(tmp_path / "run/prompts")
    with without_weights(KimiPolicy):
        invoke("align", kimi / "run.yaml", "--run-dir", tmp_path / "run", "--resume")
    found = weights_in(tmp_path / "run/aligned")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    # No prompt was encoded again.
    assert written_in(tmp_path / "run/prompts") == encoded != {}


def written_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.npz")}


def test_prompts_are_encoded_once_for_every_query_as_the_policy_encodes_them(kimi: Path) -> None:
    dataset, policy = load_dataset(kimi / "run/data"), load_policy(kimi / "run/sft", device="cpu")
    queries = [query for query in dataset.queries if query.role in ("rl", "validation")]
    expected = policy.encode_queries(dataset, queries)
    found = {ids_of(prompt): prompt for prompt in map(read_prompt, (kimi / "run/prompts").rglob("*.npz"))}
    assert found.keys() == {ids_of(prompt) for prompt in expected} != set()
    for prompt in expected:
        # Other threads round otherwise.
        np.testing.assert_allclose(found[ids_of(prompt)].features, prompt.features, atol=1e-4)


def ids_of(prompt: Prompt) -> tuple[bytes, ...]:
    return prompt.audio_ids.tobytes(), prompt.text_ids.tobytes(), prompt.continuous.tobytes()


def test_its_checkpoints_answer_as_their_run_said_and_the_released_one_as_its_family(kimi: Path) -> None:
    released, aligned = (load_policy(kimi / name, device="cpu").sampling for name in ("released", "run/aligned"))
    assert released == Sampling(1.0, 0.8, 600, text_top_k=1, audio_top_k=10)
    assert aligned == Sampling(1.0, 0.8, 6, text_top_k=1, audio_top_k=10)


def test_it_is_checked_as_any_policy(kimi: Path) -> None:
    done = invoke("check-policy", "kimi", "--weights", kimi / "run/aligned", "--device", "cpu", "--json", "--steps", 4)
    assert json.loads(done.stdout)["failed"] == 0


def test_a_policy_without_demonstrations_is_aligned_as_it_is(tiny_run: Path, tmp_path: Path) -> None:
    """Moshi, all weights learned beside a frozen copy, no warm-up, by the asynchronous driver."""
    moshi = tiny_moshi()
    moshi.model.float()
    moshi.save(tmp_path / "released")
    rates = {"lora": None, "lr": 1e-3, "adaptor_lr": 1e-3}
    asynchronous = ALIGN | rates | {"max_staleness": 1, "tis_cap": 2.0, "max_logprob_gap": 0.5, "steps": 3}
    config = config_of(tmp_path, tiny_run / "run/data", tmp_path / "released", warmup={"steps": 0}, align=asynchronous)
    invoke("warmup", config)
    with without_weights(MoshiPolicy):
        invoke("align", config)
    rows = list(read_jsonl(tmp_path / "run/metrics.jsonl"))
    assert [row["staleness"] for row in rows] == [0, 1, 1]
    assert isinstance(load_policy(tmp_path / "run/aligned", device="cpu"), MoshiPolicy)
