"""The contract on every policy, tiny and random, and on policies that are broken in the ways it was written for.

Not covered: half precision beyond that it runs, GPUs, and released weights (`paras2s check-policy NAME --weights DIR`).
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy
from tiny.families import FAMILIES, embedded_subject, subject_of_family
from tiny.interleaved import sliding, write_glm
from tiny.kimi import write_kimi
from tiny.moshi import tiny_moshi
from tiny.world import invoke
from torch import Tensor

from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.contract import check_policy
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.registry import ARCHITECTURES, POLICIES, load_policy, policy_class
from paras2s.policy.subject import Finding, Subject
from paras2s.policy.types import AnswersSoFar, Generation, Prompt, SampleRequest, Sampling, SamplingEvent
from paras2s.types import Block

# Saving goes through float32 where the loader of a family does.
NOT_APPLICABLE = {"qwen_omni": {"9"}, "qwen3_omni": {"9"}, "moshi": {"14"}, "csm": {"14"}, "minimind_o": {"14"}}


def number(finding: Finding) -> str:
    """Of the check, as its name begins."""
    found = re.match(r"\d+", finding.name)
    assert found is not None
    return found.group()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_policy_keeps_the_contract(name: str, tmp_path: Path) -> None:
    subject = subject_of_family(name, tmp_path)
    before = {key: value.clone() for key, value in subject.policy.model.state_dict().items()}
    saves = None if name == "embedded" else tmp_path / "saved"
    found = list(check_policy(subject, saves))
    assert {one.name: one.detail for one in found if one.ok is False} == {}
    skipped = {number(one) for one in found if one.ok is None}
    assert skipped <= NOT_APPLICABLE.get(name, set())
    assert len(found) == (17 if saves is None else 18)
    # And it is left as it came.
    after = subject.policy.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert not subject.policy.adapters


# -- broken on purpose ------------------------------------------------------------------------------------------------


class Broken(EmbeddedPolicy):
    """An embedded policy with one thing wrong, chosen by `fault`."""

    fault = ""

    def generate(self, request: SampleRequest) -> list[Generation]:
        prompts, seeds, sampling = request.prompts, request.seeds, request.sampling
        if self.fault == "greedy":
            sampling = Sampling(max_steps=sampling.max_steps, text_top_k=2)
        if self.fault == "neighbours":
            seeds = [[seed + 7 * len(prompts) for seed in row] for row in seeds]
        if self.fault == "rows":
            seeds = [[seed + 7 * len(row) for seed in row] for row in seeds]
        if self.fault == "bypassed":
            # What a subclass does that knows of `generate` alone.
            seeds = [[seed + 7 for seed in row] for row in seeds]
        return super().generate(SampleRequest(prompts, seeds, sampling))

    def generate_in_parts(self, *arguments: Any, **more: Any) -> Generator[SamplingEvent, None, list[Generation]]:
        events = super().generate_in_parts(*arguments, **more)
        while True:
            try:
                event = next(events)
            except StopIteration as done:
                return list(done.value)
            if self.fault == "early" and isinstance(event, AnswersSoFar):
                event = replace(event, ended=np.ones_like(event.ended))
            yield event

    def logprobs(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling) -> tuple[Tensor, ...]:
        if self.fault == "temperature":
            sampling = Sampling(max_steps=sampling.max_steps)
        if self.fault == "skipping":
            # As many passes as prompts, so that a rank of few prompts would leave the others waiting.
            each = zip(prompts, answers, strict=True)
            parts = [super(Broken, self).logprobs([one], [blocks], sampling)[0] for one, blocks in each]
            steps = max(part.shape[1] for part in parts)
            return (torch.cat([torch.nn.functional.pad(part, (0, 0, 0, steps - part.shape[1])) for part in parts]),)
        (logp,) = super().logprobs(prompts, answers, sampling)
        if self.fault == "detached":
            return (logp.detach().requires_grad_(),)
        if self.fault == "leak":
            rows = np.concatenate(
                [np.pad(b[0].tokens, ((0, 0), (0, logp.shape[1] - b[0].tokens.shape[1]), (0, 0))) for b in answers]
            )
            mask = logp != 0
            return (logp + 1e-3 * mask * torch.from_numpy(rows).double().sum((1, 2), keepdim=True),)
        if self.fault == "forced":
            return (logp - 0.1 * (logp == 0),)
        if self.fault == "length":
            return (logp + 1e-3 * logp.shape[1] * (logp != 0),)
        return (logp,)

    @property
    def adapters(self) -> list[Any]:
        return [] if self.fault == "reference" and sys._getframe(1).f_code.co_name == "reference" else super().adapters

    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Any:
        clip = super().decode_audio(blocks, answer, seed)
        if self.fault == "noise":
            return type(clip)(np.random.default_rng().normal(size=len(clip.samples)).astype(np.float32), clip.sample_rate_hz)
        return clip

    def decode_audios(self, answers: Sequence[tuple[Sequence[Block], int, int]]) -> list[Any]:
        clips = super().decode_audios(answers)
        return clips[1:] + clips[:1] if self.fault == "batch" else clips


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("", set()),
        ("greedy", {"1"}),
        ("temperature", {"1"}),
        ("neighbours", {"2"}),
        ("rows", {"3"}),
        ("forced", {"4"}),
        ("leak", {"4"}),
        ("length", {"4"}),
        ("detached", {"5"}),
        ("reference", {"6"}),
        ("noise", {"8"}),
        ("batch", {"8"}),
        ("skipping", {"10"}),
        ("bypassed", {"11"}),
        ("early", {"11"}),
    ],
)
def test_what_is_broken_is_found(fault: str, found: set[str]) -> None:
    full = small_policy(small_model(small_config(delay=2)))
    policy = Broken(full.model, full.pieces, full.codec, full.normalizer)
    policy.fault = fault
    failed = {number(one) for one in check_policy(embedded_subject(policy)) if one.ok is False}
    assert found <= failed
    assert bool(found) == bool(failed)


# -- policies of other packages ---------------------------------------------------------------------------------------


def test_another_package_adds_a_policy_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from paras2s.policy import registry

    offered = [
        EntryPoint("theirs", "test_contract:Broken", registry.GROUP),
        EntryPoint("wrong", "json:JSONDecoder", registry.GROUP),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: offered if group == registry.GROUP else [])
    assert registry.policy_class("theirs").__name__ == "Broken"
    assert registry.policy_class("paras2s.policy.kimi.policy:KimiPolicy") is KimiPolicy
    with pytest.raises(PolicyError, match="not a subclass"):
        registry.policy_class("wrong")
    with pytest.raises(PolicyError, match=r"there are embedded, kimi, .*spoken_lm, theirs"):
        registry.policy_class("nobody's")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_of_the_table_is_there(name: str) -> None:
    assert issubclass(policy_class(name), Policy)
    assert name in ARCHITECTURES.values()


# -- the command ------------------------------------------------------------------------------------------------------


def make_full() -> Policy:
    """For `paras2s check-policy test_contract:make_full`."""
    return tiny_moshi()


def test_the_command_checks_a_checkpoint_and_a_function(tmp_path: Path) -> None:
    done = invoke("check-policy", "kimi", "--weights", write_kimi(tmp_path / "kimi"), "--device", "cpu", "--json")
    report = json.loads(done.stdout)
    assert report["failed"] == 0
    assert len(report["checks"]) == 17
    shown = invoke("check-policy", "test_contract:make_full")
    assert "1 sampled log-probs are the scored ones" in shown.output


@pytest.mark.parametrize(
    ("name", "said"),
    [("kimi", "--weights"), ("nowhere:made", "cannot import"), ("json:dumps", "dumps"), ("test_contract:Finding", "Finding")],
)
def test_what_cannot_be_checked_is_said(name: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        invoke("check-policy", name)


def test_a_decoder_is_named_where_a_models_own_is_no_package(tmp_path: Path) -> None:
    folder = write_glm(tmp_path / "glm")
    policy = load_policy(folder, "tiny.interleaved:TinyGlm", "cpu", decoder="tiny.interleaved:beeps_of_glm")
    (block,) = policy.encode_target(sliding(3.0, 16_000, 200), "Hi")
    assert len(policy.decode_audio([block], 0, 0).samples)
    without = load_policy(folder, "tiny.interleaved:TinyGlm", "cpu")
    with pytest.raises(PolicyError, match="no decoder of codes"):
        without.decode_audio([block], 0, 0)
    with pytest.raises(PolicyError, match="has a decoder of its own"):
        load_policy(write_kimi(tmp_path / "kimi"), device="cpu", decoder="tiny.interleaved:beeps_of_glm")
    with pytest.raises(PolicyError, match=r"policy\.decoder: cannot import"):
        load_policy(folder, "tiny.interleaved:TinyGlm", "cpu", decoder="nowhere:beeps")


def test_a_finding_is_kept_where_a_policy_raises() -> None:
    full = embedded_subject()
    subject = Subject(full.policy, (), full.tolerance)
    found = list(check_policy(subject))
    assert len(found) == 17
    assert all(isinstance(one, Finding) for one in found)
    assert any(one.ok is False for one in found)
